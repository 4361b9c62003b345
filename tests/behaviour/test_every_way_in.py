"""The same questions over every way in get the same answers."""

from __future__ import annotations

import pytest

from tests.behaviour.ways import Failure, Way

pytestmark = pytest.mark.anyio


async def test_tools_are_listed_with_all_that_a_client_needs(way: Way) -> None:
    tools = {tool["name"]: tool for tool in (await way("tools/list"))["tools"]}
    search = tools["search_documentation"]
    assert search["title"] == "Search documentation"
    assert search["inputSchema"]["required"] == ["query"]
    assert search["inputSchema"]["properties"]["doc_type"]["enum"] == ["all", "refdesk"]
    assert search["annotations"] == {"readOnlyHint": True, "openWorldHint": False}
    assert tools["echo"]["outputSchema"]["required"] == ["echoed", "length"]


async def test_a_search_answers_with_passages_and_their_sources(way: Way) -> None:
    params = {"name": "search_documentation", "arguments": {"query": "start the server", "max_results": 2}}
    result = await way("tools/call", params)
    assert "isError" not in result or result["isError"] is False
    assert 1 <= len(result["content"]) <= 2
    scores = [item["_meta"]["score"] for item in result["content"]]
    assert scores == sorted(scores, reverse=True)
    for item in result["content"]:
        assert item["type"] == "text"
        metadata = item["_meta"]["metadata"]
        assert metadata["source"].startswith("refdesk/")
        assert metadata["version"]
        assert metadata["indexed_at"]
        assert "page" in metadata
        assert metadata["section"]


async def test_a_document_is_read_by_its_id(way: Way) -> None:
    result = await way("tools/call", {"name": "get_document", "arguments": {"document_id": "refdesk/index.md"}})
    assert result["content"][0]["text"].startswith("# Refdesk")


async def test_a_structured_answer_stands_alone_in_text_and_in_structure(way: Way) -> None:
    result = await way("tools/call", {"name": "echo", "arguments": {"text": "ab", "times": 2, "loud": True}})
    assert result["structuredContent"] == {"echoed": "ABAB", "length": 4}
    assert result["content"] == [{"type": "text", "text": "ABAB"}]


async def test_every_wrong_argument_is_named_with_its_rule(way: Way) -> None:
    arguments = {"text": 5, "times": 12, "lout": True}
    with pytest.raises(Failure) as failure:
        await way("tools/call", {"name": "echo", "arguments": arguments})
    assert failure.value.code == -32602
    assert failure.value.data["errors"] == [
        {"argument": "text", "rule": "must be a string"},
        {"argument": "times", "rule": "must be at most 9"},
        {"argument": "lout", "rule": "unknown argument; did you mean loud?"},
    ]
    assert failure.value.data["type"] == "InvalidArguments"
    assert failure.value.data["retryable"] is False
    assert "text: must be a string" in failure.value.message


async def test_a_synonym_and_a_number_as_text_are_taken_for_what_they_mean(way: Way) -> None:
    arguments = {"question": "start the server", "limit": "1", "collection_id": "refdesk", "max_tokens": None}
    result = await way("tools/call", {"name": "search_documentation", "arguments": arguments})
    assert len(result["content"]) == 1


