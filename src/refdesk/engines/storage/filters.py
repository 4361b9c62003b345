"""Compiler of R2R's filter language to an SQL condition.


    {"author": "Ann", "metadata.year": {"$gte": 2020}, "$or": [{"tags": {"$contains": "sql"}}, {"version": "15"}]}

Pure: takes a filter, returns SQL over documents `d` and their collections `c`. User input, including metadata names,
only ever becomes a parameter. Numbers compare with numbers and texts with texts. A missing value or a value of another
type equals nothing. `null` matches a missing value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from refdesk.documents.convert.formats import FORMATS
from refdesk.errors import InvalidArguments, Problem
from refdesk.validation import MAX_PROBLEMS, nearest_name, shorten

MAX_DEPTH = 10
"""Maximum nesting of filters and metadata names."""

MAX_CONDITIONS = 100
"""Maximum number per filter. SQLite limits the depth of an expression to a thousand."""

MAX_VALUES = 1000
"""Maximum number per list."""

MAX_PARAMETERS = 10_000
"""Maximum number per filter. SQLite accepts three times as many."""

MAX_TEXT = 2000
"""Maximum number of characters per text."""

Kind = Literal["text", "number", "time"]

DOCUMENT_TYPES: Mapping[str, str] = {
    **{format.media_type: format.suffixes[0][1:] for format in FORMATS.values() if format.suffixes},
    "application/json": "json",
    "application/pkcs7-signature": "p7s",
    "application/typescript": "ts",
    "application/vnd.ms-outlook": "msg",
    "audio/mpeg": "mp3",
    "image/bmp": "bmp",
    "image/gif": "gif",
    "image/heic": "heic",
    "image/jpeg": "jpeg",
    "image/png": "png",
    "image/svg+xml": "svg",
    "image/tiff": "tiff",
    "message/rfc822": "eml",
    "text/css": "css",
    "text/javascript": "js",
    "text/org": "org",
    "text/tab-separated-values": "tsv",
    "text/x-python": "py",
}
"""R2R's document types, by media type."""

_NAMED_TYPES = ("css", "js", "json", "py", "ts", "tsv")
"""Types that only a file's name tells from plain text and CSV."""

_TYPE = " ".join(
    [
        "CASE",
        *(f"WHEN d.media_type LIKE 'text/%' AND d.id GLOB '*.{type}' THEN '{type}'" for type in _NAMED_TYPES),
        *(f"WHEN d.media_type = '{media_type}' THEN '{type}'" for media_type, type in DOCUMENT_TYPES.items()),
        "END",
    ]
)

_STATUS = "CASE d.stage WHEN 'indexing' THEN 'converting' WHEN 'finishing' THEN 'embedding' ELSE d.stage END"

_EXTRACTION = (
    "CASE WHEN d.stage = 'pending' THEN 'pending' WHEN d.stage IN ('converting', 'indexing') THEN 'processing' "
    "WHEN d.stage = 'failed' AND d.chunks = 0 THEN 'failed' ELSE 'success' END"
)

FIELDS: Mapping[str, tuple[str, Kind]] = {
    "document_id": ("d.id", "text"),
    "id": ("d.id", "text"),
    "document_type": (_TYPE, "text"),
    "title": ("d.title", "text"),
    "collection_id": ("c.id", "text"),
    "collection_ids": ("c.id", "text"),
    "doc_type": ("c.id", "text"),
    "version": ("coalesce(nullif(d.version, ''), substr(d.digest, 1, 12))", "text"),
    "media_type": ("d.media_type", "text"),
    "size_bytes": ("d.size_bytes", "number"),
    "size_in_bytes": ("d.size_bytes", "number"),
    "created_at": ("d.created_at", "time"),
    "updated_at": ("d.updated_at", "time"),
    "status": (_STATUS, "text"),
    "ingestion_status": (_STATUS, "text"),
    "extraction_status": (_EXTRACTION, "text"),
    "source": ("CASE d.kind WHEN 'url' THEN d.source ELSE d.id END", "text"),
}
"""Document fields that can be filtered, as in a hit. Any other name is metadata."""

UNKNOWN_FIELDS: Mapping[str, str] = {
    "owner_id": "documents belong to a tenant",
    "summary": "documents have no summary",
    "summary_embedding": "documents have no summary",
    "total_tokens": "tokens aren't counted",
    "ingestion_attempt_number": "attempts aren't kept",
    "chunk_order": "a filter selects whole documents",
    "page_number": "a filter selects whole documents",
}
"""Fields of R2R that documents don't have here, with the reason. They would match nothing without a word."""

METADATA = "metadata."

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ -]+")
"""Names that need no escaping in JSON, JSON paths and filters."""

