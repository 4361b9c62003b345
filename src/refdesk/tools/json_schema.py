"""Base models of arguments and results, their JSON Schema, and lenient validation.

Models read the schemas that `tools/list` publishes on every turn, so these leave out what an error message explains as
well. Arguments that are invalid as they are get a second attempt, which accepts forms that models send: other names,
numbers as text, `null` for an omitted argument. Valid calls cost nothing by it.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from refdesk.errors import InvalidArguments, Problem

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

SYNONYMS = (
    ("document_id", "doc_id", "handle", "id"),
    ("doc_type", "collection_id", "collection"),
    ("max_results", "limit"),
    ("query", "question"),
    ("anchor_chunk_id", "chunk_id"),
)
"""Names of the same argument. A tool lists one of them and accepts all."""

MAX_ARGUMENTS = 100
"""No tool has as many; validating hundreds of thousands of unknown names would take seconds."""

MAX_EXACT_INTEGER = 2**53
"""Larger floats stand for several integers."""

_INTEGER = re.compile(r"[+-]?\d{1,15}(\.0{1,15})?", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


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


# Lenient validation


def validate_leniently(validate: Callable[[object], T], names: Collection[str], arguments: Mapping[str, Any]) -> T:
    """Validate arguments after replacing synonyms by the listed names and converting values of the wrong type.

    Raises ValidationError, in terms of the listed names, or InvalidArguments if synonyms have different values.
    """
    renamed = _replace_synonyms(names, arguments)
    try:
        return validate(renamed)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False):
            _convert_value(renamed, detail["loc"], detail["type"])
        return validate(renamed)


def _replace_synonyms(names: Collection[str], arguments: Mapping[str, Any]) -> dict[str, Any]:
    renamed = dict(arguments)
    problems: list[Problem] = []
    for group in SYNONYMS:
        listed = next((name for name in group if name in names), None)
        for synonym in group:
            if listed is None or synonym in names or synonym not in renamed:
                continue
            value = renamed.pop(synonym)
            if renamed.get(listed) is None:
                renamed[listed] = value
            elif value is not None and value != renamed[listed]:
                problems.append(Problem(listed, f"has another value than its synonym {synonym}; give only {listed}"))
    if problems:
        raise InvalidArguments(problems)
    return renamed


def _convert_value(arguments: dict[str, Any], path: tuple[int | str, ...], kind: str) -> None:
    """Convert the invalid value at a path, or remove a null. A path into a union names types, and leads nowhere."""
    parent = arguments
    for step in map(str, path[:-1]):
        inner = parent.get(step)
        if not isinstance(inner, dict):
            return
        # Copied, because the original belongs to the call.
        parent[step] = inner = dict(inner)
        parent = inner
    name = str(path[-1]) if path else ""
    if kind == "extra_forbidden" or name not in parent:
        return
    if parent[name] is None:
        del parent[name]
    else:
        parent[name] = _convert(parent[name], kind)


def _convert(value: Any, kind: str) -> Any:
    """Return the value as the type that an error demands, or as it is."""
    if kind == "int_type" and isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT_INTEGER:
        return int(value)
    if kind == "string_type" and isinstance(value, list) and len(value) == 1:
        return value[0]
    if not isinstance(value, str):
        return value
    text = value.strip()
    if kind == "int_type" and _INTEGER.fullmatch(text):
        return int(text.partition(".")[0])
    if kind == "float_type" and _NUMBER.fullmatch(text):
        return float(text)
    if kind == "bool_type":
        return _BOOLEANS.get(text.lower(), value)
    return [value] if kind == "list_type" else value
