"""What is published for a tool, and what is said of wrong arguments."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, ValidationError

from refdesk.tools.json_schema import (
    Arguments,
    Result,
    Unlisted,
    add_choices,
    build_schema,
    list_arguments,
    list_result,
)
from refdesk.validation import invalid_arguments


class Inner(Arguments):
    depth: int


class Sample(Arguments):
    """Not for the reader of the schema."""

    text: Annotated[str, Field(min_length=1, max_length=3, description="Some text.")]
    count: Annotated[int, Field(ge=1, le=5)] = 2
    ratio: float | None = None
    mode: Literal["slow", "fast"] = "fast"
    inner: Inner | None = None
    title: str | None = None


class Found(Result):
    text: Annotated[str, Field(max_length=3, description="Some text.")]
    state: Literal["new", "old"]
    inner: list[Inner]
    tokens: Unlisted[int]
    next: Unlisted[str | None] = None

    def readable(self) -> str:
        return self.text


def test_a_schema_says_each_thing_once() -> None:
    assert build_schema(Sample) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["text"],
        "properties": {
            "text": {"type": "string", "minLength": 1, "maxLength": 3, "description": "Some text."},
            "count": {"type": "integer", "minimum": 1, "maximum": 5, "default": 2},
            "ratio": {"type": "number"},
            "mode": {"type": "string", "enum": ["slow", "fast"], "default": "fast"},
            "inner": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"depth": {"type": "integer"}},
                "required": ["depth"],
            },
            "title": {"type": "string"},
        },
    }


def test_listed_arguments_have_names_types_choices_and_maxima() -> None:
    assert list_arguments(build_schema(Sample)) == {
        "type": "object",
        "required": ["text"],
        "properties": {
            "text": {"type": "string", "description": "Some text."},
            "count": {"type": "integer", "maximum": 5, "default": 2},
            "ratio": {"type": "number"},
            "mode": {"type": "string", "enum": ["slow", "fast"], "default": "fast"},
            "inner": {"type": "object", "properties": {"depth": {"type": "integer"}}, "required": ["depth"]},
            "title": {"type": "string"},
        },
    }


def test_listed_results_have_types_and_the_fields_that_every_result_has() -> None:
    schema = build_schema(Found)
    assert set(schema["properties"]) == {"text", "state", "inner", "tokens", "next"}
    assert list_result(schema) == {
        "type": "object",
        "required": ["text", "state", "inner"],
        "properties": {
            "text": {"type": "string"},
            "state": {"type": "string"},
            "inner": {"type": "array", "items": {"type": "object", "properties": {"depth": {"type": "integer"}}}},
        },
    }


def test_live_choices_leave_the_declared_schema_alone() -> None:
    schema = build_schema(Sample)
    with_values = add_choices(schema, {"title": ["a", "b"]})
    assert with_values["properties"]["title"]["enum"] == ["a", "b"]
    assert "enum" not in schema["properties"]["title"]


@pytest.mark.parametrize(
    ("arguments", "argument", "rule"),
    [
        ({}, "text", "is required"),
        ({"text": ""}, "text", "must have at least 1 character(s)"),
        ({"text": "long"}, "text", "must have at most 3 characters"),
        ({"text": 5}, "text", "must be a string"),
        ({"text": "a", "count": "5"}, "count", "must be an integer"),
        ({"text": "a", "count": 2.5}, "count", "must be an integer"),
        ({"text": "a", "count": True}, "count", "must be an integer"),
        ({"text": "a", "count": 0}, "count", "must be at least 1"),
        ({"text": "a", "count": 9}, "count", "must be at most 5"),
        ({"text": "a", "ratio": "x"}, "ratio", "must be a number"),
        ({"text": "a", "mode": "medium"}, "mode", "must be one of 'slow' or 'fast'"),
        ({"text": "a", "inner": {"depth": "x"}}, "inner.depth", "must be an integer"),
        ({"text": "a", "inner": 5}, "inner", "must be an object"),
        ({"text": "a", "inner": {"depth": 1, "inn": 1}}, "inner.inn", "unknown field"),
        ({"text": "a", "cuont": 1}, "cuont", "unknown argument; did you mean count?"),
        ({"text": "a", "zzz": 1}, "zzz", "unknown argument; known are text, count, ratio, mode, inner, title"),
    ],
)
def test_a_wrong_argument_is_told_its_rule(arguments: dict[str, Any], argument: str, rule: str) -> None:
    with pytest.raises(ValidationError) as error:
        Sample.model_validate(arguments)
    (problem,) = invalid_arguments(error.value, list(Sample.model_fields)).problems
    assert (problem.argument, problem.rule) == (argument, rule)
