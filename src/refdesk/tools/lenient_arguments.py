"""Lenient validation of arguments in forms that models send: other names, numbers as text, `null` for an omitted one.

Valid calls cost nothing by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from refdesk.errors import InvalidArguments, Problem

T = TypeVar("T")

SYNONYMS = (
    ("document_id", "doc_id", "handle", "id"),
    ("doc_type", "collection_id", "collection"),
    ("max_results", "limit"),
    ("query", "question"),
    ("anchor_chunk_id", "chunk_id"),
)
"""Names of the same argument. A tool lists one of them and accepts all."""

MAX_EXACT_INTEGER = 2**53
"""Larger floats stand for several integers."""

_INTEGER = re.compile(r"[+-]?\d{1,15}(\.0{1,15})?", re.ASCII)
_NUMBER = re.compile(r"[+-]?\d{1,15}(\.\d{1,15})?", re.ASCII)
_BOOLEANS = {"true": True, "false": False}


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
