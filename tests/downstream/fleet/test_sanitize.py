"""Text of servers without what nobody can see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.downstream.fleet.sanitize import MAX_DEPTH, InvalidDefinition, remove_invisible, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("zero\u200bwidth\u200d \ufeffmarks", "zerowidth marks"),
        ("turned \u202earound\u2066", "turned around"),
        ("tags \U000e0041\U000e0042 end", "tags  end"),
        ("\x1b[31mred\x1b[0m \x1b]8;;http://x\x07link", "[31mred[0m ]8;;http://xlink"),
        ("selected\ufe00\U000e0101", "selected"),
        ("filled\u3164\u115f", "filled"),
        ("half\ud800", "half"),
        ("one\r\ntwo\u2028three", "one\ntwo\nthree"),
    ],
)
def test_what_cannot_be_seen_is_taken_out(text: str, shown: str) -> None:
    assert visible(text)[0] == shown


@pytest.mark.parametrize("text", ["plain", "Größe, 大きさ, размер", "two\nlines\tand a tab", "a warning ⚠️", ""])
def test_what_can_be_seen_stays(text: str) -> None:
    assert visible(text) == (text, 0)


@given(st.text())
def test_clean_text_stays_clean(text: str) -> None:
    assert visible(visible(text)[0]) == (visible(text)[0], 0)


def test_titles_and_descriptions_are_cleaned_wherever_a_model_reads_them() -> None:
    hidden = "say\u200b it"
    argument = {"type": "string", "description": hidden}
    schema = {"properties": {"default": argument, "title": argument}, "anyOf": [{"description": hidden}]}
    definition = {"title": hidden, "annotations": {"title": hidden}, "inputSchema": schema, "arguments": [argument]}
    cleaned, count = remove_invisible(definition)
    assert count == 6
    assert "\\u200b" not in json.dumps(cleaned)


def test_what_programs_read_is_left_alone() -> None:
    value = "a\u200bb"
    schema = {"default": {"description": value}, "enum": [value], "const": value, "examples": [{"title": value}]}
    definition = {"_meta": {"title": value}, "icons": [{"title": value}], "inputSchema": schema}
    assert remove_invisible(definition) == (definition, 0)


def test_a_definition_without_anything_hidden_is_the_same_object() -> None:
    definition = {"title": "A title", "inputSchema": {"properties": {"a": {"description": "Größe"}}}}
    assert remove_invisible(definition)[0] is definition


def test_a_definition_with_too_many_levels_is_refused() -> None:
    schema: Any = {}
    for _ in range(MAX_DEPTH + 2):
        schema = {"items": [schema]}
    with pytest.raises(InvalidDefinition):
        remove_invisible(schema)
