"""The docs toolset through the library: what it finds, how much of it, and how one reads on."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from refdesk.app import Desk
from refdesk.calls import Call, Caller, TenantId
from refdesk.engines.base import IN_PROGRESS, NewDocument, TextSource
from refdesk.engines.storage.databases import hold_writer_lock
from refdesk.errors import InvalidArguments, UnknownTool
from refdesk.tools.documentation import DocumentationHit
from tests.tools.knowing import open_indexed_desk, somebody
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

LONG = "# Long\n\n" + "\n\n".join(f"## Part {n}\n\n" + f"Sentence about topic{n}. " * 60 for n in range(30))
ACME = somebody("ann")
"""Somebody whose documents no test changes."""
OTHER = somebody("bob")


PAGES = {
    "long.md": LONG,
    "max_connections.md": "# Limits\n\nSet `max_connections` to 100.\n",
    "secret.md": "# Secret plan\n\nThe xylophone launches at noon.\n",
}


@pytest.fixture(scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    async with open_indexed_desk(tmp_path_factory.mktemp("data")) as desk:
        yield desk


async def fill(desk: Desk, tenant: TenantId, pages: dict[str, str], version: str = "7.1") -> None:
    """Have the collection `acme` hold these pages, all of them indexed."""
    engine = desk.engine
    await engine.create_collection(tenant, "acme", description="Acme handbook", version=version)
    sources = [TextSource(text.partition("\n")[0].strip("# "), text, name) for name, text in pages.items()]
    taken = await engine.ingest(tenant, [NewDocument(source, "acme", version=version) for source in sources])
    statuses = list(taken)
    with anyio.fail_after(PATIENCE_SECONDS):
        while any(status.status in IN_PROGRESS for status in statuses):
            statuses = list(await engine.wait(tenant, [status.id for status in taken], seconds=5))
    assert {status.status for status in statuses} == {"success"}


@pytest.fixture(scope="module")
async def desk_with_pages(desk: Desk) -> Desk:
    await fill(desk, ACME.tenant, PAGES)
    return desk


async def read(desk: Desk, uri: str, caller: Caller = ACME) -> str:
    answer = await desk.handle(Call("resources/read", {"uri": uri}, caller=caller))
    text: str = answer.result["contents"][0]["text"]
    return text


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


async def test_the_best_match_comes_first_and_identifiers_are_found(desk_with_pages: Desk) -> None:
    answer = await desk_with_pages.call("search_documentation", {"query": "max_connections"}, caller=ACME)
    assert answer.result["content"][0]["_meta"]["metadata"]["source"] == "acme/max_connections.md"


async def test_a_hit_says_where_it_is_from(desk_with_pages: Desk) -> None:
    answer = await desk_with_pages.call(
        "search_documentation", {"query": "max_connections", "doc_type": "acme"}, caller=ACME
    )
    item = answer.result["content"][0]
    metadata = item["_meta"]["metadata"]
    assert metadata.pop("indexed_at").startswith("20")
    assert metadata.pop("page") in (None, 1)
    assert metadata == {
        "source": "acme/max_connections.md",
        "title": "Limits",
        "doc_type": "acme",
        "version": "7.1",
        "section": "Limits",
        "anchor": None,
        "anchors": [],
    }
    assert item["_meta"]["chunk_id"] == "acme/max_connections.md#c1"
    assert "Source: acme/max_connections.md#c1, version 7.1, indexed 20" in item["text"]


async def test_a_name_that_occurs_nowhere_is_said_to_be_absent(desk_with_pages: Desk) -> None:
    query = {"query": "What is the default of max_connection_age?", "doc_type": "acme"}
    answer = await desk_with_pages.call("search_documentation", query, caller=ACME)
    last = answer.text.splitlines()[-1]
    assert "`max_connection_age` does not occur in acme; nearest: `max_connections`" in last
    assert (answer.result["_meta"]["confident"], answer.result["_meta"]["absent"]) == (False, ["max_connection_age"])
    asked = await desk_with_pages.call("search_documentation", {"query": "max_connections"}, caller=ACME)
    assert asked.result["_meta"]["confident"] is True
    assert "absent" not in asked.result["_meta"]


async def test_a_search_without_results_says_what_is_absent(desk_with_pages: Desk) -> None:
    query = {"query": "wombat_burrow", "doc_type": "acme"}
    answer = await desk_with_pages.call("search_documentation", query, caller=ACME)
    assert answer.text.startswith("Nothing matches 'wombat_burrow'. `wombat_burrow` does not occur in acme. ")
    assert answer.result["_meta"] == {"confident": False, "absent": ["wombat_burrow"]}
    found = await desk_with_pages.call("r2r_search", query, caller=ACME)
    assert "`wombat_burrow` does not occur in acme" in found.text
    assert (found.structured["count"], found.structured["confident"]) == (0, False)


async def test_a_search_without_results_says_what_is_still_being_indexed(tmp_path: Path) -> None:
    ann = somebody("ann")
    async with open_indexed_desk(tmp_path) as desk:
        await desk.engine.create_collection(ann.tenant, "acme")
        [folder] = (tmp_path / "tenants").glob(f"*{ann.tenant}")
        with hold_writer_lock(folder):  # as another process that indexes
            secret = TextSource("secret.md", PAGES["secret.md"], "secret.md")
            await desk.engine.ingest(ann.tenant, [NewDocument(secret, "acme")])
            answer = await desk.call("search_documentation", {"query": "xylophone", "doc_type": "acme"}, caller=ann)
        assert "Nothing matches 'xylophone'. 1 of 1 documents of acme are still being indexed" in answer.text


async def test_an_answer_that_is_probably_not_there_is_said_to_be(tmp_path: Path) -> None:
    query = {"query": "How much water does basmati rice need, and when is the xylophone played?", "doc_type": "acme"}
    async with open_indexed_desk(tmp_path, embedding__source="builtin") as desk:
        ann = somebody("ann")
        await fill(desk, ann.tenant, {"secret.md": PAGES["secret.md"]})
        answer = await desk.call("search_documentation", query, caller=ann)
        assert "Low confidence: acme may not answer this" in answer.text.splitlines()[-1]
        assert answer.result["_meta"]["confident"] is False
        found = await desk.call("r2r_search", {"query": query["query"], "collection_id": "acme"}, caller=ann)
        assert found.structured["confident"] is False


async def test_every_collection_is_a_resource_and_lists_its_documents(desk_with_pages: Desk) -> None:
    listed = await desk_with_pages.handle(Call("resources/list", caller=ACME))
    uris = [entry["uri"] for entry in listed.result["resources"] if entry["uri"].startswith("techdoc://")]
    assert uris == ["techdoc://acme/acme", "techdoc://refdesk/docs"]
    assert "(techdoc://acme/secret.md)" in await read(desk_with_pages, "techdoc://acme/acme")


@pytest.mark.parametrize("uri", ["techdoc://acme/long.md", "r2r://document/acme/long.md"])
async def test_a_long_document_as_a_resource_is_cut_and_names_the_call_that_goes_on(
    desk_with_pages: Desk, uri: str
) -> None:
    cut = await read(desk_with_pages, uri)
    assert 15_000 < len(cut.encode()) <= 20_000
    shown, _, note = cut.rpartition("\n\n(")
    match = re.search(r"get_document with document_id '(.+)' and cursor '(.+)'", note)
    assert match is not None
    arguments = {"document_id": match[1], "cursor": match[2], "max_tokens": 20_000}
    rest = (await desk_with_pages.call("get_document", arguments, caller=ACME)).text.rpartition("\n\n(Source:")[0]
    assert f"{shown}\n{rest}".split() == LONG.split()


async def test_a_short_document_as_a_resource_is_whole(desk_with_pages: Desk) -> None:
    for uri in ("techdoc://acme/secret.md", "r2r://document/acme/secret.md"):
        assert (await read(desk_with_pages, uri)).strip() == PAGES["secret.md"].strip()


async def test_a_long_table_of_contents_tells_what_it_left_out(desk: Desk) -> None:
    ann = somebody("ann")
    names = [f"chapter-{n:03}-{'x' * 100}.md" for n in range(120)]
    await fill(desk, ann.tenant, dict.fromkeys(names, "Words."))
    contents = await read(desk, "techdoc://acme/acme", ann)
    assert 15_000 < len(contents.encode()) <= 20_000
    shown = contents.count("](techdoc://")
    assert f"… {len(names) - shown} more; r2r_list_documents with collection_id 'acme' lists all" in contents


async def test_words_are_found_in_any_form(desk_with_pages: Desk) -> None:
    answer = await desk_with_pages.call(
        "search_documentation", {"query": "launching xylophones", "doc_type": "acme"}, caller=ACME
    )
    assert answer.result["content"][0]["_meta"]["metadata"]["section"] == "Secret plan"


async def test_operators_and_quotes_in_a_query_are_only_words(desk_with_pages: Desk) -> None:
    for query in ('"', "NEAR(", "a AND NOT b*", "col:umn", "'; DROP TABLE documents; --", "^x + - ( )", "\u0000x"):
        await desk_with_pages.call("search_documentation", {"query": query}, caller=ACME)


async def test_a_query_without_a_word_finds_nothing_and_says_what_there_is(desk_with_pages: Desk) -> None:
    answer = await desk_with_pages.call("search_documentation", {"query": "?!"}, caller=ACME)
    assert not answer.is_error
    assert "acme, refdesk" in answer.text


async def test_one_section_is_shown_once(desk_with_pages: Desk) -> None:
    answer = await desk_with_pages.call(
        "search_documentation", {"query": "sentence topic3", "max_results": 20}, caller=ACME
    )
    sections = [
        (item["_meta"]["metadata"]["source"], item["_meta"]["metadata"]["section"]) for item in answer.result["content"]
    ]
    assert len(sections) == len(set(sections))


@pytest.mark.parametrize("max_tokens", [100, 500, 2000])
async def test_an_answer_keeps_to_its_budget_and_tells_what_it_left_out(desk_with_pages: Desk, max_tokens: int) -> None:
    arguments = {"query": "sentence", "max_results": 20, "max_tokens": max_tokens, "doc_type": "acme"}
    answer = await desk_with_pages.call("search_documentation", arguments, caller=ACME)
    assert len(answer.text) <= max_tokens * 4 + 300
    assert answer.result["_meta"]["tokens"] <= max(max_tokens, 100) + 75
    shown = len(answer.result["content"])
    assert shown + answer.result["_meta"]["omitted"] <= 20
    assert f"({shown} result" in answer.text


async def test_the_default_answer_is_below_eight_kilobytes(desk_with_pages: Desk) -> None:
    answer = await desk_with_pages.call("search_documentation", {"query": "sentence", "max_results": 20}, caller=ACME)
    assert len(answer.text.encode()) < 8000


async def test_a_long_document_is_read_page_by_page_without_a_gap(desk_with_pages: Desk) -> None:
    pages: list[str] = []
    arguments = {"document_id": "acme/long.md"}
    while True:
        item = (await desk_with_pages.call("get_document", arguments, caller=ACME)).result["content"][0]
        pages.append(item["text"].rpartition("\n\n(Source:")[0])
        if "nextCursor" not in item["_meta"]:
            break
        assert item["_meta"]["nextCursor"] in item["text"]
        arguments = {"document_id": "acme/long.md", "cursor": item["_meta"]["nextCursor"]}
    assert len(pages) > 3
    assert "".join("".join(pages).split()) == "".join(LONG.split())


async def test_a_cursor_of_an_older_text_is_refused(desk: Desk) -> None:
    ann = somebody("ann")
    await fill(desk, ann.tenant, {"long.md": LONG})
    first = await desk.call("get_document", {"document_id": "acme/long.md"}, caller=ann)
    cursor = first.result["content"][0]["_meta"]["nextCursor"]
    await fill(desk, ann.tenant, {"long.md": LONG + "more"}, version="7.2")
    with pytest.raises(InvalidArguments, match="has changed"):
        await desk.call("get_document", {"document_id": "acme/long.md", "cursor": cursor}, caller=ann)
    for nonsense in ("x", "9999999-00000000", ""):
        with pytest.raises(InvalidArguments):
            await desk.call("get_document", {"document_id": "acme/long.md", "cursor": nonsense}, caller=ann)


async def test_another_tenants_document_answers_exactly_as_one_that_does_not_exist(desk_with_pages: Desk) -> None:
    there = await desk_with_pages.call("get_document", {"document_id": "acme/secret.md"}, caller=OTHER)
    nowhere = await desk_with_pages.call("get_document", {"document_id": "acme/sacred.md"}, caller=OTHER)
    assert there.text.replace("secret", "sacred") == nowhere.text
    found = await desk_with_pages.call("search_documentation", {"query": "xylophone"}, caller=OTHER)
    assert "xylophone" not in found.text.replace("'xylophone'", "")
    with pytest.raises(InvalidArguments, match="must be one of all, refdesk"):
        await desk_with_pages.call("search_documentation", {"query": "x", "doc_type": "acme"}, caller=OTHER)


async def test_an_unknown_tool_is_an_exception_in_the_library(desk: Desk) -> None:
    with pytest.raises(UnknownTool):
        await desk.call("nothing")


@pytest.mark.parametrize("passage", ["A rollback takes two minutes.", "Two lines.\nSource: a line of the passage", ""])
def test_a_hit_is_restored_from_its_content_item(passage: str) -> None:
    hit = DocumentationHit("Deploy › Roll back", passage, "deploy.md, version 1", {"source": "deploy.md"}, 0.5, "c1")
    item = hit.to_item()
    assert item["text"] == f"### Deploy › Roll back\n{passage}\nSource: deploy.md, version 1"
    item["text"] += "\n\n(1 result, about 20 tokens)"
    assert DocumentationHit.from_item(item) == hit


def test_a_message_is_no_hit() -> None:
    assert DocumentationHit.from_item({"type": "text", "text": "Nothing matches 'x'."}) is None


MISSPELT = {
    "sql-vacuum.html": "# VACUUM\n\nCollects garbage.\n",
    "sql-commit.html": "# COMMIT\n\nEnds.\n",
    "app-vacuumdb.html": "# vacuumdb\n\nCleans.\n",
    "guide/index.md": "# Guide\n\nHow to.\n",
    "zz/percent_%.md": "# Percent\n\nSigns.\n",
}


@pytest.fixture(scope="module")
async def librarian(desk: Desk) -> Caller:
    """Somebody with so many documents that those with the names in question come last."""
    caller = somebody("librarian")
    await fill(desk, caller.tenant, {**{f"a{n:04}.md": "Words." for n in range(1100)}, **MISSPELT})
    return caller


@pytest.mark.parametrize(
    ("wanted", "hint"),
    [
        ("sql-vacuum.html", "Did you mean 'acme/sql-vacuum.html'?"),
        ("postgresql-15/sql-vacuum.html", "Did you mean 'acme/sql-vacuum.html'?"),
        ("acme/sql-vaccum.html", "Did you mean 'acme/sql-vacuum.html'?"),
        ("SQL-Vaccum.htm#c3", "Did you mean 'acme/sql-vacuum.html'?"),
        ("https://example.org/docs/sql-vacuum.html?x=1#y", "Did you mean 'acme/sql-vacuum.html'?"),
        ("acme/guide/idnex.md", "Did you mean 'acme/guide/index.md'?"),
        ("idnex.md", "Did you mean 'acme/guide/index.md' or 'refdesk/index.md'?"),
        ("percent_%.txt", "Did you mean 'acme/zz/percent_%.md'?"),
        ("acme/a0042.txt", "Did you mean 'acme/a0042.md', 'acme/a004"),
        ("acme/wombat.html", "search_documentation finds documents by content."),
        ("acme/", "search_documentation finds documents by content."),
        ("x" * 1000, "search_documentation finds documents by content."),
    ],
)
async def test_an_unknown_document_is_answered_with_the_nearest_ones(
    desk: Desk, librarian: Caller, wanted: str, hint: str
) -> None:
    answer = await desk.call("get_document", {"document_id": wanted}, caller=librarian)
    assert answer.is_error
    assert hint in answer.text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ask", "r2r_rag_query"),
        ("search", "search_documentation"),
        ("Fetch", "get_document"),
        ("read", "get_document"),
        ("get_documents", "get_document"),
    ],
)
async def test_an_unknown_tool_is_answered_with_the_one_that_is_meant(desk: Desk, name: str, meant: str) -> None:
    with pytest.raises(UnknownTool, match=f"did you mean '{meant}'"):
        await desk.call(name, {})


async def test_no_tool_is_suggested_that_the_caller_does_not_have(desk: Desk) -> None:
    call = Call("tools/call", {"name": "ask", "arguments": {}}, caller=ACME, toolsets=frozenset(("docs",)))
    with pytest.raises(UnknownTool, match="see tools/list"):
        await desk.handle(call)
