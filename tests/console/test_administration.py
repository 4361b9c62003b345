"""Keys and tenants in the console, and who administers a desk."""

from __future__ import annotations

from typing import Any

import pytest

from refdesk.calls import ANONYMOUS, CONSOLE, Call
from refdesk.errors import Forbidden
from refdesk.policy.keys import digest
from refdesk.policy.policies import CONSOLE_RULES
from tests.conftest import Serve
from tests.console.asking import act, bearer, bring, get_refusal

pytestmark = pytest.mark.anyio

ADMINISTERS: dict[str, dict[str, Any]] = {
    "keys": {},
    "make_key": {"name": "x"},
    "revoke_key": {"name": "x"},
    "tenants": {},
    "server_log": {"name": "x"},
    "set_server": {"name": "x", "enabled": True},
    "refresh_server": {"name": "x"},
    "approve": {"name": "x"},
}
KEYS = [
    {"key": "k-admin", "user": "root", "name": "boss", "roles": ["admin"]},
    {"key": "k-plain", "user": "ann", "tenant": "acme"},
    {"key": "k-writer", "user": "wri", "roles": ["writer", "service"]},
]


async def test_only_administrators_administer_where_there_are_keys(serve: Serve) -> None:
    async with serve(auth__keys=KEYS, embedding__source="none") as server:
        for action, params in ADMINISTERS.items():
            for key in ("", "k-plain", "k-writer"):
                message = await get_refusal(server, action, 403, key=key, **params)
                assert "requires the role 'admin'; create a key with `refdesk keys make NAME --role admin`" in message
        assert (await act(server, "me", key="k-admin"))["may_administer"] is True
        assert len((await act(server, "keys", key="k-admin"))["keys"]) == 3


