"""Filters find the documents that their plain reading says, whatever is in them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refdesk.engines.storage.filters import MAX_CONDITIONS, MAX_DEPTH, MAX_VALUES, compile_filter
from refdesk.errors import InvalidArguments

COLUMNS = (
    "id title collection version digest media_type size_bytes chunks created_at updated_at stage kind source metadata"
).split()
DOCUMENT: dict[str, Any] = {
    "id": "postgresql/indexes.html",
    "title": "Indexes",
    "collection": "postgresql",
    "version": "15",
    "media_type": "text/html",
    "size_bytes": 1200,
    "chunks": 3,
    "created_at": "2026-01-31T12:00:00+00:00",
    "updated_at": "2026-02-01T08:30:00.250000+00:00",
    "digest": "0123456789abcdef",
    "stage": "success",
    "kind": "url",
    "source": None,
    "metadata": {},
}


def find_documents(filters: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> list[int]:
    """The numbers of the documents that a filter finds in a database of them."""
    condition = compile_filter(filters)
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE collections (key INTEGER PRIMARY KEY, id TEXT)")
        database.execute(
            "CREATE TABLE documents (key INTEGER PRIMARY KEY, collection INTEGER, id TEXT, title TEXT, version TEXT, "
            "media_type TEXT, size_bytes INTEGER, chunks INTEGER, created_at TEXT, updated_at TEXT, stage TEXT, "
            "source TEXT, metadata TEXT, digest TEXT, kind TEXT)"
        )
        for number, document in enumerate(documents):
            row = {**DOCUMENT, **document, "key": number}
            database.execute("INSERT INTO collections VALUES (?, ?)", (number, row["collection"]))
            names = ["key", *COLUMNS]
            row |= {"collection": number, "metadata": json.dumps(row["metadata"])}
            sql = f"INSERT INTO documents ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
            database.execute(sql, [row[name] for name in names])
        rows = database.execute(
            "SELECT d.key FROM documents d JOIN collections c ON c.key = d.collection "
            f"WHERE {condition.sql} ORDER BY d.key",
            condition.parameters,
        ).fetchall()
    database.close()
    return [key for (key,) in rows]


def matches(filters: Mapping[str, Any], **metadata: Any) -> bool:
    """Whether a filter finds a document with these metadata."""
    return find_documents(filters, [{"metadata": metadata}]) == [0]


def test_an_empty_filter_finds_everything() -> None:
    assert find_documents({}, [{}, {}]) == [0, 1]


@pytest.mark.parametrize(
    "filters",
    [
        {"document_id": "postgresql/indexes.html"},
        {"title": {"$like": "Ind%"}},
        {"collection_id": {"$in": ["postgresql", "ubuntu"]}},
        {"collection_ids": {"$overlap": ["postgresql", "ubuntu"]}},
        {"doc_type": "postgresql"},
        {"version": {"$eq": "15"}},
        {"media_type": {"$ne": "application/pdf"}},
        {"size_bytes": {"$gt": 1199, "$lt": 1200.5}},
        {"created_at": {"$gte": "2026-01-31"}},
        {"created_at": "2026-01-31T13:00:00+01:00"},
        {"updated_at": {"$lt": "2026-02-01T08:30:00.3Z", "$gt": "2026-02-01T08:30:00.2Z"}},
        {"updated_at": {"$like": "2026-02-%"}},
        {"status": "success", "ingestion_status": {"$nin": ["failed"]}},
        {"id": "postgresql/indexes.html", "document_type": {"$eq": "html"}, "size_in_bytes": {"$lte": 1200}},
        {"extraction_status": "success", "document_type": {"$like": "ht%"}},
        {"source": None},
        {"source": {"$ne": "https://example.org"}},
    ],
)
def test_every_field_of_a_document_can_be_asked_for(filters: dict[str, Any]) -> None:
    assert find_documents(filters, [{}]) == [0]


def test_a_document_of_another_collection_or_time_is_not_found() -> None:
    assert find_documents({"doc_type": "ubuntu"}, [{}]) == []
    assert find_documents({"created_at": {"$lt": "2026-01-31T12:00:00Z"}}, [{}]) == []
    assert find_documents({"source": {"$eq": "https://example.org"}}, [{}]) == []


def test_the_type_of_a_document_is_its_format_and_of_source_code_its_ending() -> None:
    code, table = {"id": "app/main.py", "media_type": "text/plain"}, {"id": "app/a.tsv", "media_type": "text/csv"}
    other = {"id": "app/x.md/1", "media_type": "application/pdf"}
    documents = [code, table, other, {"media_type": "text/plain"}, {"media_type": ""}]
    found = {type: find_documents({"document_type": type}, documents) for type in ("py", "tsv", "pdf", "txt", "csv")}
    assert found == {"py": [0], "tsv": [1], "pdf": [2], "txt": [3], "csv": []}
    assert find_documents({"document_type": None}, documents) == [4]


def test_metadata_are_asked_for_with_and_without_their_prefix() -> None:
    assert matches({"author": "Ann"}, author="Ann")
    assert matches({"metadata.author": {"$eq": "Ann"}}, author="Ann")
    assert matches({"metadata.review.by": "Bo"}, review={"by": "Bo"})
    assert matches({"metadata.title": "inside"}, title="inside")
    assert not matches({"title": "inside"}, title="inside")


def test_missing_metadata_are_unequal_to_everything_and_equal_to_null() -> None:
    matching: list[Any] = [{"$ne": "Ann"}, {"$nin": ["Ann", 1, True]}, None, {"$in": ["Ann", None]}]
    assert [operation for operation in matching if not matches({"author": operation})] == []
    others: list[Any] = [{"$eq": "Ann"}, {"$gt": 0}, {"$lt": "z"}, {"$like": "%"}, {"$contains": "x"}, {"$ne": None}]
    assert [operation for operation in others if matches({"author": operation})] == []


def test_numbers_texts_and_booleans_never_equal_each_other() -> None:
    assert matches({"year": 2020.0}, year=2020)
    assert not matches({"year": "2020"}, year=2020)
    assert not matches({"draft": 1}, draft=True)
    assert not matches({"draft": True}, draft=1)
    assert not matches({"draft": "true"}, draft=True)
    assert not matches({"year": {"$gt": "1"}}, year=2020)
    assert not matches({"tags": "a"}, tags=["a"])


def test_like_tells_cases_apart_and_ilike_does_not_in_any_script() -> None:
    assert matches({"name": {"$like": "Ünder%_[*?]"}}, name="Ünderground x[*?]".replace("round x", "x"))
    assert not matches({"name": {"$like": "ünder%"}}, name="Ünderground")
    assert matches({"name": {"$ilike": "ÜNDER%"}}, name="ünderground")
    assert matches({"name": {"$like": r"100\%"}}, name="100%")
    assert not matches({"name": {"$like": r"100\%"}}, name="1000")


def test_contains_wants_all_and_overlap_one_and_a_scalar_is_an_array_of_one() -> None:
    assert matches({"tags": {"$contains": ["a", 1, True]}}, tags=["b", "a", 1, True])
    assert not matches({"tags": {"$contains": ["a", "c"]}}, tags=["a", "b"])
    assert matches({"tags": {"$array_contains": "a"}}, tags="a")
    assert matches({"tags": {"$overlap": ["c", "a"]}}, tags=["a", "b"])
    assert not matches({"tags": {"$overlap": ["c", 1]}}, tags=["a", True])
    assert not matches({"tags": {"$overlap": ["a"]}}, tags={"key": "a"})


@pytest.mark.parametrize("name", ['a"b', "a'b", "ü", "a\\b", '$"x', "a]b", "') OR 1=1 --", "#-1", "[0]"])
def test_a_strange_name_is_that_name_and_nothing_else(name: str) -> None:
    assert matches({f"metadata.{name}": 1}, **{name: 1, "other": 2})
    assert not matches({f"metadata.{name}": 2}, **{name: 1, "other": 2})
    assert matches({f"metadata.in.{name}": {"$contains": 1}}, **{"in": {name: [1]}})
    assert not matches({f"metadata.in.{name}": {"$contains": 1}}, **{"in": "text"})


@pytest.mark.parametrize(
    ("filters", "argument", "rule"),
    [
        ({"author": {"$gtt": 1}}, "filters.author.$gtt", r"unknown operator; did you mean \$gte?\?"),
        ({"author": {"name": 1}}, "filters.author.name", "unknown operator"),
        ({"$nor": []}, "filters.$nor", r"unknown operator; did you mean \$or\?"),
        ({"$eq": 1}, "filters.$eq", "must stand below a field"),
        ({"author": {"$gt": True}}, "filters.author.$gt", "must be a text or a number"),
        ({"author": {"$gt": None}}, "filters.author.$gt", "must be a text, a number"),
        ({"author": ["Ann"]}, "filters.author", r"\$in"),
        ({"author": {"$in": []}}, "filters.author.$in", "1 to 1,000"),
        ({"author": {"$in": [0] * (MAX_VALUES + 1)}}, "filters.author.$in", "1 to 1,000"),
        ({"author": {}}, "filters.author", "must have an operator"),
        ({"author": {"$eq": {"a": 1}}}, "filters.author.$eq", "must be a text"),
        ({"author": 2**63}, "filters.author", "64 bits"),
        ({"author": float("nan")}, "filters.author", "must be a text"),
        ({"author": "\ud800"}, "filters.author", "Unicode"),
        ({"author": {"$like": 5}}, "filters.author.$like", "must be a text"),
        ({"size_bytes": "big"}, "filters.size_bytes", "must be a number"),
        ({"version": 15}, "filters.version", "must be a text, as the field is"),
        ({"created_at": {"$gt": "soon"}}, "filters.created_at.$gt", "2026-01-31"),
        ({"metadata.": 1}, "filters.metadata.", "none empty"),
        ({"$and": {"a": 1}}, "filters.$and", "must be a list"),
        ({"owner_id": "x"}, "filters.owner_id", "belong to a tenant; .* is metadata.owner_id"),
        ({"page_number": {"$gt": 3}}, "filters.page_number.$gt", "whole documents"),
        ({"$or": [{"a": 1}, 5]}, "filters.$or.1", "must be an object"),
        ({f"f{number}": 1 for number in range(MAX_CONDITIONS + 1)}, "filters", "at most 100 conditions"),
        ({"$or": [{f"f{n}": {"$in": list(range(900))}} for n in range(12)]}, "filters", "10,000"),
    ],
)
def test_a_wrong_filter_is_told_with_its_place_and_rule(filters: dict[str, Any], argument: str, rule: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        compile_filter(filters)
    (problem,) = caught.value.problems
    assert problem.argument == argument
    assert re.search(rule, problem.rule)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidArguments) as caught:
        compile_filter({"a": {"$gtt": 1}, "b": [], "c": {"$eq": 1}})
    assert [problem.argument for problem in caught.value.problems] == ["filters.a.$gtt", "filters.b"]


def test_nesting_has_an_end() -> None:
    filters: dict[str, Any] = {"a": 1}
    for _ in range(MAX_DEPTH - 1):
        filters = {"$and": [filters]}
    assert find_documents(filters, [{"metadata": {"a": 1}}]) == [0]
    with pytest.raises(InvalidArguments, match="must not nest deeper"):
        compile_filter({"$and": [filters]})


def test_the_largest_filter_is_one_that_the_database_takes() -> None:
    filters = {"$or": [{f"f{n}": {"$overlap": [f"v{v}" for v in range(90)]}} for n in range(MAX_CONDITIONS)]}
    assert find_documents(filters, [{"metadata": {"f99": ["v7"]}}]) == [0]


NAMES = st.sampled_from(["a", "b", 'q"', "é", "n.a", 'n.q"'])
TEXTS = st.text(st.sampled_from("aAbéÉ%_*?[]\\'\""), max_size=4)
SCALARS = TEXTS | st.integers(-3, 3) | st.sampled_from([0.5, -1.0, 2.0]) | st.booleans()
MEMBERS = st.dictionaries(
    st.sampled_from(["a", "b", 'q"', "é"]), SCALARS | st.none() | st.lists(SCALARS | st.none(), max_size=3), max_size=3
)
DOCUMENTS = st.builds(lambda members, inner: {**members, "n": inner}, MEMBERS, MEMBERS | SCALARS)
SOME = st.lists(SCALARS, min_size=1, max_size=4)
OPERATIONS = st.one_of(
    SCALARS,
    st.none(),
    st.builds(lambda o, v: {o: v}, st.sampled_from(["$eq", "$ne"]), SCALARS | st.none()),
    st.builds(lambda o, v: {o: v}, st.sampled_from(["$in", "$nin", "$overlap", "$contains", "$array_contains"]), SOME),
    st.builds(
        lambda o, v: {o: v}, st.sampled_from(["$gt", "$gte", "$lt", "$lte"]), TEXTS | st.integers(-3, 3) | st.just(0.5)
    ),
    st.builds(lambda o, v: {o: v}, st.sampled_from(["$like", "$ilike"]), TEXTS),
)
LEAVES = st.dictionaries(NAMES, OPERATIONS, min_size=1, max_size=2)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: st.builds(
        lambda leaf, junction, parts: {**leaf, junction: parts},
        LEAVES,
        st.sampled_from(["$and", "$or"]),
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(FILTERS, st.lists(DOCUMENTS, min_size=1, max_size=4))
def test_sql_finds_what_a_plain_reading_finds(filters: dict[str, Any], documents: list[dict[str, Any]]) -> None:
    expected = [number for number, metadata in enumerate(documents) if holds(filters, metadata)]
    assert find_documents(filters, [{"metadata": metadata} for metadata in documents]) == expected


def holds(filters: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    """The language as one would explain it."""
    return all(_holds(name, value, metadata) for name, value in filters.items())


def _holds(name: str, value: Any, metadata: Mapping[str, Any]) -> bool:
    if name in ("$and", "$or"):
        return (all if name == "$and" else any)(holds(each, metadata) for each in value)
    stored: Any = metadata
    for part in name.split("."):
        stored = stored.get(part) if isinstance(stored, dict) else None
    operations = value if isinstance(value, dict) else {"$eq": value}
    return all(EXPLAINED[operator](stored, other) for operator, other in operations.items())


def _same(stored: Any, other: Any) -> bool:
    return _kind(stored) == _kind(other) and bool(stored == other)


def _kind(value: Any) -> str:
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def _order(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda stored, other: _kind(stored) == _kind(other) and compare(stored, other)


def _is_like(flags: int) -> Callable[[Any, Any], bool]:
    def is_match(stored: Any, pattern: str) -> bool:
        if not isinstance(stored, str):
            return False
        pieces = re.findall(r"\\.|.", pattern, re.DOTALL)
        words = {"%": ".*", "_": "."}
        regex = "".join(words.get(piece) or re.escape(piece[-1]) for piece in pieces)
        return re.fullmatch(regex, stored, flags | re.DOTALL) is not None

    return is_match


def _elements(stored: Any) -> list[Any]:
    return stored if isinstance(stored, list) else [stored]


def _has(stored: Any, other: Any) -> bool:
    return any(_same(element, other) for element in _elements(stored))


EXPLAINED: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": _same,
    "$ne": lambda stored, other: not _same(stored, other),
    "$in": lambda stored, others: any(_same(stored, other) for other in others),
    "$nin": lambda stored, others: not any(_same(stored, other) for other in others),
    "$gt": _order(lambda stored, other: stored > other),
    "$gte": _order(lambda stored, other: stored >= other),
    "$lt": _order(lambda stored, other: stored < other),
    "$lte": _order(lambda stored, other: stored <= other),
    "$like": _is_like(0),
    "$ilike": _is_like(re.IGNORECASE),
    "$overlap": lambda stored, others: any(_has(stored, other) for other in others),
    "$contains": lambda stored, others: all(_has(stored, other) for other in others),
    "$array_contains": lambda stored, others: all(_has(stored, other) for other in others),
}
