"""Server-sent events: what the HTML standard says of them, in whatever pieces they come, and within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refdesk.downstream.transports.events import MAX_ID_BYTES, SseEvent, SseParser


def read(*pieces: bytes, max_bytes: int = 1000) -> list[SseEvent]:
    reader = SseParser(max_bytes)
    return [event for piece in pieces for event in reader.feed(piece)]


def test_an_event_has_a_kind_and_data_and_ends_with_an_empty_line() -> None:
    assert read(b"event: endpoint\ndata: /here\n\n") == [SseEvent("endpoint", b"/here")]
    assert read(b"data: 1\n\ndata: 2\n\n") == [SseEvent("message", b"1"), SseEvent("message", b"2")]
    assert read(b"data: not yet\n") == []


def test_lines_of_data_are_joined_and_one_space_is_dropped() -> None:
    assert read(b"data: a\ndata:b\ndata:  c\ndata\n\n") == [SseEvent("message", b"a\nb\n c\n")]


def test_comments_unknown_fields_and_events_without_data_are_nothing() -> None:
    assert read(b": hello\n\nnonsense\nother: 1\n\nevent: x\n\ndata: 1\n\n") == [SseEvent("message", b"1")]


def test_lines_end_with_any_of_the_three_ends() -> None:
    assert read(b"data: a\r\n\r\ndata: b\r\rdata: c\n\n") == [SseEvent("message", data) for data in (b"a", b"b", b"c")]


def test_a_byte_order_mark_is_dropped_at_the_beginning_only() -> None:
    assert read(b"\xef\xbb\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\n") == [SseEvent("message", b"a")]


def test_the_id_of_the_last_complete_event_is_kept() -> None:
    reader = SseParser(1000)
    reader.feed(b"id: one\ndata:\n\nid: two\n")
    assert reader.last_id == "one"
    reader.feed(b"\n")
    assert reader.last_id == "two"
    reader.feed(b"data: 1\n\n")
    assert reader.last_id == "two"
    reader.feed(b"id\n\n")
    assert reader.last_id == ""


def test_an_id_that_no_header_can_carry_is_taken_for_none() -> None:
    reader = SseParser(10_000, "before")
    reader.feed(b"id: a\0b\n\nid: \xff\n\nid: " + b"x" * (MAX_ID_BYTES + 1) + b"\n\n")
    assert reader.last_id == "before"


def test_the_time_to_wait_is_read_when_it_is_a_number() -> None:
    reader = SseParser(1000)
    reader.feed(b"retry: soon\nretry: -1\nretry: " + b"9" * 5000 + b"\n")
    assert reader.retry is None
    reader.feed(b"retry: 1500\n")
    assert reader.retry == 1.5


def test_an_event_that_is_too_large_is_told_once_and_the_next_one_is_whole() -> None:
    lost = SseEvent("message", b"", is_whole=False)
    after = b"\n\ndata: after\n\n"
    assert read(b"data: " + b"x" * 200 + after, max_bytes=100) == [lost, SseEvent("message", b"after")]
    assert read(*[b"data: xxxx\n"] * 50, after[1:], max_bytes=100) == [lost, SseEvent("message", b"after")]
    assert read(b"data: ", *[b"x" * 10] * 50, after, max_bytes=100) == [lost, SseEvent("message", b"after")]
    assert read(*[b"data\n"] * 200, after[1:], max_bytes=100) == [lost, SseEvent("message", b"after")]


def test_a_line_without_end_is_not_kept() -> None:
    reader = SseParser(1000)
    events = [event for _ in range(1000) for event in reader.feed(b"x" * 1000)]
    assert [event.is_whole for event in events] == [False]
    assert len(reader._line) <= 1000


def test_the_end_of_a_line_that_was_too_long_does_not_end_its_event() -> None:
    events = read(b"data: " + b"x" * 200, b"\n", b"data: of the same", b"\n", b"\n", b"data: next\n\n", max_bytes=100)
    assert [(event.data, event.is_whole) for event in events] == [(b"", False), (b"next", True)]


LINES = st.sampled_from(
    [b"data: one", b"data:two", b"event: e", b"id: 7", b": c", b"", b"", b"x", b"data: " + b"y" * 40]
)
ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])


@given(st.lists(st.tuples(LINES, ENDS), max_size=30), st.data())
def test_it_does_not_matter_how_a_stream_is_cut(lines: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    # A lone CR before a line that begins with LF would be one end in one cut and two in another: there is none here.
    stream = b"".join(line + end for line, end in lines)
    whole, cut = SseParser(10_000), SseParser(10_000)
    expected = whole.feed(stream)
    found: list[SseEvent] = []
    while stream:
        length = data.draw(st.integers(1, len(stream)))
        found += cut.feed(stream[:length])
        stream = stream[length:]
    assert found == expected
    assert cut.last_id == whole.last_id


@given(st.binary(max_size=2000))
def test_any_bytes_are_read_without_an_error_and_within_the_bound(stream: bytes) -> None:
    reader = SseParser(100)
    for event in [*reader.feed(stream), *reader.feed(b"\n\n\ndata: end\n\n")]:
        assert len(event.data) <= 100


def test_single_bytes_are_put_together_in_linear_time() -> None:
    """Copying or searching what is held for each of them would take minutes."""
    reader = SseParser(20_000_000)
    reader.feed(b"data: " + b"x" * 16_000_000)
    for _ in range(200_000):
        reader.feed(b"x")
    (event,) = reader.feed(b"\n\n")
    assert event.is_whole
    assert len(event.data) == 16_200_000
