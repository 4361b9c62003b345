"""R2R's filter language, compiled to a condition in SQL.

    {"author": "Ann", "metadata.year": {"$gte": 2020}, "$or": [{"tags": {"$contains": "sql"}}, {"version": "15"}]}

Pure: a filter in, SQL over the documents `d` and their collections `c` out. What a stranger wrote, the names of
metadata among it, only ever becomes a parameter. Numbers compare with numbers and texts with texts; a value of
another kind, or none, equals nothing. `null` stands for a value that is not there.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from refdesk.errors import InvalidArguments, Problem
from refdesk.validation import MAX_PROBLEMS, nearest_name, shortened

MAX_DEPTH = 10
"""How deep filters, and the names of metadata, may nest."""

MAX_CONDITIONS = 100
"""In one filter; SQLite bounds the depth of an expression at a thousand."""

MAX_VALUES = 1000
"""In one list."""

MAX_PARAMETERS = 10_000
"""In one filter; SQLite takes three times as many."""

MAX_TEXT = 2000
"""Characters of one text."""

Kind = Literal["text", "number", "time"]

_STATUS = "CASE d.stage WHEN 'indexing' THEN 'converting' WHEN 'finishing' THEN 'embedding' ELSE d.stage END"

FIELDS: Mapping[str, tuple[str, Kind]] = {
    "document_id": ("d.id", "text"),
    "title": ("d.title", "text"),
    "collection_id": ("c.id", "text"),
    "collection_ids": ("c.id", "text"),
    "doc_type": ("c.id", "text"),
    "version": ("coalesce(nullif(d.version, ''), substr(d.digest, 1, 12))", "text"),
    "media_type": ("d.media_type", "text"),
    "size_bytes": ("d.size_bytes", "number"),
    "created_at": ("d.created_at", "time"),
    "updated_at": ("d.updated_at", "time"),
    "status": (_STATUS, "text"),
    "ingestion_status": (_STATUS, "text"),
    "source": ("CASE d.kind WHEN 'url' THEN d.source ELSE d.id END", "text"),
}
"""What can be asked of a document itself, as a hit shows it; any other name is one of its metadata."""

METADATA = "metadata."

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_ -]+")
"""Names that are written alike in JSON, in a JSON path and in a filter."""

_MOMENT = "strftime('%Y-%m-%dT%H:%M:%f', {})"
"""One way to write a time, in UTC, whatever the way in which it was stored or asked for."""

Value = str | int | float | bool
Parameter = str | int | float


@dataclass(frozen=True, slots=True)
class Condition:
    """A piece of SQL and the values of its question marks."""

    sql: str
    parameters: list[Parameter] = field(default_factory=list)


def compile_filter(filters: Mapping[str, Any]) -> Condition:
    """The condition that the documents meet which this filter asks for; everything that is wrong with it at once."""
    compilation = _Compilation()
    condition = compilation.all_of(filters, "filters", 1)
    if compilation.problems:
        raise InvalidArguments(compilation.problems[:MAX_PROBLEMS])
    if len(condition.parameters) > MAX_PARAMETERS:
        raise InvalidArguments([Problem("filters", f"must have at most {MAX_PARAMETERS:,} values in all")])
    return condition


class _Invalid(Exception):
    """The rule that a part of a filter breaks."""


class _Compilation:
    """One filter on its way to SQL."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._conditions = 0

    def all_of(self, filters: Any, path: str, depth: int) -> Condition:
        """The conditions of one object, which hold together."""
        if not isinstance(filters, Mapping):
            return self._problem(path, "must be an object")
        if depth > MAX_DEPTH:
            return self._problem(path, f"must not nest deeper than {MAX_DEPTH}")
        return _joined("AND", [self._entry(str(name), value, path, depth) for name, value in filters.items()])

    def _entry(self, name: str, value: Any, path: str, depth: int) -> Condition:
        path = f"{path}.{shortened(name)}"
        if name in _JUNCTIONS:
            return self._junction(name, value, path, depth)
        if name in _OPERATORS:
            return self._problem(path, f'must stand below a field, as in {{"author": {{"{name}": …}}}}')
        if name.startswith("$"):
            return self._problem(path, _unknown(name, _JUNCTIONS))
        return self._field(name, value, path)

    def _junction(self, name: str, value: Any, path: str, depth: int) -> Condition:
        if not isinstance(value, list) or not value:
            return self._problem(path, "must be a list of at least one object")
        if len(value) > MAX_CONDITIONS:
            return self._problem(path, f"must have at most {MAX_CONDITIONS} conditions")
        return _joined(
            _JUNCTIONS[name], [self.all_of(each, f"{path}.{number}", depth + 1) for number, each in enumerate(value)]
        )

    def _field(self, name: str, value: Any, path: str) -> Condition:
        if not isinstance(value, Mapping):
            return self._operation(name, "$eq", value, path)
        if not value:
            return self._problem(path, f"must have an operator: {', '.join(_OPERATORS)}")
        return _joined(
            "AND",
            [self._operation(name, str(key), each, f"{path}.{shortened(str(key))}") for key, each in value.items()],
        )

    def _operation(self, name: str, operator: str, value: Any, path: str) -> Condition:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            return self._problem("filters", f"must have at most {MAX_CONDITIONS} conditions")
        if operator not in _OPERATORS:
            return self._problem(path, _unknown(operator, _OPERATORS))
        try:
            return _OPERATORS[operator](_field(name), value)
        except _Invalid as invalid:
            return self._problem(path, str(invalid))

    def _problem(self, path: str, rule: str) -> Condition:
        """Note it, and go on: whoever wrote the filter is told everything at once."""
        problem = Problem(path, rule)
        if problem not in self.problems:
            self.problems.append(problem)
        return _NEVER


