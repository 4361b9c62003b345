"""Arguments in other forms that models send: synonyms, numbers as text, null."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from pydantic import Field

from refdesk.app import Desk
from refdesk.calls import LOCAL, Call
from refdesk.errors import InvalidArguments
from refdesk.tools.json_schema import Arguments
from refdesk.tools.lenient_arguments import SYNONYMS
from refdesk.tools.registry import Tool

pytestmark = pytest.mark.anyio


class Inner(Arguments):
    weight: Annotated[float | None, Field(ge=0, le=1)] = None
    depth: int = 1


class Lookup(Arguments):
    query: Annotated[str, Field(min_length=1)]
    max_results: Annotated[int, Field(ge=1, le=20)] = 5
    doc_type: str = "all"
    doc_id: str | list[str] | None = None
    is_exact: bool = False
    tags: Annotated[list[str], Field(default_factory=list)]
    inner: Inner | None = None


async def look_up(arguments: dict[str, Any]) -> dict[str, Any]:
    async def answer(validated: Lookup, call: Call) -> dict[str, Any]:
        return validated.model_dump(exclude_unset=True)

    tool = Tool("look_up", "Look up", "Looks things up.", "docs", Lookup, answer)
    return await tool(arguments, Call("tools/call", caller=LOCAL))


async def find_problems(arguments: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidArguments) as error:
        await look_up(arguments)
    return [(problem.argument, problem.rule) for problem in error.value.problems]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"question": "a"}, {"query": "a"}),
        ({"query": "a", "limit": 3}, {"query": "a", "max_results": 3}),
        ({"query": "a", "collection_id": "b"}, {"query": "a", "doc_type": "b"}),
        ({"query": "a", "collection": "b"}, {"query": "a", "doc_type": "b"}),
        ({"query": "a", "document_id": "b"}, {"query": "a", "doc_id": "b"}),
        ({"query": "a", "handle": ["b"]}, {"query": "a", "doc_id": ["b"]}),
        ({"query": "a", "id": "b"}, {"query": "a", "doc_id": "b"}),
        ({"query": "a", "question": "a"}, {"query": "a"}),
        ({"query": "a", "question": None}, {"query": "a"}),
        ({"query": None, "question": "a"}, {"query": "a"}),
        ({"question": "a", "limit": "3"}, {"query": "a", "max_results": 3}),
    ],
)
async def test_synonym_is_taken_for_the_listed_argument(given: dict[str, Any], meant: dict[str, Any]) -> None:
    assert await look_up(given) == meant


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"max_results": "3"}, {"max_results": 3}),
        ({"max_results": " 3 "}, {"max_results": 3}),
        ({"max_results": 3.0}, {"max_results": 3}),
        ({"max_results": "3.0"}, {"max_results": 3}),
        ({"max_results": None}, {}),
        ({"doc_type": None, "is_exact": None, "tags": None}, {}),
        ({"is_exact": "true"}, {"is_exact": True}),
        ({"is_exact": "False"}, {"is_exact": False}),
        ({"tags": "new"}, {"tags": ["new"]}),
        ({"collection_id": ["b"]}, {"doc_type": "b"}),
        ({"doc_id": "b"}, {"doc_id": "b"}),
        ({"inner": {"weight": "0.5", "depth": 2.0}}, {"inner": {"weight": 0.5, "depth": 2}}),
        ({"inner": {"weight": 1, "depth": None}}, {"inner": {"weight": 1.0}}),
    ],
)
async def test_value_of_another_type_is_converted_if_it_is_unambiguous(
    given: dict[str, Any], meant: dict[str, Any]
) -> None:
    assert await look_up({"query": "a", **given}) == {"query": "a", **meant}


@pytest.mark.parametrize(
    ("given", "argument", "rule"),
    [
        ({"max_results": 3.5}, "max_results", "must be an integer"),
        ({"max_results": "3.5"}, "max_results", "must be an integer"),
        ({"max_results": "abc"}, "max_results", "must be an integer"),
        ({"max_results": ""}, "max_results", "must be an integer"),
        ({"max_results": "٣"}, "max_results", "must be an integer"),
        ({"max_results": True}, "max_results", "must be an integer"),
        ({"max_results": 1e300}, "max_results", "must be an integer"),
        ({"max_results": "50"}, "max_results", "must be at most 20"),
        ({"limit": 50}, "max_results", "must be at most 20"),
        ({"is_exact": "maybe"}, "is_exact", "must be true or false"),
        ({"is_exact": 1}, "is_exact", "must be true or false"),
        ({"inner": {"weight": "nan"}}, "inner.weight", "must be a number"),
        ({"query": None}, "query", "is required"),
        ({"query": 5}, "query", "must be a string"),
        ({"collection_id": ["a", "b"]}, "doc_type", "must be a string"),
        ({"tags": [None]}, "tags.0", "must be a string"),
        ({"max_result": 3}, "max_result", "unknown argument; did you mean max_results?"),
        ({"max_result": None}, "max_result", "unknown argument; did you mean max_results?"),
    ],
)
async def test_other_values_are_refused_under_the_listed_name(given: dict[str, Any], argument: str, rule: str) -> None:
    assert await find_problems({"query": "a", **given}) == [(argument, rule)]


async def test_different_values_for_synonyms_are_refused() -> None:
    given = {"query": "a", "question": "b", "max_results": 3, "limit": 3}
    assert await find_problems(given) == [("query", "has another value than its synonym question; give only query")]
    assert await find_problems({"query": "a", "id": "b", "handle": "c"}) == [
        ("doc_id", "has another value than its synonym id; give only doc_id")
    ]


async def test_arguments_of_the_call_stay_as_they_were() -> None:
    given: dict[str, Any] = {"question": "a", "limit": "3", "inner": {"weight": None, "depth": "2"}}
    await look_up(given)
    assert given == {"question": "a", "limit": "3", "inner": {"weight": None, "depth": "2"}}


async def test_no_tool_lists_two_synonyms(desk: Desk) -> None:
    for tool in desk.registry.tools.values():
        for group in SYNONYMS:
            assert len(set(group) & set(tool.input_schema["properties"])) <= 1


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("search_documentation", {"question": "start the server", "limit": "2", "collection": "refdesk"}),
        ("r2r_search", {"question": "start the server", "max_results": 2.0, "doc_type": "refdesk", "filters": None}),
        ("r2r_rag_query", {"query": "How do I start the server?", "collection": "refdesk", "include_sources": "true"}),
        ("get_document", {"doc_id": "refdesk/index.md", "max_tokens": "500", "cursor": None}),
        ("read_doc_metadata", {"document_id": "refdesk/index.md"}),
        ("doc_local_search", {"id": "refdesk/index.md", "question": "start", "limit": "1"}),
        ("r2r_list_documents", {"doc_type": "refdesk", "max_results": "3"}),
        ("r2r_list_collections", {"max_results": 3}),
        ("r2r_monitor_task", {"handle": "refdesk/index.md", "wait_seconds": "0"}),
    ],
)
async def test_every_tool_accepts_synonyms(desk: Desk, tool: str, arguments: dict[str, Any]) -> None:
    answer = await desk.call(tool, arguments)
    assert not answer.is_error, answer.text