async def test_a_value_outside_the_live_list_is_refused_with_the_list(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("tools/call", {"name": "search_documentation", "arguments": {"query": "x", "doc_type": "nope"}})
    assert failure.value.code == -32602
    assert failure.value.data["errors"] == [{"argument": "doc_type", "rule": "must be one of all, refdesk"}]


async def test_an_unknown_tool_is_told_with_the_nearest_name(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("tools/call", {"name": "search_documentatoin", "arguments": {}})
    assert failure.value.code == -32602
    assert "'search_documentation'" in failure.value.message


async def test_an_unknown_method_is_told_so(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("tools/destroy")
    assert failure.value.code == -32601
    assert failure.value.data["type"] == "MethodNotFound"


async def test_a_tool_that_fails_says_in_its_result_what_to_do(way: Way) -> None:
    result = await way("tools/call", {"name": "missing", "arguments": {}})
    assert result["isError"] is True
    assert result["content"] == [{"type": "text", "text": "There is no such document. Search for it."}]


async def test_a_document_that_is_not_there_is_a_tool_error_with_a_hint(way: Way) -> None:
    result = await way("tools/call", {"name": "get_document", "arguments": {"document_id": "refdesk/indx.md"}})
    assert result["isError"] is True
    assert "Did you mean 'refdesk/index.md'?" in result["content"][0]["text"]


async def test_an_engine_that_is_down_is_an_error_with_a_time_to_come_back(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("tools/call", {"name": "down", "arguments": {}})
    assert failure.value.code == -32001
    assert failure.value.data == {
        "type": "EngineError",
        "detail": "the engine does not answer",
        "retryable": True,
        "retry_after": 2.0,
    }


async def test_an_unforeseen_failure_tells_nothing_of_the_inside(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("tools/call", {"name": "broken", "arguments": {}})
    assert failure.value.code == -32603
    assert failure.value.data["type"] == "InternalError"
    assert "secret" not in f"{failure.value.message}{failure.value.data}"


async def test_resources_are_listed_and_read(way: Way) -> None:
    listed = [resource["uri"] for resource in (await way("resources/list"))["resources"]]
    assert listed == ["techdoc://refdesk/docs", "r2r://current-project/context", "r2r://search/history"]
    (contents,) = (await way("resources/read", {"uri": listed[0]}))["contents"]
    assert "techdoc://refdesk/index.md" in contents["text"]
    (page,) = (await way("resources/read", {"uri": "techdoc://refdesk/index.md"}))["contents"]
    assert page["mimeType"] == "text/markdown"
    assert page["text"].startswith("# Refdesk")


async def test_an_unknown_resource_is_an_invalid_argument(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("resources/read", {"uri": "techdoc://refdesk/nothing.md"})
    assert failure.value.code == -32602
    assert failure.value.data["type"] == "UnknownResource"


async def test_templates_are_listed_and_their_variables_completed(way: Way) -> None:
    templates = (await way("resources/templates/list"))["resourceTemplates"]
    uris = [template["uriTemplate"] for template in templates]
    assert uris == [
        "techdoc://{doc_type}/{path}",
        "document://{handle}/{form}",
        "r2r://collection/{collection_id}",
        "r2r://document/{+document_id}{?section_id}",
    ]
    ref = {"type": "ref/resource", "uri": uris[0]}
    kinds = await way("completion/complete", {"ref": ref, "argument": {"name": "doc_type", "value": "ref"}})
    assert kinds["completion"]["values"] == ["refdesk"]
    argument = {"name": "path", "value": "ind"}
    context = {"arguments": {"doc_type": "refdesk"}}
    paths = await way("completion/complete", {"ref": ref, "argument": argument, "context": context})
    assert paths["completion"]["values"] == ["index.md"]


async def test_prompts_are_listed_filled_in_and_completed(way: Way) -> None:
    names = [prompt["name"] for prompt in (await way("prompts/list"))["prompts"]]
    assert names == ["answer_from_docs", "onboard_me", "what_changed"]
    got = await way("prompts/get", {"name": "answer_from_docs", "arguments": {"question": "How do I stop it?"}})
    assert "How do I stop it?" in got["messages"][0]["content"]["text"]
    ref = {"type": "ref/prompt", "name": "answer_from_docs"}
    values = await way("completion/complete", {"ref": ref, "argument": {"name": "doc_type", "value": ""}})
    assert values["completion"]["values"] == ["all", "refdesk"]


async def test_a_prompt_without_its_argument_is_refused(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("prompts/get", {"name": "answer_from_docs", "arguments": {}})
    assert failure.value.code == -32602
    assert failure.value.data["errors"] == [{"argument": "question", "rule": "is required"}]


async def test_a_cursor_that_no_list_gave_is_refused(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("tools/list", {"cursor": "made-up"})
    assert failure.value.code == -32602
    assert failure.value.data["errors"] == [{"argument": "cursor", "rule": "is not a cursor of this list"}]


async def test_a_call_without_a_name_is_an_invalid_argument(way: Way) -> None:
    with pytest.raises(Failure) as failure:
        await way("tools/call", {"arguments": {}})
    assert failure.value.code == -32602