_TIME_SQL = "strftime('%Y-%m-%dT%H:%M:%f', {})"
"""Normalizes a time to UTC in one format, whatever format it was stored or given in."""

Value = str | int | float | bool
Parameter = str | int | float


@dataclass(frozen=True, slots=True)
class Condition:
    """SQL expression with its parameters."""

    sql: str
    parameters: list[Parameter] = field(default_factory=list)


def compile_filter(filters: Mapping[str, Any]) -> Condition:
    """Compile a filter to a condition on documents. Raises InvalidArguments that lists all problems."""
    compilation = _Compilation()
    condition = compilation.compile_object(filters, "filters", 1)
    if compilation.problems:
        raise InvalidArguments(compilation.problems[:MAX_PROBLEMS])
    if len(condition.parameters) > MAX_PARAMETERS:
        raise InvalidArguments([Problem("filters", f"must have at most {MAX_PARAMETERS:,} values in all")])
    return condition


class _Invalid(Exception):
    """Rule that a part of a filter violates."""


class _Compilation:
    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._conditions = 0

    def compile_object(self, filters: Any, path: str, depth: int) -> Condition:
        """Compile an object whose conditions are joined by AND."""
        if not isinstance(filters, Mapping):
            return self._add_problem(path, "must be an object")
        if depth > MAX_DEPTH:
            return self._add_problem(path, f"must not nest deeper than {MAX_DEPTH}")
        return _join("AND", [self._compile_entry(str(name), value, path, depth) for name, value in filters.items()])

    def _compile_entry(self, name: str, value: Any, path: str, depth: int) -> Condition:
        path = f"{path}.{shorten(name)}"
        if name in _JUNCTIONS:
            if not isinstance(value, list) or not value:
                return self._add_problem(path, "must be a list of at least one object")
            if len(value) > MAX_CONDITIONS:
                return self._add_problem(path, f"must have at most {MAX_CONDITIONS} conditions")
            parts = [self.compile_object(each, f"{path}.{number}", depth + 1) for number, each in enumerate(value)]
            return _join(_JUNCTIONS[name], parts)
        if name in _OPERATORS:
            return self._add_problem(path, f'must stand below a field, as in {{"author": {{"{name}": …}}}}')
        if name.startswith("$"):
            return self._add_problem(path, _describe_unknown(name, _JUNCTIONS))
        if not isinstance(value, Mapping):
            return self._compile_operation(name, "$eq", value, path)
        if not value:
            return self._add_problem(path, f"must have an operator: {', '.join(_OPERATORS)}")
        operations = {str(key): each for key, each in value.items()}
        return _join(
            "AND",
            [self._compile_operation(name, key, each, f"{path}.{shorten(key)}") for key, each in operations.items()],
        )

    def _compile_operation(self, name: str, operator: str, value: Any, path: str) -> Condition:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            return self._add_problem("filters", f"must have at most {MAX_CONDITIONS} conditions")
        if operator not in _OPERATORS:
            return self._add_problem(path, _describe_unknown(operator, _OPERATORS))
        try:
            return _OPERATORS[operator](_resolve_field(name), value)
        except _Invalid as invalid:
            return self._add_problem(path, str(invalid))

    def _add_problem(self, path: str, rule: str) -> Condition:
        """Record a problem and continue, so that all problems are reported together."""
        problem = Problem(path, rule)
        if problem not in self.problems:
            self.problems.append(problem)
        return _NEVER


