"""Argument and result models, and the lean JSON Schema that is published for them.

A schema is read by a model on every turn, so it says each thing once: no titles, no `anyOf` with null for what may
simply be left out.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema


class Arguments(BaseModel):
    """Base of every argument model: nothing unknown, nothing silently converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Result(BaseModel):
    """Base of every structured result; `readable` is the same answer for a model that is shown only text."""

    model_config = ConfigDict(frozen=True)

    @abstractmethod
    def readable(self) -> str:
        """The answer as text."""


def published_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of a model, trimmed to what a reader needs."""
    # Results are shown as they are written, arguments as they are sent.
    schema = model.model_json_schema(
        mode="serialization" if issubclass(model, Result) else "validation", schema_generator=_NoTitles
    )
    definitions = schema.pop("$defs", {})
    schema.pop("description", None)
    trimmed = _trim(schema, definitions)
    assert isinstance(trimmed, dict)
    return trimmed


def with_choices(schema: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The schema with the values that some properties can take right now."""
    properties = dict(schema["properties"])
    for name, values in choices.items():
        properties[name] = {**properties[name], "enum": list(values)}
    return {**schema, "properties": properties}


class _NoTitles(GenerateJsonSchema):
    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def get_title_from_name(self, name: str) -> str:
        return ""


def _trim(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_trim(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _trim({**definitions[node["$ref"].rsplit("/", 1)[1]], **_without(node, "$ref")}, definitions)
    options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        return _trim({**options[0], **_without(node, "anyOf", "default")}, definitions)
    return {
        key: {name: _trim(sub, definitions) for name, sub in value.items()}
        if key == "properties"
        else _trim(value, definitions)
        for key, value in node.items()
        if key != "title"
    }


def _without(node: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}