@dataclass(frozen=True, slots=True)
class _Field:
    """How SQL gets at a field: the kind of its value in JSON's words, the value, and the rows of its elements."""

    type: Condition
    value: Condition
    elements: Condition
    kind: Kind | None = None
    """What its values are, when that is known beforehand."""

    def is_any(self, values: Iterable[Value]) -> Condition:
        """Whether the value is one of these."""
        return _joined("OR", [self._is(kind, among) for kind, among in self.by_kind(values)])

    def _is(self, kind: str, among: list[Parameter]) -> Condition:
        if kind == "boolean":
            return _sql("{} IN {}", self.type, _list(among))
        return _joined("AND", [self.is_kind(kind), _sql("{} IN {}", self.value, self._list(among))])

    def is_kind(self, kind: str) -> Condition:
        """Whether the value is of a kind that can be compared with one of this kind."""
        if self.kind:
            return _ALWAYS
        return _sql("{} = 'text'" if kind == "text" else "{} IN ('integer', 'real')", self.type)

    def compared(self, operator: str, value: Value) -> Condition:
        """Whether the value stands in this order to the other."""
        ((kind, (other,)),) = self.by_kind([value])
        if kind == "boolean":
            raise _Invalid("must be a text or a number")
        comparison = _sql(f"{{}} {operator} {{}}", self.value, self._parameter(other))
        return _joined("AND", [self.is_kind(kind), comparison])

    def elements_among(self, kind: str, among: list[Parameter]) -> Condition:
        """How many different ones of these are among the elements."""
        what = "type" if kind == "boolean" else "value"
        same_kind = {"boolean": "1", "text": "e.type = 'text'"}.get(kind, "e.type IN ('integer', 'real')")
        query = f"(SELECT count(DISTINCT e.{what}) FROM {{}} e WHERE {same_kind} AND e.{what} IN {{}})"
        return _sql(query, self.elements, self._list(among))

    def by_kind(self, values: Iterable[Value]) -> list[tuple[str, list[Parameter]]]:
        """The values apart: texts, numbers, and booleans by the names that SQLite has for them."""
        kinds: dict[str, dict[Parameter, None]] = {}
        for value in values:
            kind, parameter = _parameter(value)
            self._require(kind, value)
            kinds.setdefault(kind, {})[_utc(value) if self.kind == "time" else parameter] = None
        return [(kind, list(among)) for kind, among in kinds.items()]

    def _require(self, kind: str, value: Value) -> None:
        wanted = "number" if self.kind == "number" else "text"
        if self.kind and kind != wanted:
            raise _Invalid(f"must be a {wanted}, as the field is, not {value!r}")

    def _parameter(self, value: Parameter) -> Condition:
        return Condition(_MOMENT.format("?") if self.kind == "time" else "?", [value])

    def _list(self, values: list[Parameter]) -> Condition:
        if self.kind == "time":
            return Condition(f"({', '.join([_MOMENT.format('?')] * len(values))})", values)
        return _list(values)


