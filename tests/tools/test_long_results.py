"""Results of servers that are longer than their budget."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from refdesk.calls import ANONYMOUS, Call, Caller, TenantId, UserId, text_content
from refdesk.documents.tokens import MAX_CHARACTERS_PER_TOKEN, count_tokens
from refdesk.errors import InvalidArguments, ServerTalksNonsense, UnknownResource
from refdesk.tools.proxied import CUT_META, MAX_STORED_PER_CALLER, PAGE_CHARACTERS, SLICE_CHARACTERS, LongResults
from tests.tools.gateways import open_test_desk, talkative, text_of

pytestmark = pytest.mark.anyio

WORDS = "The desk keeps what is beyond the budget, to be read in pages. Ünïcödé 表 🙂. " * 2000
IMAGE = {"type": "image", "data": "x" * 100_000, "mimeType": "image/png"}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def fit(results: LongResults, result: dict[str, Any], tokens: int, **more: Any) -> dict[str, Any]:
    return results.fit(result, tokens, more.pop("caller", ANONYMOUS), has_schema=more.pop("has_schema", False))


async def read_text(results: LongResults, uri: str, caller: Caller = ANONYMOUS) -> str:
    """All pages of a kept text."""
    found, address = "", uri
    while address:
        contents = await results.read(address, Call("resources/read", {"uri": address}, caller))
        assert contents is not None
        found += contents[0]["text"]
        address = contents[0]["_meta"].get("refdesk/next", "")
    return found


def test_a_result_within_its_budget_is_the_very_same_object() -> None:
    result = {"content": [text("short"), IMAGE], "structuredContent": {"a": 1}}
    assert fit(LongResults(), result, 100) is result
    assert fit(LongResults(), result, 1) is not result


def test_many_characters_may_still_be_few_tokens() -> None:
    result = {"content": [text("documentation " * 500)]}
    assert fit(LongResults(), result, 600) is result


def test_digits_without_end_are_many_tokens() -> None:
    cut = fit(LongResults(), {"content": [text("0123456789abcdef" * 10_000)]}, 1000)
    assert cut["_meta"][CUT_META]["shown"] < 10_000


async def test_text_is_cut_across_its_items_and_the_rest_can_be_read() -> None:
    results = LongResults()
    items = [text("first. "), IMAGE, text(WORDS), text("never seen"), {"type": "resource_link", "uri": "x:y"}]
    cut = fit(results, {"content": items, "isError": False, "_meta": {"own": 1}, "unknown": 2}, 1000)
    content = cut["content"]
    assert content[:2] == items[:2]
    assert WORDS.startswith(content[2]["text"])
    assert content[3] == items[4]
    assert 900 <= count_tokens(content[0]["text"] + content[2]["text"]) <= 1000
    told = cut["_meta"][CUT_META]
    total = len("first. ") + len(WORDS) + len("never seen")
    assert told["characters"] == total
    assert told["shown"] == len("first. ") + len(content[2]["text"])
    assert f"{total - told['shown']} of {total} characters are left out" in content[4]["text"]
    assert told["uri"] in content[4]["text"]
    assert content[5]["uri"] == told["uri"]
    assert cut["unknown"] == 2
    assert cut["_meta"]["own"] == 1
    assert await read_text(results, told["uri"]) == f"first. \n\n{WORDS}\n\nnever seen"


async def test_the_text_of_an_embedded_resource_counts_and_is_cut_as_well() -> None:
    held = {"type": "resource", "resource": {"uri": "a:b", "mimeType": "text/plain", "text": WORDS}}
    cut = fit(LongResults(), {"content": [held]}, 500)
    resource = cut["content"][0]["resource"]
    assert resource["uri"] == "a:b"
    assert count_tokens(resource["text"]) <= 500


async def test_structured_content_that_is_too_long_is_left_out_and_kept_as_text() -> None:
    results = LongResults()
    structured = {"rows": [{"n": n, "words": "some words"} for n in range(5000)]}
    cut = fit(results, {"content": [IMAGE, text("See the rows.")], "structuredContent": structured}, 1000)
    assert "structuredContent" not in cut
    assert "isError" not in cut
    assert cut["content"][:2] == [IMAGE, text("See the rows.")]
    assert cut["content"][2]["text"].startswith('{"rows":[{"n":0,')
    assert cut["_meta"][CUT_META]["structuredContent"] == "left out"
    whole = await read_text(results, cut["_meta"][CUT_META]["uri"])
    assert whole.endswith('{"n":4999,"words":"some words"}]}')
    # A strict client would refuse an answer without what the tool's schema promises.
    assert fit(results, {"content": [], "structuredContent": structured}, 1000, has_schema=True)["isError"] is True


async def test_structured_content_that_is_said_in_text_as_well_is_not_said_twice() -> None:
    results = LongResults()
    structured = {"digits": "0123456789 " * 2000}
    written = json.dumps(structured, indent=1)
    cut = fit(results, {"content": [text(written)], "structuredContent": structured}, 5000)
    assert await read_text(results, cut["_meta"][CUT_META]["uri"]) == written
    few_words = {"words": "documentation " * 3000}
    short = fit(results, {"content": [text(json.dumps(few_words))], "structuredContent": few_words}, 4000)
    assert short["content"][0] == text(json.dumps(few_words))
    assert "The structured content is left out" in text_of(short)


async def test_a_kept_text_is_only_for_whoever_got_the_result_and_for_some_time() -> None:
    now = 0.0
    results = LongResults(lambda: now)
    mine = Caller(user=UserId("ada"), tenant=TenantId("acme"))
    uri = fit(results, {"content": [text(WORDS)]}, 100, caller=mine)["_meta"][CUT_META]["uri"]
    for other in (Caller(user=UserId("ada")), Caller(user=UserId("eve"), tenant=TenantId("acme"))):
        assert await results.read(uri, Call("resources/read", {}, other)) is None
    assert await read_text(results, uri, mine) == WORDS
    now = 601.0
    assert await results.read(uri, Call("resources/read", {}, mine)) is None


async def test_pages_that_are_not_there_are_told_of() -> None:
    results = LongResults()
    uri = fit(results, {"content": [text(WORDS)]}, 100)["_meta"][CUT_META]["uri"]
    pages = -(-len(WORDS) // PAGE_CHARACTERS)
    for query in ("page=0", f"page={pages + 1}", "page=", "page=-1", "page=²", "nonsense", "page=" + "9" * 5000):
        with pytest.raises(InvalidArguments, match=f"1 to {pages}"):
            await results.read(f"{uri}?{query}", Call("resources/read"))


async def test_no_more_is_kept_of_one_caller_than_may_be() -> None:
    results = LongResults()
    uris = [
        fit(results, {"content": [text(f"{number} {WORDS}")]}, 100)["_meta"][CUT_META]["uri"]
        for number in range(MAX_STORED_PER_CALLER + 1)
    ]
    there = [await results.read(uri, Call("resources/read")) is not None for uri in uris]
    assert there == [False] + [True] * MAX_STORED_PER_CALLER


async def test_no_more_is_kept_in_all_than_may_be() -> None:
    results = LongResults(max_bytes=1000)
    for user in ("one", "another"):
        fit(results, {"content": [text(WORDS)]}, 100, caller=Caller(user=UserId(user)))
    assert len(results._stored) == 1


async def test_a_long_result_of_a_server_is_cut_to_its_servers_bound_or_the_common_one(tmp_path: Path) -> None:
    servers = {"own": talkative(max_result_tokens=50), "common": talkative(), "none": talkative(max_result_tokens=0)}
    async with open_test_desk(tmp_path, servers, max_result_tokens=500) as desk:
        shown = {}
        for server in servers:
            result = await desk.call(f"{server}__meta", {}, _meta={"words": "many words to repeat " * 400})
            shown[server] = (result.get("_meta") or {}).get(CUT_META, {}).get("shown")
            if shown[server]:
                uri = result["_meta"][CUT_META]["uri"]
                page = await desk.ask("resources/read", uri=uri)
                assert page["contents"][0]["text"].startswith('{"meta": {"words": "many words')
        assert shown["none"] is None
        assert shown["own"] < shown["common"]
        with pytest.raises(UnknownResource):
            await desk.ask("resources/read", uri="refdesk://results/made-up")


def test_structured_content_that_cannot_be_written_is_the_fault_of_its_server() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ServerTalksNonsense, match="isn't valid JSON"):
        LongResults().fit({"content": [], "structuredContent": {"x": deep}}, 100, ANONYMOUS, has_schema=False)


@pytest.mark.parametrize("text", ["é" * 400_000, "\n" * 400_000, "a é\t" * 100_000])
def test_no_text_is_so_strange_that_it_passes_as_short(text: str) -> None:
    cut = LongResults().fit({"content": [text_content(text)]}, 1000, ANONYMOUS, has_schema=False)
    assert cut["_meta"][CUT_META]["shown"] <= 1000 * MAX_CHARACTERS_PER_TOKEN + SLICE_CHARACTERS
