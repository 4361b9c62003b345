"""What is kept of a session's notifications, for a client that comes back: its own, in order, and never too much."""

from __future__ import annotations

import pytest

from refdesk.inbound.mcp.streams import EventStore, EventStoreLimits, SessionEvents

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
def store(clock: Clock) -> EventStore:
    return EventStore(BOUNDS, clock)


@pytest.fixture
def session() -> SessionEvents:
    return SessionEvents()


def replay(store: EventStore, session: SessionEvents, after: int) -> list[bytes]:
    """What is sent again."""
    return [message for _, message in store.list_after(session, b"%d" % after)]


def test_a_stream_is_taken_up_after_the_last_event_that_arrived(store: EventStore, session: SessionEvents) -> None:
    start = store.add(session, None)
    first = store.add(session, b"first")
    second = store.add(session, b"second")
    store.add(SessionEvents(), b"of another session")
    store.add(session, None)
    third = store.add(session, b"third")
    assert store.list_after(session, b"%d" % first) == [(second, b"second"), (third, b"third")]
    assert replay(store, session, start) == [b"first", b"second", b"third"]
    assert replay(store, session, third) == []


def test_another_sessions_events_cannot_be_had(store: EventStore, session: SessionEvents) -> None:
    theirs = store.add(session, None)
    store.add(session, b"secret")
    ours = SessionEvents()
    mine = store.add(ours, None)
    store.add(ours, b"mine")
    assert replay(store, ours, theirs) == []
    assert replay(store, ours, mine) == [b"mine"]


@pytest.mark.parametrize("id", [b"", b"0", b"-1", b"999", b"x", "\u0661".encode(), b"1e3", b"9" * 5000])
def test_an_id_that_was_never_given_replays_nothing(store: EventStore, session: SessionEvents, id: bytes) -> None:
    store.add(session, b"something")
    assert store.list_after(session, id) == []


def test_events_expire(store: EventStore, session: SessionEvents, clock: Clock) -> None:
    start = store.add(session, None)
    store.add(session, b"something")
    clock.now = BOUNDS.seconds
    assert replay(store, session, start) == []
    assert store.bytes == 0


def test_a_session_keeps_only_its_newest_events(store: EventStore, session: SessionEvents) -> None:
    ids = [store.add(session, b"%d" % number) for number in range(6)]
    assert replay(store, session, ids[0]) == []
    assert replay(store, session, ids[1]) == [b"2", b"3", b"4", b"5"]


def test_a_session_keeps_no_more_bytes_than_it_may(store: EventStore, session: SessionEvents) -> None:
    start = store.add(session, None)
    store.add(session, b"x" * BOUNDS.session_bytes)
    assert session.bytes == 0
    assert replay(store, session, start) == []


def test_all_sessions_together_keep_no_more_than_they_may(store: EventStore, session: SessionEvents) -> None:
    other = SessionEvents()
    store.add(session, b"x" * 2500)
    store.add(other, b"y" * 2500)
    assert not session.numbers
    assert len(other.numbers) == 1
    assert session.bytes == 0
    assert store.bytes == other.bytes


def test_a_session_that_ends_leaves_nothing(store: EventStore, session: SessionEvents) -> None:
    other = SessionEvents()
    store.add(session, b"mine")
    theirs = store.add(other, None)
    store.add(session, b"mine too")
    store.add(other, b"theirs")
    store.drop_session(session)
    assert session.bytes == 0
    assert store.bytes == other.bytes
    assert replay(store, other, theirs) == [b"theirs"]
