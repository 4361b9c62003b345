"""Blocked words in every way that text leaves a server: tools, resources, lists, other servers' hits, the console."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from refdesk.config.models import TOOLSETS
from tests.conftest import Serve
from tests.console.asking import act, bring
from tests.console.events import listening
from tests.servers import RunningServer
from tests.tools.test_federation import Source
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

TEXT = "# The zebra plan\n\nNeedles are kept beside the ZEBRA house.\n\n# Hay\n\nHay is in the barn with the needle.\n"
COMPLETION = {
    "ref": {"type": "ref/resource", "uri": "techdoc://{doc_type}/{path}"},
    "argument": {"name": "path", "value": ""},
    "context": {"arguments": {"doc_type": "farm"}},
}
CLEAN = "# Barn\n\nThe barn needle is red.\n"


async def post(server: RunningServer, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await server.http.post(f"/api/tools/{tool}", json=arguments)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


@pytest.mark.parametrize("action", ["refuse", "redact"])
async def test_a_blocked_word_leaves_in_no_way(serve: Serve, tmp_path: Path, action: str) -> None:
    alpha = Source(tmp_path, "alpha")
    alpha.says({"title": "Zebra keys", "url": "https://alpha.example/keys", "text": "A zebra has the needle."})
    servers = {"alpha": alpha.settings()}
    blocked = {"reader__blocklist_keywords": '["zebra"]', "reader__blocklist_action": action}
    async with serve(embedding__source="none", toolsets=list(TOOLSETS), mcpServers=servers, **blocked) as server:
        await eventually(lambda: "alpha__search" in server.desk.registry.tools)
        shown, id = await bring(server, TEXT, "Zebra notes", collection_id="farm"), "farm/zebra-notes"
        assert "zebra" not in shown
        clean = await bring(server, CLEAN, "Barn notes", collection_id="farm")
        content = base64.b64encode(TEXT.encode()).decode()
        converted = await post(server, "convert_docx", content_base64=content, file_name="x.md")
        handle = converted["structuredContent"]["handle"]
        answers = {
            "convert": converted,
            "search": await post(server, "r2r_search", query="needle", collection_id="farm"),
            "rag": await post(server, "r2r_rag_query", question="Is the barn needle red?", collection_id="farm"),
            "documents": await post(server, "r2r_list_documents", collection_id="farm"),
            "monitor": await post(server, "r2r_monitor_task", document_id=id),
            "docs": await post(server, "search_documentation", query="needle"),
            "federated": await post(server, "search_documentation", query="needle", doc_type="alpha"),
            "downstream": await post(server, "alpha__search", query="needle"),
            "get": await post(server, "get_document", document_id=id),
            "metadata": await post(server, "read_doc_metadata", doc_id=id),
            "export": await post(server, "export_json", handle=handle),
            "missing": await post(server, "get_document", document_id="farm/zebra.md"),
            "contents": await server.call("resources/read", {"uri": f"techdoc://{id}"}),
            "converted": await server.call("resources/read", {"uri": f"document://{handle}/markdown"}),
            "resources": await server.call("resources/list"),
            "completion": await server.call("completion/complete", COMPLETION),
            "prompt": await server.call("prompts/get", {"name": "onboard_me"}),
            "history": await server.call("resources/read", {"uri": "r2r://search/history"}),
            "console": [
                await act(server, "documents", collection="farm"),
                await act(server, "document", id=id),
                await act(server, "read", id=id),
                await act(server, "collections"),
            ],
        }
        for way, answer in answers.items():
            echoed = str(answer).replace(f"'uri': 'techdoc://{id}'", "")  # as the caller has sent it
            assert "zebra" not in echoed.lower(), way
        assert answers["completion"]["result"]["completion"]["values"] == [clean.removeprefix("farm/")]
        # What has no blocked word is found as ever.
        search = answers["search"]["structuredContent"]
        assert clean in {hit["document_id"] for hit in search["results"]}
        assert "The barn needle is red." in answers["search"]["content"][0]["text"]
        assert "needle is red" in answers["rag"]["structuredContent"]["answer"]
        if action == "redact":
            assert "beside the [redacted] house" in answers["get"]["content"][0]["text"]
            assert "A [redacted] has the needle." in str(answers["federated"])
        else:
            assert answers["get"]["isError"]
            assert "contains a blocked word" in answers["get"]["content"][0]["text"]
        item = answers["federated"]["content"][0]
        start, end = item["_meta"]["passage"]
        expected = "A [redacted] has the needle." if action == "redact" else "(hidden: it contains a blocked word)"
        assert item["text"][start:end] == expected


async def test_a_blocked_word_is_in_no_error(serve: Serve) -> None:
    async with serve(embedding__source="none", reader__blocklist_keywords="zebra") as server:
        await bring(server, CLEAN, "Barn notes", collection_id="zebra")
        wrong = {"name": "search_documentation", "arguments": {"query": "a", "doc_type": "wrong"}}
        answer = await server.call("tools/call", wrong)
        assert answer["error"]["code"] == -32602
        assert answer["error"]["data"]["type"] == "InvalidArguments"
        assert "zebra" not in str(answer)
        assert "hidden: it contains a blocked word" in answer["error"]["message"]


async def test_a_blocked_word_is_in_no_live_event_of_the_console(serve: Serve) -> None:
    async with (
        serve(embedding__source="none", reader__blocklist_keywords="zebra") as server,
        listening(server.http) as events,
    ):
        await events.until(lambda events: events.of("documents"))  # a document that is in before isn't told of
        await bring(server, CLEAN, "Zebra notes")
        await events.until(lambda events: any(each["status"] == "success" for each in events.documents()))
        assert "zebra" not in str(events.received).lower()
