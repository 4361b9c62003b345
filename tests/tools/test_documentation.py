"""The docs toolset through the library: what it finds, how much of it, and how one reads on."""

from __future__ import annotations

import pytest

from refdesk.app import Desk
from refdesk.calls import Caller, TenantId, UserId
from refdesk.engines.embedded import EmbeddedEngine, SourceDocument
from refdesk.engines.port import DocumentationSet
from refdesk.errors import InvalidArguments, UnknownTool

pytestmark = pytest.mark.anyio

LONG = "# Long\n\n" + "\n\n".join(f"## Part {n}\n\n" + f"Sentence about topic{n}. " * 60 for n in range(30))
ACME = Caller(user=UserId("ann"), tenant=TenantId("acme"), authenticated=True)
OTHER = Caller(user=UserId("bob"), tenant=TenantId("other"), authenticated=True)


@pytest.fixture
async def filled(desk: Desk) -> Desk:
    assert isinstance(desk.engine, EmbeddedEngine)
    entry = DocumentationSet("acme", "docs", "Acme handbook", "7.1", 0)
    documents = [
        SourceDocument("acme/long.md", LONG),
        SourceDocument("acme/max_connections.md", "# Limits\n\nSet `max_connections` to 100.\n"),
        SourceDocument("acme/secret.md", "# Secret plan\n\nThe xylophone launches at noon.\n"),
    ]
    await desk.engine.replace_set(TenantId("acme"), entry, documents)
    return desk


@pytest.mark.parametrize(
    ("question", "source"),
    [
        ("How do I start the server?", "refdesk/index.md"),
        ("connect Claude Code", "refdesk/how-to/connect-a-client.md"),
        ("require an API key", "refdesk/how-to/require-api-keys.md"),
        ("call it with curl", "refdesk/how-to/call-it-with-curl.md"),
        ("use it as a Python library", "refdesk/how-to/use-it-as-a-library.md"),
        ("MCP_API_KEY", "refdesk/how-to/require-api-keys.md"),
    ],
)
async def test_the_first_question_of_a_new_user_is_answered(desk: Desk, question: str, source: str) -> None:
    answer = await desk.call("search_documentation", {"query": question})
    assert source in [item["_meta"]["metadata"]["source"] for item in answer.result["content"][:3]]


async def test_the_best_match_comes_first_and_identifiers_are_found(filled: Desk) -> None:
    answer = await filled.call("search_documentation", {"query": "max_connections"}, caller=ACME)
    assert answer.result["content"][0]["_meta"]["metadata"]["source"] == "acme/max_connections.md"


async def test_words_are_found_in_any_form(filled: Desk) -> None:
    answer = await filled.call(
        "search_documentation", {"query": "launching xylophones", "doc_type": "acme"}, caller=ACME
    )
    assert answer.result["content"][0]["_meta"]["metadata"]["section"] == "Secret plan"


async def test_operators_and_quotes_in_a_query_are_only_words(filled: Desk) -> None:
    for query in ('"', "NEAR(", "a AND NOT b*", "col:umn", "'; DROP TABLE documents; --", "^x + - ( )", "\u0000x"):
        await filled.call("search_documentation", {"query": query}, caller=ACME)


async def test_a_query_without_a_word_finds_nothing_and_says_what_there_is(filled: Desk) -> None:
    answer = await filled.call("search_documentation", {"query": "?!"}, caller=ACME)
    assert not answer.is_error
    assert "acme, refdesk" in answer.text


async def test_one_section_is_shown_once(filled: Desk) -> None:
    answer = await filled.call("search_documentation", {"query": "sentence topic3", "max_results": 20}, caller=ACME)
    sections = [
        (item["_meta"]["metadata"]["source"], item["_meta"]["metadata"]["section"]) for item in answer.result["content"]
    ]
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize("max_tokens", [100, 500, 2000])
async def test_an_answer_keeps_to_its_budget_and_tells_what_it_left_out(filled: Desk, max_tokens: int) -> None:
    arguments = {"query": "sentence", "max_results": 20, "max_tokens": max_tokens, "doc_type": "acme"}
    answer = await filled.call("search_documentation", arguments, caller=ACME)
    assert len(answer.text) <= max_tokens * 4 + 300
    assert answer.result["_meta"]["tokens"] <= max(max_tokens, 100) + 75
    shown = len(answer.result["content"])
    assert shown + answer.result["_meta"]["omitted"] == 20
    assert f"({shown} result" in answer.text


async def test_the_default_answer_is_below_eight_kilobytes(filled: Desk) -> None:
    answer = await filled.call("search_documentation", {"query": "sentence", "max_results": 20}, caller=ACME)
    assert len(answer.text.encode()) < 8000


async def test_a_long_document_is_read_page_by_page_without_a_gap(filled: Desk) -> None:
    pages: list[str] = []
    arguments = {"document_id": "acme/long.md"}
    while True:
        item = (await filled.call("get_document", arguments, caller=ACME)).result["content"][0]
        pages.append(item["text"].rpartition("\n\n(Source:")[0])
        if "nextCursor" not in item["_meta"]:
            break
        assert item["_meta"]["nextCursor"] in item["text"]
        arguments = {"document_id": "acme/long.md", "cursor": item["_meta"]["nextCursor"]}
    assert len(pages) > 3
    assert "".join("".join(pages).split()) == "".join(LONG.split())


async def test_a_cursor_of_an_older_text_is_refused(filled: Desk) -> None:
    first = await filled.call("get_document", {"document_id": "acme/long.md"}, caller=ACME)
    cursor = first.result["content"][0]["_meta"]["nextCursor"]
    assert isinstance(filled.engine, EmbeddedEngine)
    entry = DocumentationSet("acme", "docs", "Acme handbook", "7.2", 0)
    await filled.engine.replace_set(TenantId("acme"), entry, [SourceDocument("acme/long.md", LONG + "more")])
    with pytest.raises(InvalidArguments, match="has changed"):
        await filled.call("get_document", {"document_id": "acme/long.md", "cursor": cursor}, caller=ACME)
    for nonsense in ("x", "9999999-00000000", ""):
        with pytest.raises(InvalidArguments):
            await filled.call("get_document", {"document_id": "acme/long.md", "cursor": nonsense}, caller=ACME)


async def test_another_tenants_document_answers_exactly_as_one_that_does_not_exist(filled: Desk) -> None:
    there = await filled.call("get_document", {"document_id": "acme/secret.md"}, caller=OTHER)
    nowhere = await filled.call("get_document", {"document_id": "acme/sacred.md"}, caller=OTHER)
    assert there.text.replace("secret", "sacred") == nowhere.text
    found = await filled.call("search_documentation", {"query": "xylophone"}, caller=OTHER)
    assert "xylophone" not in found.text.replace("'xylophone'", "")
    with pytest.raises(InvalidArguments, match="must be one of all, refdesk"):
        await filled.call("search_documentation", {"query": "x", "doc_type": "acme"}, caller=OTHER)


async def test_an_unknown_tool_is_an_exception_in_the_library(desk: Desk) -> None:
    with pytest.raises(UnknownTool):
        await desk.call("nothing")