def _field(name: str) -> _Field:
    if name in FIELDS:
        return _column(*FIELDS[name])
    names = name.removeprefix(METADATA).split(".")
    if not all(names) or len(names) > MAX_DEPTH:
        raise _Invalid(f"must be a field or the name of metadata, with at most {MAX_DEPTH} parts and none empty")
    for part in names:
        _require_text(part)
    plain = all(_PLAIN_NAME.fullmatch(part) for part in names)
    return _metadata_by_path(names) if plain else _metadata_by_walking(names)


def _column(column: str, kind: Kind) -> _Field:
    value = _MOMENT.format(column) if kind == "time" else column
    type = "'integer'" if kind == "number" else "'text'"
    elements = f"(SELECT {type} AS type, {value} AS value)"
    return _Field(Condition(f"iif({column} IS NULL, NULL, {type})"), Condition(value), Condition(elements), kind)


def _metadata_by_path(names: Sequence[str]) -> _Field:
    path: list[Parameter] = ["$" + "".join(f'."{name}"' for name in names)]
    # An object's members are not its elements.
    members = "iif(json_type(d.metadata, ?) = 'object', '[]', d.metadata)"
    return _Field(
        Condition("json_type(d.metadata, ?)", path),
        Condition("json_extract(d.metadata, ?)", path),
        Condition(f"json_each({members}, ?)", path * 2),
    )


def _metadata_by_walking(names: Sequence[str]) -> _Field:
    """The same for names that a JSON path cannot say, such as one with a quote; slower."""
    rows = _sql("(SELECT type, value FROM json_each(d.metadata) WHERE key = {})", Condition("?", [names[0]]))
    for name in names[1:]:
        inner = "iif(o.type = 'object', o.value, '{{}}')"
        rows = _sql(
            f"(SELECT i.type, i.value FROM {{}} o, json_each({inner}) i WHERE i.key = {{}})",
            rows,
            Condition("?", [name]),
        )
    elements = (
        "(SELECT i.type, i.value FROM {} o, json_each(CASE o.type WHEN 'array' THEN o.value ELSE '[]' END) i "
        "UNION ALL SELECT type, value FROM {} WHERE type NOT IN ('array', 'object'))"
    )
    return _Field(_sql("(SELECT type FROM {})", rows), _sql("(SELECT value FROM {})", rows), _sql(elements, rows, rows))


def _equal(field: _Field, value: Any) -> Condition:
    if value is None:
        return _sql("coalesce({}, 'null') = 'null'", field.type)
    if isinstance(value, list):
        raise _Invalid("must be a single value; for lists there are $in, $overlap and $contains")
    return field.is_any([value])


def _in(field: _Field, value: Any) -> Condition:
    values = _values(value)
    present = [each for each in values if each is not None]
    conditions = [_equal(field, None)] if len(present) < len(values) else []
    return _joined("OR", [*conditions, field.is_any(present)])