async def test_the_first_key_takes_the_administration_from_everybody_at_once(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        assert (await act(server, "me"))["may_administer"] is True
        made = await act(server, "make_key", name="boss", roles=["admin"])
        for action, params in ADMINISTERS.items():
            await get_refusal(server, action, 403, **params)
        me = await act(server, "me")
        assert (me["may_administer"], me["may_write"]) == (False, True)
        assert (await act(server, "keys", key=made["key"]))["keys"] == [made["entry"]]
        assert await act(server, "revoke_key", key=made["key"], name="boss") == {"revoked": "boss"}
        await act(server, "keys", 403)
        assert (await server.http.post("/api/console/me", json={}, headers=bearer(made["key"]))).status_code == 401


@pytest.mark.parametrize(
    "exposed",
    [
        {"server__host": "0.0.0.0", "server__allow_anonymous": True},
        {"server__allowed_hosts": ["desk.example"]},
        {"server__allowed_hosts": ["*"]},
    ],
)
async def test_a_desk_that_others_can_reach_is_administered_by_nobody_without_a_key(
    serve: Serve, exposed: dict[str, Any]
) -> None:
    async with serve(**exposed, embedding__source="none") as server:
        answer = await server.http.post(f"http://127.0.0.1:{server.port}/api/console/keys", json={})
        assert answer.status_code == 403


async def test_keys_are_made_listed_and_revoked(serve: Serve) -> None:
    async with serve(auth__keys=KEYS, embedding__source="none") as server:
        asked = {"name": "ci", "tenant": "acme", "roles": ["reader"], "toolsets": ["docs"], "expires": "30d"}
        made = await act(server, "make_key", key="k-admin", **asked)
        key = made["key"]
        assert made["entry"]["expires"] is not None
        listed = await server.http.post("/api/console/keys", json={}, headers={"authorization": "Bearer k-admin"})
        assert [each["name"] for each in listed.json()["keys"]] == ["ci", "boss", "", ""]
        for secret in (key, digest(key).hex(), "k-plain", digest("k-plain").hex()):
            assert secret not in listed.text
        assert await act(server, "revoke_key", key="k-admin", name="ci") == {"revoked": "ci"}
        assert "is configured" in await get_refusal(server, "revoke_key", 400, key="k-admin", name="boss")
        assert "there is no key named 'ci'" in await get_refusal(server, "revoke_key", 400, key="k-admin", name="ci")
        wrong = await act(server, "make_key", 400, key="k-admin", name="x", roles=["boss"])
        [problem] = wrong["error"]["data"]["errors"]
        assert problem["argument"] == "roles"
        assert "known are reader, writer, service, admin" in problem["rule"]


async def test_tenants_are_counted_with_their_keys(serve: Serve) -> None:
    async with serve(auth__keys=KEYS, embedding__source="none") as server:
        await bring(server, "# Foxes\n\nThey dig.", "Foxes", key="k-plain")
        tenants = {each.pop("id"): each for each in (await act(server, "tenants", key="k-admin"))["tenants"]}
        assert tenants["default"] == {"documents": 0, "collections": 0, "bytes": 0, "keys": 2}
        acme = tenants["acme"]
        assert (acme["documents"], acme["collections"], acme["keys"]) == (1, 1, 1)
        assert acme["bytes"] > 0
        assert "" not in tenants


@pytest.mark.parametrize("header", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP"])
async def test_who_comes_through_a_proxy_administers_with_a_key_alone(serve: Serve, header: str) -> None:
    async with serve(embedding__source="none") as server:
        passed_on = {header: "203.0.113.9"}
        for action, params in ADMINISTERS.items():
            answer = await server.http.post(f"/api/console/{action}", json=params, headers=passed_on)
            assert answer.status_code == 403, action
        me = (await server.http.post("/api/console/me", json={}, headers=passed_on)).json()
        assert (me["may_administer"], me["may_write"]) == (False, True)
        key = (await act(server, "make_key", name="boss", roles=["admin"]))["key"]
        answer = await server.http.post("/api/console/keys", json={}, headers=passed_on | bearer(key))
        assert answer.status_code == 200


ORIGIN = "https://wiki.example"
SENT_BY: dict[str, dict[str, str]] = {
    "a program": {},
    "a proxy": {"x-forwarded-for": "203.0.113.9"},
    "an allowed page": {"origin": ORIGIN},
    "a foreign page": {"origin": "https://evil.example"},
    "a foreign page through a proxy": {"origin": "https://evil.example", "via": "1.1 tunnel"},
}
ACCEPT = {"accept": "application/json, text/event-stream"}
MODERN_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}


@pytest.mark.parametrize("sender", SENT_BY)
async def test_console_methods_are_answered_by_the_console_endpoint_alone(serve: Serve, sender: str) -> None:
    async with serve(embedding__source="none", server__allowed_origins=[ORIGIN]) as server:
        sent = SENT_BY[sender]
        is_foreign = "evil" in sent.get("origin", "")
        hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        opening = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        opened = await server.http.post("/mcp", json=opening, headers=ACCEPT)
        session = ACCEPT | {"mcp-session-id": opened.headers["mcp-session-id"]}
        modern = ACCEPT | {"mcp-protocol-version": "2026-07-28"}
        user = {"user_id": "ann", "tenant_id": "default", "roles": ["admin"]}
        for method in CONSOLE_RULES:
            action = method.removeprefix(CONSOLE)
            params = ADMINISTERS.get(action, {})
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": method, "arguments": params}}
            doors: list[tuple[str, dict[str, Any], dict[str, str]]] = [
                ("/mcp", message, {}),
                ("/mcp", call, {}),
                ("/mcp", message, session),
                ("/mcp", {**message, "params": {**params, "_meta": MODERN_META}}, modern | {"mcp-method": method}),
                ("/internal/mcp/execute", {"tool_name": method, "arguments": params, "user": user}, {}),
                (f"/api/tools/{method}", params, {}),
            ]
            for path, body, headers in doors:
                answer = await server.http.post(path, json=body, headers=headers | sent)
                if is_foreign:
                    assert answer.status_code == 403, (path, method)
                else:
                    assert answer.json()["error"]["code"] in (-32601, -32602), (path, method, answer.text)
            if action == "events":
                continue
            # Without arguments, so that nothing is changed.
            answer = await server.http.post(f"/api/console/{action}", json={}, headers=sent)
            is_refused = "origin" in sent or (sender == "a proxy" and action in ADMINISTERS)
            assert (answer.status_code == 403) == is_refused, (method, answer.text)


async def test_a_call_that_does_not_come_from_the_console_administers_with_a_role_alone(serve: Serve) -> None:
    async with serve(embedding__source="none") as server:
        for action, params in ADMINISTERS.items():
            with pytest.raises(Forbidden, match="requires the role 'admin'"):
                await server.desk.handle(Call(f"{CONSOLE}{action}", params, ANONYMOUS))