@dataclass(frozen=True, slots=True)
class _Field:
    """SQL for a field: JSON type, value, and rows of its elements."""

    type: Condition
    value: Condition
    elements: Condition
    kind: Kind | None = None
    """Type of the values, if known in advance."""

    def is_any(self, values: Iterable[Value]) -> Condition:
        """Return a condition that the value is one of these."""
        conditions = []
        for kind, values_of_kind in self.group_by_kind(values):
            if kind == "boolean":
                conditions.append(_format_sql("{} IN {}", self.type, self._placeholders(values_of_kind)))
            else:
                is_in = _format_sql("{} IN {}", self.value, self._placeholders(values_of_kind))
                conditions.append(_join("AND", [self.is_kind(kind), is_in]))
        return _join("OR", conditions)

    def is_kind(self, kind: str) -> Condition:
        """Return a condition that the value is comparable with a value of this kind."""
        if self.kind:
            return _ALWAYS
        return _format_sql("{} = 'text'" if kind == "text" else "{} IN ('integer', 'real')", self.type)

    def compare(self, operator: str, value: Value) -> Condition:
        """Return a comparison of the value with another."""
        ((kind, (other,)),) = self.group_by_kind([value])
        if kind == "boolean":
            raise _Invalid("must be a text or a number")
        comparison = _format_sql(f"{{}} {operator} {{}}", self.value, self._placeholders([other]))
        return _join("AND", [self.is_kind(kind), comparison])

    def count_matching_elements(self, kind: str, values_of_kind: list[Parameter]) -> Condition:
        """Return SQL that counts the distinct values found among the elements."""
        what = "type" if kind == "boolean" else "value"
        same_kind = {"boolean": "1", "text": "e.type = 'text'"}.get(kind, "e.type IN ('integer', 'real')")
        query = f"(SELECT count(DISTINCT e.{what}) FROM {{}} e WHERE {same_kind} AND e.{what} IN {{}})"
        return _format_sql(query, self.elements, self._placeholders(values_of_kind))

    def group_by_kind(self, values: Iterable[Value]) -> list[tuple[str, list[Parameter]]]:
        """Group values into texts, numbers, and booleans by SQLite's names for them."""
        wanted = "number" if self.kind == "number" else "text"
        kinds: dict[str, dict[Parameter, None]] = {}
        for value in values:
            kind, parameter = _classify_value(value)
            if self.kind and kind != wanted:
                raise _Invalid(f"must be a {wanted}, as the field is, not {value!r}")
            kinds.setdefault(kind, {})[_to_utc(value) if self.kind == "time" else parameter] = None
        return [(kind, list(values_of_kind)) for kind, values_of_kind in kinds.items()]

    def _placeholders(self, values: list[Parameter]) -> Condition:
        placeholder = _TIME_SQL.format("?") if self.kind == "time" else "?"
        return Condition(f"({', '.join([placeholder] * len(values))})", values)


def _resolve_field(name: str) -> _Field:
    if name in FIELDS:
        return _make_column_field(*FIELDS[name])
    if name in UNKNOWN_FIELDS:
        raise _Invalid(f"can't be filtered: {UNKNOWN_FIELDS[name]}; metadata of this name is metadata.{name}")
    names = name.removeprefix(METADATA).split(".")
    if not all(names) or len(names) > MAX_DEPTH:
        raise _Invalid(f"must be a field or the name of metadata, with at most {MAX_DEPTH} parts and none empty")
    for part in names:
        _require_text(part)
    plain = all(_PLAIN_NAME.fullmatch(part) for part in names)
    return _make_path_field(names) if plain else _make_nested_field(names)


def _make_column_field(column: str, kind: Kind) -> _Field:
    value = _TIME_SQL.format(column) if kind == "time" else column
    type = "'integer'" if kind == "number" else "'text'"
    elements = f"(SELECT {type} AS type, {value} AS value)"
    return _Field(Condition(f"iif({column} IS NULL, NULL, {type})"), Condition(value), Condition(elements), kind)


def _make_path_field(names: Sequence[str]) -> _Field:
    path: list[Parameter] = ["$" + "".join(f'."{name}"' for name in names)]
    # The members of an object aren't its elements.
    members = "iif(json_type(d.metadata, ?) = 'object', '[]', d.metadata)"
    return _Field(
        Condition("json_type(d.metadata, ?)", path),
        Condition("json_extract(d.metadata, ?)", path),
        Condition(f"json_each({members}, ?)", path * 2),
    )


def _make_nested_field(names: Sequence[str]) -> _Field:
    """Return a field for names that a JSON path can't express, such as one with a quote. Slower."""
    rows = _format_sql("(SELECT type, value FROM json_each(d.metadata) WHERE key = {})", Condition("?", [names[0]]))
    for name in names[1:]:
        inner = "iif(o.type = 'object', o.value, '{{}}')"
        rows = _format_sql(
            f"(SELECT i.type, i.value FROM {{}} o, json_each({inner}) i WHERE i.key = {{}})",
            rows,
            Condition("?", [name]),
        )
    elements = (
        "(SELECT i.type, i.value FROM {} o, json_each(CASE o.type WHEN 'array' THEN o.value ELSE '[]' END) i "
        "UNION ALL SELECT type, value FROM {} WHERE type NOT IN ('array', 'object'))"
    )
    return _Field(
        _format_sql("(SELECT type FROM {})", rows),
        _format_sql("(SELECT value FROM {})", rows),
        _format_sql(elements, rows, rows),
    )


def _equal(field: _Field, value: Any) -> Condition:
    if value is None:
        return _format_sql("coalesce({}, 'null') = 'null'", field.type)
    if isinstance(value, list):
        raise _Invalid("must be a single value; for lists there are $in, $overlap and $contains")
    return field.is_any([value])


def _in(field: _Field, value: Any) -> Condition:
    values = _require_list(value)
    present = [each for each in values if each is not None]
    conditions = [_equal(field, None)] if len(present) < len(values) else []
    return _join("OR", [*conditions, field.is_any(present)])