def _not(operation: Callable[[_Field, Any], Condition]) -> Callable[[_Field, Any], Condition]:
    return lambda field, value: _sql("({}) IS NOT TRUE", operation(field, value))


def _ordered(operator: str) -> Callable[[_Field, Any], Condition]:
    return lambda field, value: field.compared(operator, value)


def _overlap(field: _Field, value: Any) -> Condition:
    """Whether one of the values is among the elements; what is no array counts as an array of one."""
    kinds = field.by_kind(_values(value))
    return _joined("OR", [_sql("{} > 0", field.elements_among(kind, among)) for kind, among in kinds])


def _contains(field: _Field, value: Any) -> Condition:
    """Whether all of the values are among the elements."""
    kinds = field.by_kind(_values(value))
    return _joined("AND", [_sql(f"{{}} = {len(among)}", field.elements_among(kind, among)) for kind, among in kinds])


def _like(*, any_case: bool) -> Callable[[_Field, Any], Condition]:
    def compiled(field: _Field, value: Any) -> Condition:
        if not isinstance(value, str) or field.kind == "number":
            raise _Invalid("must be a text with % and _, on a field that is a text")
        pattern = Condition("?", [_glob(_require_text(value), any_case=any_case)])
        return _joined("AND", [field.is_kind("text"), _sql("{} GLOB {}", field.value, pattern)])

    return compiled


def _glob(pattern: str, *, any_case: bool) -> str:
    """A pattern with % and _ in the words of GLOB, which tells cases apart; LIKE does so for no letter beyond ASCII."""
    parts, characters = [], iter(pattern)
    for character in characters:
        if character == "\\":
            parts.append(_literal(next(characters, character), any_case))
        else:
            parts.append({"%": "*", "_": "?"}.get(character) or _literal(character, any_case))
    return "".join(parts)


def _literal(character: str, any_case: bool) -> str:
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
    "$gt": _ordered(">"),
    "$gte": _ordered(">="),
    "$lt": _ordered("<"),
    "$lte": _ordered("<="),
    "$like": _like(any_case=False),
    "$ilike": _like(any_case=True),
    "$overlap": _overlap,
    "$contains": _contains,
    "$array_contains": _contains,
}

_ALWAYS, _NEVER = Condition("1"), Condition("0")


def _joined(word: str, conditions: Sequence[Condition]) -> Condition:
    """All of the conditions or any of them; of none, all hold and not one does."""
    conditions = [condition for condition in conditions if word == "OR" or condition != _ALWAYS]
    if not conditions:
        return _ALWAYS if word == "AND" else _NEVER
    if len(conditions) == 1:
        return conditions[0]
    return _sql(f"({f' {word} '.join(['{}'] * len(conditions))})", *conditions)


def _sql(template: str, *parts: Condition) -> Condition:
    """The parts put into the places that the template has for them, and their values in the same order."""
    return Condition(
        template.format(*(part.sql for part in parts)), [value for part in parts for value in part.parameters]
    )


def _list(values: list[Parameter]) -> Condition:
    return Condition(f"({', '.join('?' * len(values))})", values)


def _values(value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not 0 < len(values) <= MAX_VALUES:
        raise _Invalid(f"must be a list of 1 to {MAX_VALUES:,} values")
    return values


def _parameter(value: Any) -> tuple[str, Parameter]:
    """A single value's kind, and the value as SQLite takes it."""
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


def _utc(value: Any) -> str:
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    except (ValueError, OverflowError) as error:
        raise _Invalid("must be a date or time as in 2026-01-31 or 2026-01-31T12:00:00Z") from error


def _unknown(name: str, known: Mapping[str, object]) -> str:
    nearest = nearest_name(name, list(known))
    hint = f"did you mean {nearest}?" if nearest else f"known are {', '.join(known)}"
    return f"unknown operator; {hint}"
