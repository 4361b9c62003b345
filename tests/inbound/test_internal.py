"""The doors for other services: any tool on a user's behalf, and chunk windows between two real servers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import Serve
from tests.processes import started_server
from tests.real_files import FILES, REAL_FILES, RealFile
from tests.servers import RunningServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

USER = {"user_id": "ann", "tenant_id": "acme"}
EXECUTE = "/internal/mcp/execute"
WINDOW = "/internal/retrieval/chunks/window"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(FILES, tmp_path_factory.mktemp("project") / "files"))


@pytest.fixture(scope="module")
async def shared_server(serve_all: Serve, project: Path) -> AsyncIterator[RunningServer]:
    async with serve_all(convert__roots=[str(project)], reader__rate_limit_calls=100_000) as server:
        yield server


async def execute(server: RunningServer, tool: str, status: int = 200, **more: Any) -> dict[str, Any]:
    body = {"tool_name": tool, "user": USER, **more}
    answer = await server.http.post(EXECUTE, json=body)
    assert answer.status_code == status, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def convert(server: RunningServer, path: str = "office/guide.docx", tool: str = "convert_docx") -> str:
    handle: str = (await execute(server, tool, arguments={"file_path": path}))["result"]["handle"]
    return handle


async def test_a_tool_is_run_for_the_user_that_is_named(server: RunningServer) -> None:
    answer = await execute(server, "whoami", trace_id="trace-1")
    assert answer["status"] == "ok"
    assert answer["trace_id"] == "trace-1"
    assert answer["result"]["content"][0]["text"] == "acme/ann"


async def test_a_missing_trace_id_is_made(server: RunningServer) -> None:
    first, second = [(await execute(server, "whoami"))["trace_id"] for _ in range(2)]
    assert len(first) == 32
    assert first != second


@pytest.mark.parametrize("path", [EXECUTE, WINDOW])
async def test_a_trace_id_that_cannot_be_kept_is_refused(server: RunningServer, path: str) -> None:
    for trace_id in ("two words", "", "x" * 129, "naïve", "line\nbreak", 5):
        body = {"tool_name": "whoami", "user": USER, "tenant_id": "acme", "trace_id": trace_id}
        answer = await server.http.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32602), trace_id
        assert "trace_id: must be 1 to 128 printable ASCII characters" in answer.json()["error"]["message"]
        assert len(answer.json()["trace_id"]) == 32
    assert (await execute(server, "whoami", trace_id="x" * 128))["trace_id"] == "x" * 128
    assert (await execute(server, "whoami", trace_id=None))["status"] == "ok"


@pytest.mark.parametrize("path", [EXECUTE, WINDOW])
@pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100])
async def test_an_unparsable_body_is_answered_in_the_same_shape(server: RunningServer, path: str, body: bytes) -> None:
    answer = await server.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    content = answer.json()
    assert set(content) == {"status", "error", "trace_id"}
    assert content["status"] == "error"
    assert content["error"]["code"] in (-32700, -32600)
    assert len(content["trace_id"]) == 32


async def test_structured_results_come_as_they_are(server: RunningServer) -> None:
    answer = await execute(server, "echo", arguments={"text": "hi", "times": 2})
    assert answer["result"] == {"echoed": "hihi", "length": 4}


@pytest.mark.parametrize(
    ("body", "status", "code", "said"),
    [
        ({"tool_name": "nope"}, 404, -32602, "Unknown tool"),
        ({"tool_name": "echo", "arguments": {"times": 0}}, 400, -32602, "text"),
        ({"tool_name": "missing"}, 404, -32602, "no such"),
        ({"tool_name": ""}, 400, -32602, "tool_name"),
        ({"tool_name": "echo", "user": {"user_id": "ann"}}, 400, -32602, "tenant_id"),
        ({"tool_name": "echo", "user": None}, 400, -32602, "user"),
        ({"tool_name": "read_doc_metadata", "arguments": {"doc_id": "nothing"}}, 404, -32602, "no document"),
    ],
)
async def test_what_goes_wrong_has_a_status_a_code_and_the_trace(
    server: RunningServer, body: dict[str, Any], status: int, code: int, said: str
) -> None:
    answer = await server.http.post(EXECUTE, json={"user": USER, "trace_id": "t-9", **body})
    assert answer.status_code == status, answer.text
    content = answer.json()
    assert (content["status"], content["trace_id"]) == ("error", "t-9")
    assert content["error"]["code"] == code
    assert said.lower() in content["error"]["message"].lower()


async def test_too_many_reads_are_refused_with_429(serve: Serve) -> None:
    async with serve(reader__rate_limit_calls=1) as server:
        arguments = {"doc_id": "refdesk/index.md"}
        await execute(server, "read_doc_metadata", arguments=arguments)
        refused = await execute(server, "read_doc_metadata", 429, arguments=arguments)
        assert refused["error"]["code"] == -32004
        assert refused["error"]["data"]["retry_after"] > 0


@pytest.mark.parametrize("real", REAL_FILES, ids=lambda real: real.path.name)
async def test_every_tool_works_on_a_file_of_each_format(server: RunningServer, real: RealFile) -> None:
    path = str(real.path.relative_to(FILES))
    summary = (await execute(server, real.tool, arguments={"file_path": path}))["result"]
    doc_id = summary["handle"]
    metadata = (await execute(server, "read_doc_metadata", arguments={"doc_id": doc_id}))["result"]
    section = metadata["sections"][0]["id"]
    for tool, arguments in (
        ("read_doc_section", {"doc_id": doc_id, "section_id": section}),
        ("read_doc_pages", {"doc_id": doc_id, "page_start": 1, "page_end": 1}),
        ("read_chunk_window", {"doc_id": doc_id, "anchor_chunk_id": "c1", "radius": 0}),
        ("doc_local_search", {"doc_id": doc_id, "query": summary["title"]}),
        ("export_markdown", {"handle": doc_id}),
        ("export_html", {"handle": doc_id}),
        ("export_json", {"handle": doc_id}),
    ):
        answer = await execute(server, tool, arguments=arguments)
        assert answer["status"] == "ok", tool


async def test_a_key_acts_for_its_own_tenant_and_a_service_for_any(serve: Serve) -> None:
    keys = [
        {"key": "own", "user": "bob", "tenant": "acme"},
        {"key": "svc", "user": "svc", "tenant": "ops", "roles": ["service"]},
    ]
    async with serve(auth__required=True, auth__keys=keys) as server:
        for key, tenant, status in (
            ("own", "acme", 200),
            ("own", "other", 403),
            ("svc", "other", 200),
            ("", "acme", 401),
        ):
            headers = {"x-api-key": key} if key else {}
            body = {"tool_name": "whoami", "user": {"user_id": "bob", "tenant_id": tenant}}
            answer = await server.http.post(EXECUTE, json=body, headers=headers)
            assert answer.status_code == status, (key, tenant, answer.text)


async def test_where_there_are_keys_nobody_without_one_acts_for_another_tenant(serve: Serve) -> None:
    async with serve(auth__keys=[{"key": "k", "user": "u", "tenant": "acme"}]) as server:
        body = {"tool_name": "whoami", "user": USER}
        assert (await server.http.post(EXECUTE, json=body)).status_code == 403
        window = {"tenant_id": "acme", "doc_id": "x", "anchor_chunk_id": "c1"}
        assert (await server.http.post(WINDOW, json=window)).status_code == 403


async def test_chunk_windows_are_served_to_other_services(server: RunningServer) -> None:
    doc_id = await convert(server)
    body = {"tenant_id": "acme", "doc_id": doc_id, "anchor_chunk_id": "c1", "radius": 1, "trace_id": "t-1"}
    answer = (await server.http.post(WINDOW, json=body)).json()
    assert (answer["status"], answer["trace_id"], answer["doc_id"]) == ("ok", "t-1", doc_id)
    assert answer["chunks"][0]["chunk_id"] == "c1"
    other = await server.http.post(WINDOW, json={**body, "tenant_id": "other"})
    assert (other.status_code, other.json()["status"]) == (404, "error")
    wide = await server.http.post(WINDOW, json={**body, "radius": 99})
    assert wide.status_code == 400
    assert "at most 5" in wide.json()["error"]["message"]


@pytest.mark.slow
async def test_one_desk_asks_another_process_for_its_windows(serve: Serve, project: Path) -> None:
    arguments: dict[str, Any] = {"anchor_chunk_id": "c1", "radius": 1}
    async with started_server(project, REFDESK__CONVERT__ROOTS=str(project)) as other:
        async with httpx2.AsyncClient(base_url=other.url, timeout=PATIENCE_SECONDS) as http:
            body = {"tool_name": "convert_docx", "arguments": {"file_path": "office/guide.docx"}, "user": USER}
            arguments["doc_id"] = (await http.post(EXECUTE, json=body)).json()["result"]["handle"]
        remote = {"reader__retrieval_window_url": f"{other.url}{WINDOW}", "reader__retrieval_timeout_seconds": 60}
        async with serve(**remote) as server:
            window = (await execute(server, "read_chunk_window", arguments=arguments))["result"]
            assert window["chunks"][0]["chunk_id"] == "c1"
            unknown = await execute(server, "read_chunk_window", 404, arguments={**arguments, "doc_id": "nothing"})
            assert "no document" in unknown["error"]["message"]
            await other.stop()
            down = await execute(server, "read_chunk_window", 503, arguments=arguments)
            assert down["error"]["code"] == -32001
            assert down["error"]["data"]["retryable"] is True
            assert down["error"]["data"]["retry_after"] > 0


async def test_a_window_service_that_answers_nonsense_is_a_retryable_error(serve: Serve) -> None:
    async with serve() as nonsense, serve(reader__retrieval_window_url=f"{nonsense.url}/health") as server:
        answer = await execute(server, "read_chunk_window", 503, arguments={"doc_id": "a", "anchor_chunk_id": "c1"})
        assert answer["error"]["data"]["retryable"] is True


async def test_only_post_and_only_json(server: RunningServer) -> None:
    assert (await server.http.get(EXECUTE)).status_code == 405
    assert (await server.http.post(EXECUTE, content=b"{}", headers={"content-type": "text/plain"})).status_code == 415
    assert (
        await server.http.post(EXECUTE, content=b"{", headers={"content-type": "application/json"})
    ).status_code == 400
