"""Sealed answers: what was sealed comes back under its own name, and nothing else does."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.cache.cache import is_answer
from refdesk.cache.redis import InvalidEntry, sign, verify
from tests.cache.helpers import answer

GENERATION = b"g" * 16
VALUE = sign("name", GENERATION, answer(1, "text"), b"")


def test_what_was_sealed_comes_back() -> None:
    assert verify("name", VALUE, b"") == answer(1, "text")


@given(st.integers(0, len(VALUE) * 8 - 1))
def test_a_flipped_bit_is_noticed(bit: int) -> None:
    broken = bytearray(VALUE)
    broken[bit // 8] ^= 1 << bit % 8
    with pytest.raises(InvalidEntry):
        verify("name", bytes(broken), b"")


@given(st.binary(max_size=200) | st.integers(0, len(VALUE) - 1).map(lambda end: VALUE[:end]))
def test_other_bytes_are_noticed(value: bytes) -> None:
    with pytest.raises(InvalidEntry):
        verify("name", value, b"")


def test_the_answer_to_another_question_is_noticed() -> None:
    with pytest.raises(InvalidEntry):
        verify("nam", sign("name", GENERATION, answer(1), b""), b"")
    with pytest.raises(InvalidEntry):
        verify("other", VALUE, b"")


def test_a_forged_answer_is_noticed_where_there_is_a_secret() -> None:
    for secret in (b"", b"guess"):
        with pytest.raises(InvalidEntry):
            verify("name", sign("name", GENERATION, answer(1), secret), b"secret")


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "text",
        {},
        {"content": None},
        {"content": ["text"]},
        {"content": [{"type": "image", "data": ""}]},
        {"content": [{"type": "text", "text": 1}]},
        {"content": [], "structuredContent": []},
        {"content": [], "_meta": 1},
        {"content": [], "isError": True},
    ],
)
def test_what_is_not_the_answer_of_a_tool_is_broken_however_it_is_sealed(value: Any) -> None:
    assert not is_answer(value)
    with pytest.raises(InvalidEntry):
        verify("name", sign("name", GENERATION, value, b""), b"")


def test_what_is_not_json_is_broken_however_it_is_sealed() -> None:
    not_json: Any = orjson.Fragment(b"{not json")
    with pytest.raises(InvalidEntry, match="not JSON"):
        verify("name", sign("name", GENERATION, not_json, b""), b"")
