"""A streamed answer, wherever its bytes are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.answers.chat import MAX_BODY_BYTES, ChatCompletion, MalformedCompletion
from tests.answers.endpoint import events

BODY = events("Größe ", "ist ", "5 [1]. 索引", "\n", "`a[1]`")


@given(st.lists(st.integers(0, len(BODY)), max_size=20).map(sorted))
def test_an_answer_is_the_same_wherever_its_bytes_are_cut(cuts: list[int]) -> None:
    completion = ChatCompletion()
    for start, end in zip([0, *cuts], [*cuts, len(BODY)], strict=True):
        completion.feed(BODY[start:end])
    assert completion.text == "Größe ist 5 [1]. 索引\n`a[1]`"
    assert (completion.is_done, completion.finish_reason, completion.model) == (True, "stop", "stub-1")


@given(st.integers(0, len(events("one ", "two", finish=None, done=False))))
def test_an_answer_that_breaks_off_is_never_taken_for_a_whole_one(cut: int) -> None:
    completion = ChatCompletion()
    completion.feed(events("one ", "two", finish=None, done=False)[:cut])
    with pytest.raises(MalformedCompletion):
        completion.close()


def test_an_end_that_is_only_told_by_the_reason_is_one() -> None:
    completion = ChatCompletion()
    completion.feed(events("yes", done=False))
    completion.close()
    assert completion.text == "yes"


def test_a_last_event_without_a_line_break_counts() -> None:
    completion = ChatCompletion()
    completion.feed(events("yes", finish=None).rstrip(b"\n"))
    completion.close()
    assert completion.is_done


@pytest.mark.parametrize("body", [b"data: {oops\n", b"data: 7\n", b'data: {"error": {"message": "no"}}\n'])
def test_what_is_no_chat_completion_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedCompletion):
        ChatCompletion().feed(body)


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null"])
def test_a_whole_answer_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedCompletion):
        ChatCompletion().feed_body(body)


def test_events_of_odd_shapes_are_passed_over() -> None:
    completion = ChatCompletion()
    odd = b'{"choices": [7]} {"choices": 7} {} {"choices": [{"delta": 7}]} {"choices": [{"delta": {"content": 7}}]}'
    for event in odd.replace(b"} {", b"}\0{").split(b"\0"):
        completion.feed(b"data: " + event + b"\n\n")
    completion.feed(events("fine"))
    assert completion.text == "fine"


def test_a_body_without_end_is_given_up() -> None:
    completion = ChatCompletion()
    comment = b": keep waiting\n"
    for _ in range(4):
        completion.feed(comment * (MAX_BODY_BYTES // 4 // len(comment)))
    with pytest.raises(MalformedCompletion, match="larger"):
        completion.feed(comment * 9)