def _not(operation: Callable[[_Field, Any], Condition]) -> Callable[[_Field, Any], Condition]:
    return lambda field, value: _format_sql("({}) IS NOT TRUE", operation(field, value))


def _compare(operator: str) -> Callable[[_Field, Any], Condition]:
    return lambda field, value: field.compare(operator, value)


def _overlap(field: _Field, value: Any) -> Condition:
    """Match if any of the values is among the elements. A scalar counts as an array of one."""
    kinds = field.group_by_kind(_require_list(value))
    return _join("OR", [_format_sql("{} > 0", field.count_matching_elements(kind, values)) for kind, values in kinds])


def _contains(field: _Field, value: Any) -> Condition:
    """Match if all of the values are among the elements."""
    kinds = field.group_by_kind(_require_list(value))
    counts = [(len(values), field.count_matching_elements(kind, values)) for kind, values in kinds]
    return _join("AND", [_format_sql(f"{{}} = {wanted}", found) for wanted, found in counts])


def _like(*, any_case: bool) -> Callable[[_Field, Any], Condition]:
    def compile_like(field: _Field, value: Any) -> Condition:
        if not isinstance(value, str) or field.kind == "number":
            raise _Invalid("must be a text with % and _, on a field that is a text")
        pattern = Condition("?", [_to_glob(_require_text(value), any_case=any_case)])
        return _join("AND", [field.is_kind("text"), _format_sql("{} GLOB {}", field.value, pattern)])

    return compile_like


def _to_glob(pattern: str, *, any_case: bool) -> str:
    """Convert a pattern with % and _ to GLOB, which is case-sensitive. LIKE ignores case for ASCII letters only."""
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == "\\":
            parts.append(_escape_literal(next(characters, character), any_case))
        else:
            parts.append({"%": "*", "_": "?"}.get(character) or _escape_literal(character, any_case))
    return "".join(parts)


def _escape_literal(character: str, any_case: bool) -> str:
    if character in "*?[":
        return f"[{character}]"
    cases = {character, character.lower(), character.upper()} if any_case else {character}
    letters = sorted(case for case in cases if len(case) == 1)
    return f"[{''.join(letters)}]" if len(letters) > 1 else character


_JUNCTIONS = {"$and": "AND", "$or": "OR"}

_OPERATORS: Mapping[str, Callable[[_Field, Any], Condition]] = {
    "$eq": _equal,
    "$ne": _not(_equal),
    "$in": _in,
    "$nin": _not(_in),
    "$gt": _compare(">"),
    "$gte": _compare(">="),
    "$lt": _compare("<"),
    "$lte": _compare("<="),
    "$like": _like(any_case=False),
    "$ilike": _like(any_case=True),
    "$overlap": _overlap,
    "$contains": _contains,
    "$array_contains": _contains,
}

_ALWAYS, _NEVER = Condition("1"), Condition("0")


def _join(word: str, conditions: Sequence[Condition]) -> Condition:
    """Join conditions by AND or OR. An empty AND is true, an empty OR is false."""
    conditions = [condition for condition in conditions if word == "OR" or condition != _ALWAYS]
    if not conditions:
        return _ALWAYS if word == "AND" else _NEVER
    if len(conditions) == 1:
        return conditions[0]
    return _format_sql(f"({f' {word} '.join(['{}'] * len(conditions))})", *conditions)


def _format_sql(template: str, *parts: Condition) -> Condition:
    """Insert conditions into a template and concatenate their parameters in the same order."""
    return Condition(
        template.format(*(part.sql for part in parts)), [value for part in parts for value in part.parameters]
    )


def _require_list(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not 0 < len(values) <= MAX_VALUES:
        raise _Invalid(f"must be a list of 1 to {MAX_VALUES:,} values")
    return values


def _classify_value(value: Any) -> tuple[str, Parameter]:
    """Return a value's kind, and the value as an SQLite parameter."""
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, str):
        return "text", _require_text(value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return "number", value
    if isinstance(value, float) and math.isfinite(value):
        return "number", value
    raise _Invalid("must be a text, a number of at most 64 bits, true or false")


def _require_text(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise _Invalid(f"must have at most {MAX_TEXT:,} characters")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise _Invalid("must be valid Unicode text without NUL")
    return text


def _to_utc(value: Any) -> str:
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise _Invalid("must be a date or time as in 2026-01-31 or 2026-01-31T12:00:00Z") from error


def _describe_unknown(name: str, known: Mapping[str, object]) -> str:
    nearest = nearest_name(name, list(known))
    hint = f"did you mean {nearest}?" if nearest else f"known are {', '.join(known)}"
    return f"unknown operator; {hint}"
