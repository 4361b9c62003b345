"""The web console at the door: its pages, who may call what behind them, and what a foreign page cannot do."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import httpx2
import pytest

from refdesk.inbound.console_routes import POLICY, prefers_html
from tests.conftest import Serve
from tests.servers import RunningServer
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
FOREIGN = "https://evil.example"


async def act(server: RunningServer, action: str, status: int = 200, /, key: str = "", **params: Any) -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    answer = await server.http.post(f"/api/console/{action}", json=params, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


async def raw(server: RunningServer, path: bytes) -> bytes:
    """The answer to a path exactly as it is given, which clients would tidy up."""

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS) as connection:
            connection.sendall(b"GET %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n" % path)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    return await asyncio.to_thread(ask)


# Pages


async def test_a_browser_at_the_root_is_sent_to_the_console_and_a_probe_is_not(server: RunningServer) -> None:
    for method in ("GET", "HEAD"):
        sent = await server.http.request(method, "/", headers={"accept": BROWSER})
        assert (sent.status_code, sent.headers["location"], sent.content) == (303, "/console/", b"")
    for accept in ("*/*", "application/json", "application/json, text/html;q=0.9", ""):
        assert (await server.http.get("/", headers={"accept": accept})).json()["service"] == "Refdesk"
    bare = await server.http.get("/console")
    assert (bare.status_code, bare.headers["location"]) == (308, "/console/")


@pytest.mark.parametrize(
    ("accept", "html"),
    [
        (BROWSER, True),
        ("text/html", True),
        ("TEXT/HTML;level=1", True),
        ("*/*", False),
        ("", False),
        ("text/html;q=0.5,*/*;q=0.8", False),
        ("text/html, application/json", False),
        ("text/html;q=x", False),
        ("text/*", False),
        (";,;q=1,text/html", True),
    ],
)
def test_a_page_is_sent_only_to_those_who_prefer_it(accept: str, html: bool) -> None:
    assert prefers_html(accept) is html


@pytest.mark.parametrize("path", ["/console/", "/console/documents", "/console/index.html", "/console/nothing.js"])
async def test_every_answer_below_the_console_has_the_strict_policy(server: RunningServer, path: str) -> None:
    assert POLICY == CSP
    answer = await server.http.get(path)
    assert answer.status_code == (404 if "nothing" in path else 200)
    assert answer.headers["content-security-policy"] == CSP
    for name, value in {
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }.items():
        assert answer.headers[name] == value
    assert "set-cookie" not in answer.headers


async def test_a_page_that_is_known_already_is_not_sent_again(server: RunningServer) -> None:
    first = await server.http.get("/console/")
    assert first.headers["content-type"] == "text/html; charset=utf-8"
    etag = first.headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        again = await server.http.get("/console/", headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert again.headers["content-security-policy"] == CSP
    head = await server.http.head("/console/")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(len(first.content)))


@pytest.mark.parametrize(
    "path",
    [
        b"/console/../pyproject.toml",
        b"/console/%2e%2e/console.py",
        b"/console/..%2fconsole.py",
        b"/console/..%5cconsole.py",
        b"/console/..\\console.py",
        b"/console/%00",
        b"/console/index.html%00.js",
        b"/console//etc/passwd",
        b"/console/%252e%252e/x",
        b"/console/.",
    ],
)
async def test_no_path_leads_out_of_the_pages(server: RunningServer, path: bytes) -> None:
    assert (await raw(server, path)).startswith(b"HTTP/1.1 404 ")


async def test_a_console_that_is_switched_off_is_nowhere(serve: Serve) -> None:
    async with serve(console__enabled=False) as server:
        assert (await server.http.get("/", headers={"accept": BROWSER})).json()["service"] == "Refdesk"
        for path in ("/console", "/console/", "/console/index.html", "/api/console/events"):
            assert (await server.http.get(path)).status_code == 404
        assert (await server.http.post("/api/console/me", json={})).status_code == 404


# Foreign pages


@pytest.mark.parametrize("path", ["/api/console/me", "/api/tools/whoami", "/api/uploads?name=x"])
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": FOREIGN},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "http://localhost.evil.example"},
        {"sec-fetch-site": "cross-site"},
    ],
)
async def test_a_foreign_page_is_refused(server: RunningServer, path: str, headers: dict[str, str]) -> None:
    kind = {"content-type": "application/octet-stream" if "uploads" in path else "application/json"}
    answer = await server.http.post(path, content=b"{}", headers=kind | headers)
    assert answer.status_code == 403, answer.text
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
async def test_what_a_form_could_send_is_refused(server: RunningServer, kind: str) -> None:
    answer = await server.http.post("/api/console/me", content=b"{}", headers={"content-type": kind})
    assert answer.status_code == 415


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_the_consoles_own_page_may_call(server: RunningServer, name: str, scheme: str) -> None:
    host = f"{name}:{server.port}"
    headers = {"host": host, "origin": f"{scheme}://{host}", "sec-fetch-site": "same-origin"}
    for path in ("/api/console/me", "/api/tools/whoami"):
        assert (await server.http.post(path, json={}, headers=headers)).status_code == 200


async def test_a_page_behind_a_proxy_may_call_by_the_name_that_is_allowed(serve: Serve) -> None:
    more = {"server__allowed_hosts": ["desk.example"]}
    async with serve(**more) as server:
        for host, origin, status in (
            ("desk.example", "https://desk.example", 200),
            ("desk.example", "https://other.example", 403),
            ("localhost", "https://desk.example", 403),
            ("other.example", "https://other.example", 421),
        ):
            headers = {"host": host, "origin": origin}
            answer = await server.http.post("/api/console/me", json={}, headers=headers)
            assert answer.status_code == status, (host, origin)


async def test_an_origin_that_is_allowed_calls_tools_and_never_the_console(serve: Serve) -> None:
    async with serve(server__allowed_origins=[FOREIGN]) as server:
        headers = {"origin": FOREIGN, "sec-fetch-site": "cross-site"}
        assert (await server.http.post("/api/tools/whoami", json={}, headers=headers)).status_code == 200
        assert (await server.http.post("/api/console/me", json={}, headers=headers)).status_code == 403
        assert (await server.http.get("/api/console/events", headers=headers)).status_code == 403
        for site in ("cross-site", "same-site"):
            answer = await server.http.get("/api/console/events", headers={"sec-fetch-site": site})
            assert answer.status_code == 403


# Actions


async def test_only_the_methods_that_a_path_has_are_answered(server: RunningServer) -> None:
    for method, path, allowed in (
        ("GET", "/api/console/me", "POST, OPTIONS"),
        ("POST", "/api/console/events", "GET, OPTIONS"),
        ("POST", "/console/", "GET, HEAD, OPTIONS"),
    ):
        answer = await server.http.request(method, path, json={} if method == "POST" else None)
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


async def test_what_is_wrong_with_an_action_is_told_as_of_a_tool(server: RunningServer) -> None:
    assert "Unknown method" in (await act(server, "nothing", 404))["error"]["message"]
    unknown = (await act(server, "documents", 400, colection="x"))["error"]
    assert unknown["data"]["errors"] == [
        {"argument": "colection", "rule": "unknown argument; did you mean collection?"}
    ]
    assert (await act(server, "documents", 400, limit="9"))["error"]["data"]["errors"][0]["argument"] == "limit"
    assert (await act(server, "read", 404, id="no/such"))["error"]["data"]["type"] == "DocumentNotFound"
    for body in (b"[]", b"7", b'"x"', b"{"):
        answer = await server.http.post("/api/console/me", content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400


async def test_an_empty_body_is_an_action_without_parameters(server: RunningServer) -> None:
    answer = await server.http.post("/api/console/me", headers={"content-type": "application/json"})
    assert answer.json()["user"] == "anonymous"


async def test_an_open_desk_on_this_machine_says_so(server: RunningServer) -> None:
    me = await act(server, "me")
    assert me["may_write"] is me["may_administer"] is True
    assert me["authenticated"] is me["auth_required"] is me["has_keys"] is False
    assert (me["engine"], me["embedding"], me["answers"]) == ("embedded", None, None)
    assert set(me["toolsets"]) == {"docs", "r2r", "reader", "convert", "downstream"}


async def test_a_page_without_a_key_is_shown_and_told_that_it_needs_one(serve: Serve) -> None:
    keys = [{"key": "k-reader", "user": "ann", "roles": ["reader"]}]
    async with serve(auth__required=True, auth__keys=keys) as server:
        assert (await server.http.get("/console/")).status_code == 200
        for answer in (
            await server.http.post("/api/console/me", json={}),
            await server.http.get("/api/console/events"),
            await server.http.post("/api/console/me", json={}, headers={"authorization": "Bearer wrong"}),
        ):
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
        me = await act(server, "me", key="k-reader")
        assert (me["user"], me["roles"], me["may_write"], me["may_administer"]) == ("ann", ["reader"], False, False)


async def test_calls_of_the_console_are_counted_and_limited_as_all_others(serve: Serve) -> None:
    async with serve(rate_limits__calls=3) as server:
        for _ in range(3):
            await act(server, "collections")
        refused: httpx2.Response = await server.http.post("/api/console/collections", json={})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        assert (await server.http.get("/api/console/events")).status_code == 429
        exposed = server.desk.metrics.registry.get_sample_value(
            "refdesk_calls_total", {"method": "console/collections", "tool": "", "outcome": "ok"}
        )
        assert exposed == 3
        assert json.loads(refused.text)["error"]["data"]["retry_after"] > 0
