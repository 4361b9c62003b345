"""What is kept of a session's streams, for a client that comes back: its own, in order, and never too much."""

from __future__ import annotations

import pytest
from mcp.server.streamable_http import EventMessage
from mcp_types import JSONRPCNotification, JSONRPCResponse

from refdesk.inbound.event_store import EventBuffer, EventStoreLimits, SessionEventStore

pytestmark = pytest.mark.anyio

BOUNDS = EventStoreLimits(seconds=60, session_events=5, session_bytes=3000, total_bytes=5000)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def events(clock: Clock) -> EventBuffer:
    return EventBuffer(BOUNDS, clock)


@pytest.fixture
def session(events: EventBuffer) -> SessionEventStore:
    return SessionEventStore(events)


def note(text: str) -> JSONRPCNotification:
    return JSONRPCNotification(jsonrpc="2.0", method="notifications/message", params={"data": text})


def answer(id: str) -> JSONRPCResponse:
    return JSONRPCResponse(jsonrpc="2.0", id=id, result={})


async def replay(session: SessionEventStore, after: str) -> tuple[list[str], str | None]:
    """What is sent again, and the stream on which more is to come."""
    sent: list[str] = []

    async def send(event: EventMessage) -> None:
        message = event.message
        sent.append(message.params["data"] if isinstance(message, JSONRPCNotification) and message.params else "answer")

    return sent, await session.replay_events_after(after, send)


async def test_a_stream_is_taken_up_after_the_last_event_that_arrived(session: SessionEventStore) -> None:
    await session.store_event("1", None)
    first = await session.store_event("1", note("first"))
    await session.store_event("1", note("second"))
    await session.store_event("2", note("of another stream"))
    await session.store_event("1", note("third"))
    assert await replay(session, first) == (["second", "third"], "1")


async def test_nothing_more_is_to_come_after_the_answer(session: SessionEventStore) -> None:
    start = await session.store_event("1", None)
    end = await session.store_event("1", answer("1"))
    assert await replay(session, start) == (["answer"], None)
    assert await replay(session, end) == ([], None)


async def test_a_message_that_comes_in_during_the_replay_is_sent_too(session: SessionEventStore) -> None:
    start = await session.store_event("1", None)
    await session.store_event("1", note("before"))
    sent = 0

    async def send(event: EventMessage) -> None:
        nonlocal sent
        sent += 1
        if sent == 1:
            await session.store_event("1", answer("1"))

    assert await session.replay_events_after(start, send) is None
    assert sent == 2


async def test_another_sessions_events_cannot_be_had(events: EventBuffer, session: SessionEventStore) -> None:
    theirs = await session.store_event("1", None)
    await session.store_event("1", note("secret"))
    ours = SessionEventStore(events)
    mine = await ours.store_event("1", None)
    assert await replay(ours, theirs) == ([], None)
    assert await replay(ours, mine) == ([], "1")


@pytest.mark.parametrize("id", ["", "0", "-1", "999", "x", "١", "1e3", "9" * 5000])
async def test_an_id_that_was_never_given_replays_nothing(session: SessionEventStore, id: str) -> None:
    await session.store_event("1", note("something"))
    assert await replay(session, id) == ([], None)


async def test_events_expire(events: EventBuffer, session: SessionEventStore, clock: Clock) -> None:
    start = await session.store_event("1", None)
    clock.now = BOUNDS.seconds
    assert await replay(session, start) == ([], None)
    assert events.bytes == 0


async def test_a_session_keeps_only_its_newest_events(session: SessionEventStore) -> None:
    ids = [await session.store_event("1", note(str(number))) for number in range(6)]
    assert await replay(session, ids[0]) == ([], None)
    assert await replay(session, ids[1]) == (["2", "3", "4", "5"], "1")


async def test_a_session_keeps_no_more_bytes_than_it_may(session: SessionEventStore) -> None:
    start = await session.store_event("1", None)
    await session.store_event("1", note("x" * BOUNDS.session_bytes))
    assert session.bytes == 0
    assert await replay(session, start) == ([], None)


async def test_all_sessions_together_keep_no_more_than_they_may(
    events: EventBuffer, session: SessionEventStore
) -> None:
    other = SessionEventStore(events)
    oldest = await session.store_event("1", note("x" * 2500))
    modern = await other.store_event("1", note("y" * 2500))
    assert await replay(session, oldest) == ([], None)
    assert await replay(other, modern) == ([], "1")
    assert session.bytes == 0
    assert events.bytes == other.bytes


async def test_a_session_that_ends_leaves_nothing(events: EventBuffer, session: SessionEventStore) -> None:
    other = SessionEventStore(events)
    await session.store_event("1", note("mine"))
    theirs = await other.store_event("1", None)
    await session.store_event("1", note("mine too"))
    await other.store_event("1", note("theirs"))
    events.drop_session(session)
    assert session.bytes == 0
    assert events.bytes == other.bytes
    assert await replay(other, theirs) == (["theirs"], "1")
