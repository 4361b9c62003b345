"""Base models of arguments and results, and their published JSON Schema.

Models read a schema on every turn, so it is minimal: no titles, and no `anyOf` with null for optional fields.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import GenerateJsonSchema


class Arguments(BaseModel):
    """Base of argument models: strict, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Result(BaseModel):
    """Base of structured results; `readable` is the text for clients that show only text."""

    model_config = ConfigDict(frozen=True)

    @abstractmethod
    def readable(self) -> str:
        """Return the result as text."""


def build_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the trimmed JSON Schema of a model."""
    # Results are described as serialized, arguments as sent.
    schema = model.model_json_schema(
        mode="serialization" if issubclass(model, Result) else "validation", schema_generator=_NoTitles
    )
    definitions = schema.pop("$defs", {})
    schema.pop("description", None)
    trimmed = _trim(schema, definitions)
    assert isinstance(trimmed, dict)
    return trimmed


def add_choices(schema: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the schema with the current values of some properties."""
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
        return _trim({**definitions[node["$ref"].rsplit("/", 1)[1]], **_omit(node, "$ref")}, definitions)
    options = [option for option in node.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        return _trim({**options[0], **_omit(node, "anyOf", "default")}, definitions)
    return {
        key: {name: _trim(sub, definitions) for name, sub in value.items()}
        if key == "properties"
        else _trim(value, definitions)
        for key, value in node.items()
        if key != "title"
    }


def _omit(node: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}
