"""Base models of arguments and results, and their JSON Schema.

Models read the schemas that `tools/list` publishes on every turn, so these leave out what an error message explains as
well.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")

_UNLISTED = "unlisted"

Unlisted = Annotated[T, Field(json_schema_extra={_UNLISTED: True})]
"""Type of a result's field that `tools/list` omits: an echo of the arguments, or seldom of use to a program."""

_UNLISTED_RULES = frozenset(
    {"additionalProperties", "minLength", "maxLength", "minItems", "maxItems", "minimum", "pattern"}
)
"""Rules of arguments that are enforced but not listed. Models rarely break them."""

_LISTED_RULES = frozenset({"type", "properties", "items", "anyOf"})
"""Rules of results that are listed."""

MAX_ARGUMENTS = 100
"""No tool has as many; validating hundreds of thousands of unknown names would take seconds."""


class Arguments(BaseModel):
    """Base of argument models: strict, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Result(BaseModel):
    """Base of structured results; `readable` is the text for clients that show only text."""

    model_config = ConfigDict(frozen=True)

    @abstractmethod
    def readable(self) -> str:
        """Return the result as text."""


class ResultItem(BaseModel):
    """Base of the parts of structured results."""

    model_config = ConfigDict(frozen=True)


def build_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the trimmed JSON Schema of a model."""
    # Results are described as serialized, arguments as sent.
    schema = model.model_json_schema(mode="serialization" if issubclass(model, Result) else "validation")
    definitions = schema.pop("$defs", {})
    schema.pop("description", None)
    trimmed = _trim(schema, definitions)
    assert isinstance(trimmed, dict)
    return trimmed


def list_arguments(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the published form of an argument schema."""
    return _map_schema(schema, lambda node: _omit(node, *_UNLISTED_RULES))


def list_result(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the published form of a result schema: its types, and the fields that every result has."""

    def shorten(node: Mapping[str, Any]) -> dict[str, Any]:
        listed = {rule: value for rule, value in node.items() if rule in _LISTED_RULES}
        if "properties" in listed:
            properties = listed["properties"]
            listed["properties"] = {name: sub for name, sub in properties.items() if not sub.get(_UNLISTED)}
        return listed

    listed = _map_schema(schema, shorten)
    return {**listed, "required": [name for name in schema.get("required", ()) if name in listed["properties"]]}


def add_choices(schema: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return the schema with the current values of some properties."""
    properties = dict(schema["properties"])
    for name, values in choices.items():
        properties[name] = {**properties[name], "enum": list(values)}
    return {**schema, "properties": properties}


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


def _map_schema(schema: Mapping[str, Any], change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a schema with a change applied to it and to the schemas inside."""
    changed = change(schema)
    if "properties" in changed:
        changed["properties"] = {name: _map_schema(sub, change) for name, sub in changed["properties"].items()}
    if "items" in changed:
        changed["items"] = _map_schema(changed["items"], change)
    if "anyOf" in changed:
        changed["anyOf"] = [_map_schema(option, change) for option in changed["anyOf"]]
    return changed


def _omit(node: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in node.items() if key not in keys}
