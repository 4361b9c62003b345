"""The HTTP application, by raw requests: what is accepted, what is rejected, and with which words."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from refdesk.version import __version__
from tests.conftest import Serve
from tests.servers import RunningServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio


def request(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


ECHO = request("tools/call", {"name": "echo", "arguments": {"text": "hi"}})


async def still_answers(server: RunningServer) -> bool:
    return bool((await server.post(ECHO)).json()["result"]["structuredContent"]["echoed"] == "hi")


async def test_curl_needs_only_a_content_type(server: RunningServer) -> None:
    answer = await server.http.post(
        "/mcp", content=json.dumps(ECHO), headers={"content-type": "application/json", "accept": "*/*"}
    )
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["result"]["content"][0]["text"] == "hi"


@pytest.mark.parametrize("id", ["text", "", 0, -7, 2**53, 1])
async def test_ids_are_echoed_as_they_came(server: RunningServer, id: Any) -> None:
    assert (await server.post(request("ping", id=id))).json() == {"jsonrpc": "2.0", "id": id, "result": {}}


@pytest.mark.parametrize("id", ["null", "NaN", "1.5", "{}", "[]", "true", "1e400"])
async def test_an_id_that_is_none_is_an_error_and_never_swallowed(server: RunningServer, id: str) -> None:
    answer = await server.post(f'{{"jsonrpc":"2.0","id":{id},"method":"ping"}}'.encode())
    assert answer.status_code == 400
    body = answer.json()
    assert body["id"] is None
    assert body["error"]["code"] in (-32600, -32700)
    assert await still_answers(server)


async def test_a_notification_gets_202_and_no_body(server: RunningServer) -> None:
    answer = await server.post({"jsonrpc": "2.0", "method": "notifications/initialized"})
    assert answer.status_code == 202
    assert answer.content == b""


async def test_initialize_works_without_a_session(server: RunningServer) -> None:
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "curl", "version": "8"}}
    answer = await server.post(request("initialize", params))
    assert answer.json()["result"]["protocolVersion"] == "2025-06-18"
    assert answer.json()["result"]["serverInfo"]["name"] == "refdesk"
    assert "mcp-session-id" not in answer.headers


async def test_initialize_without_its_params_names_what_is_missing(server: RunningServer) -> None:
    error = (await server.post(request("initialize"))).json()["error"]
    assert error["code"] == -32602
    assert {"argument": "protocolVersion", "rule": "is required"} in error["data"]["errors"]


def build_nested(levels: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * levels + b"1" + b"}" * (levels + 1)


MALFORMED = {
    "not JSON": (b"{", -32700),
    "empty": (b"", -32700),
    "bad UTF-8": (b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}', -32700),
    "UTF-16": ('{"jsonrpc":"2.0","id":1,"method":"ping"}'.encode("utf-16"), -32700),
    "two messages": (b'{"jsonrpc":"2.0","id":1,"method":"ping"} {}', -32700),
    "a lone surrogate": (b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}', -32700),
    "10,000 levels": (build_nested(10_000), -32700),
    "65 levels": (build_nested(65), -32600),
    "a number": (b"42", -32600),
    "a string": (b'"ping"', -32600),
    "null": (b"null", -32600),
    "a batch": (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
    "an empty batch": (b"[]", -32600),
    "no version": (b'{"id":1,"method":"ping"}', -32600),
    "version 1.0": (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
    "no method": (b'{"jsonrpc":"2.0","id":1}', -32600),
    "a number as method": (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
    "an empty method": (b'{"jsonrpc":"2.0","id":1,"method":""}', -32600),
    "params in a list": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[1]}', -32600),
    "params as text": (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":"x"}', -32600),
    "a response without a session": (b'{"jsonrpc":"2.0","id":1,"result":{}}', -32600),
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_message_is_told_what_is_wrong(server: RunningServer, name: str) -> None:
    body, code = MALFORMED[name]
    answer = await server.post(body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["code"] == code
    assert set(error["data"]) == {"type", "detail", "retryable"}
    assert error["message"] == error["data"]["detail"]
    assert len(error["message"]) > 10
    assert await still_answers(server)


@pytest.mark.parametrize("name", MALFORMED)
async def test_it_is_told_the_same_under_the_newest_revision(server: RunningServer, name: str) -> None:
    body, code = MALFORMED[name]
    headers = {"mcp_protocol_version": "2026-07-28", "accept": "application/json, text/event-stream"}
    answer = await server.post(body, **headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code


async def test_the_id_of_a_bad_request_is_echoed_where_it_can_be_read(server: RunningServer) -> None:
    answer = await server.post(b'{"jsonrpc":"2.0","id":"mine","method":5}')
    assert answer.json()["id"] == "mine"


async def test_unknown_fields_of_the_envelope_are_ignored_and_of_the_arguments_refused(server: RunningServer) -> None:
    assert (await server.post(ECHO | {"extra": 1})).json()["result"]["content"][0]["text"] == "hi"
    wrong = request("tools/call", {"name": "echo", "arguments": {"text": "hi", "extra": 1}})
    assert (await server.post(wrong)).json()["error"]["data"]["errors"][0]["argument"] == "extra"


@pytest.mark.parametrize("arguments", [[], "x", 5, True])
async def test_arguments_that_are_no_object_are_refused(server: RunningServer, arguments: Any) -> None:
    error = (await server.post(request("tools/call", {"name": "echo", "arguments": arguments}))).json()["error"]
    assert error["code"] == -32602


async def test_another_content_type_is_refused_with_the_right_one(server: RunningServer) -> None:
    answer = await server.http.post("/mcp", content=json.dumps(ECHO), headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


async def test_a_bare_get_is_answered_at_once_with_405(server: RunningServer) -> None:
    for headers in ({}, {"accept": "text/event-stream"}):
        answer = await server.http.get("/mcp", headers=headers)
        assert answer.status_code == 405
        assert "POST" in answer.headers["allow"]


async def test_an_unknown_path_says_where_the_endpoint_is(server: RunningServer) -> None:
    answer = await server.http.get("/nowhere")
    assert answer.status_code == 404
    assert "/mcp" in answer.json()["detail"]
    assert (await server.http.put("/mcp", content="x")).status_code == 405


async def test_a_body_over_the_limit_is_refused_before_it_is_read(server: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {100 * 1024 * 1024}\r\n\r\n".encode() + b"x" * 1000)
    async with asyncio.timeout(PATIENCE_SECONDS):
        answer = await reader.read(4096)
    assert b" 413 " in answer
    writer.close()
    assert await still_answers(server)


async def test_a_body_that_grows_over_the_limit_is_cut_off(server: RunningServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    head = f"POST /mcp HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    answer = b""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            for _ in range(100):
                writer.write(b"100000\r\n" + b"x" * 0x100000 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            pass  # refused while still sending, as it should be
        answer = await reader.read(4096)
    assert b" 413 " in answer
    writer.close()
    assert await still_answers(server)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1.evil.example", "http://localhost:1", "http://127.0.0.1:{port}@evil"]
)  # fmt: skip
@pytest.mark.parametrize("path", ["/mcp", "/metrics", "/api/tools", "/health"])
async def test_a_foreign_origin_is_refused_everywhere(server: RunningServer, origin: str, path: str) -> None:
    headers = {"origin": origin.format(port=server.port), "content-type": "application/json"}
    method = "POST" if path == "/mcp" else "GET"
    answer = await server.http.request(
        method, path, headers=headers, content=json.dumps(ECHO) if method == "POST" else None
    )
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:{port}, evil", "a/?x=", "127.0.0.1@evil"]
)
async def test_a_foreign_host_is_refused_everywhere(server: RunningServer, host: str) -> None:
    for path in ("/mcp", "/health", "/metrics"):
        answer = await server.http.get(path, headers={"host": host.format(port=server.port)})
        assert answer.status_code == 421


async def test_our_own_page_and_a_forwarded_port_are_let_in(server: RunningServer) -> None:
    own = await server.post(ECHO, origin=f"http://localhost:{server.port}")
    assert own.status_code == 200
    assert own.headers["access-control-allow-origin"] == f"http://localhost:{server.port}"
    assert (await server.post(ECHO, host="localhost:9999")).status_code == 200


async def test_two_host_headers_or_none_are_refused(server: RunningServer) -> None:
    for hosts in ("Host: localhost\r\nHost: evil\r\n", ""):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"GET /health HTTP/1.1\r\n{hosts}\r\n".encode())
        async with asyncio.timeout(PATIENCE_SECONDS):
            status = (await reader.readline()).split()[1]
        assert status in (b"400", b"421")
        writer.close()


async def test_a_configured_origin_may_call_and_may_ask_first(serve: Serve) -> None:
    async with serve(server__allowed_origins=["https://app.example"]) as server:
        preflight = await server.http.options("/mcp", headers={"origin": "https://app.example"})
        assert preflight.status_code == 204
        assert "mcp-session-id" in preflight.headers["access-control-allow-headers"]
        assert (await server.post(ECHO, origin="https://app.example")).status_code == 200
        assert (await server.post(ECHO, origin="https://other.example")).status_code == 403


async def test_a_client_that_leaves_stops_the_work_behind_it(server: RunningServer) -> None:
    call = asyncio.create_task(server.call("tools/call", {"name": "hang", "arguments": {}}))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await server.probe.started.wait()
        call.cancel()
        await server.probe.cancelled.wait()
    assert await still_answers(server)


async def test_a_call_that_lasts_too_long_is_stopped_and_told_so(serve: Serve) -> None:
    async with serve(server__request_timeout_seconds=0.1) as server:
        error = (await server.call("tools/call", {"name": "hang", "arguments": {}}))["error"]
        assert error["code"] == -32001
        assert error["data"]["type"] == "DeadlineExceeded"
        assert error["data"]["retryable"] is True
        assert server.probe.cancelled.is_set()


async def test_two_calls_of_one_id_in_a_session_cannot_be_in_flight(server: RunningServer) -> None:
    accept = "application/json, text/event-stream"
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    opened = await server.post(request("initialize", params), accept=accept)
    session = {"mcp_session_id": opened.headers["mcp-session-id"], "accept": accept}
    await server.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, **session)
    hang = request("tools/call", {"name": "hang", "arguments": {}}, id=7)
    first = asyncio.create_task(server.post(hang, **session))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await server.probe.started.wait()
        second = await server.post(request("ping", id=7), **session)
    assert second.status_code == 400
    assert second.json()["error"]["code"] == -32600
    await server.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}, **session)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await first
        again = await server.post(request("ping", id=7), **session)
    assert again.status_code == 200


async def test_an_unknown_session_is_not_found(server: RunningServer) -> None:
    answer = await server.post(ECHO, mcp_session_id="0" * 32, accept="application/json, text/event-stream")
    assert answer.status_code == 404


async def test_toolsets_are_chosen_in_the_address(server: RunningServer) -> None:
    chosen = await server.http.post("/mcp?toolsets=docs", json=request("tools/list"))
    assert len(chosen.json()["result"]["tools"]) > 2
    unknown = await server.http.post("/mcp?toolsets=docs,nope", json=request("tools/list"))
    assert unknown.json()["error"]["code"] == -32602
    assert "nope" in unknown.json()["error"]["message"]


async def test_tools_are_plain_endpoints_too(server: RunningServer) -> None:
    listed = (await server.http.get("/api/tools")).json()["tools"]
    assert "search_documentation" in {tool["name"] for tool in listed}
    answer = await server.http.post("/api/tools/echo", json={"text": "hi"})
    assert answer.json()["structuredContent"] == {"echoed": "hi", "length": 2}
    twice = await server.http.post("/api/tools/echo", json={"text": "hi", "times": "2", "loud": None})
    assert twice.json()["structuredContent"] == {"echoed": "hihi", "length": 4}
    wrong = await server.http.post("/api/tools/echo", json={"text": 1})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["data"]["errors"][0]["argument"] == "text"
    assert (await server.http.post("/api/tools/nothing", json={})).status_code == 404
    down = await server.http.post("/api/tools/down", json={})
    assert down.status_code == 503
    assert down.headers["retry-after"] == "2"
    broken = await server.http.post("/api/tools/broken", json={})
    assert broken.status_code == 500
    assert "secret" not in broken.text


async def test_the_pages_tell_how_the_server_is(server: RunningServer) -> None:
    assert (await server.http.get("/health")).json() == {"status": "healthy", "version": __version__}
    about = (await server.http.get("/")).json()
    assert set(about) == {"status", "service", "version", "protocol"}
    ready = await server.http.get("/ready")
    assert ready.status_code == 200
    assert ready.json()["checks"]["engine"]["state"] == "ok"


async def test_every_call_is_counted_and_no_made_up_name_becomes_a_label(serve: Serve) -> None:
    async with serve() as server:
        await server.post(ECHO)
        await server.call("tools/call", {"name": "made-up-name", "arguments": {}})
        await server.http.post("/mcp?toolsets=nope", json=request("tools/call", {"name": "made-up-2"}))
        await server.call("tools/call", {"uri": "made-up-3"})
        await server.call("tools/call", {"name": "", "uri": "made-up-4"})
        await server.call("made-up-method")
        metrics = (await server.http.get("/metrics")).text
    assert 'refdesk_calls_total{method="tools/call",outcome="ok",tool="echo"} 1.0' in metrics
    assert 'outcome="UnknownTool"' in metrics
    assert "made-up" not in metrics


async def test_a_long_list_comes_in_pages(serve: Serve) -> None:
    async with serve(server__page_size=3) as server:
        names: list[str] = []
        params: dict[str, Any] = {}
        while True:
            page = (await server.call("tools/list", params))["result"]
            assert len(page["tools"]) <= 3
            names += [tool["name"] for tool in page["tools"]]
            if "nextCursor" not in page:
                break
            params = {"cursor": page["nextCursor"]}
        assert names == list(server.desk.registry.tools)


async def test_an_offer_of_http_2_does_not_cost_the_body(server: RunningServer) -> None:
    offer = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABkAAQAoAAAAAIAAAAA"}
    assert (await server.post(ECHO, **offer)).json()["result"]["structuredContent"]["echoed"] == "hi"


@pytest.mark.parametrize(
    "params",
    [
        {"name": "echo", "arguments": {f"x{number}": 1 for number in range(150_000)}},
        {"name": "n" * 1_000_000, "arguments": {}},
        {"name": "get_document", "arguments": {"document_id": "d" * 1_000_000}},
        {"name": "echo", "arguments": {"text": "hi", "k" * 500_000: 1}},
    ],
)
async def test_an_answer_does_not_repeat_what_somebody_made_up(server: RunningServer, params: dict[str, Any]) -> None:
    answer = await server.post(request("tools/call", params))
    assert len(answer.content) < 5000


async def test_a_wide_body_is_not_taken_for_a_deep_one(server: RunningServer) -> None:
    wide = {"name": "echo", "arguments": {"text": "[" * 500, "times": [[]] * 5000}}
    assert (await server.post(request("tools/call", wide))).json()["error"]["code"] == -32602
