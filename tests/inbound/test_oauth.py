"""Access tokens at the door: a real server, a real authorization server, and the official client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import mcp_types as types
import pytest
from mcp import Client
from mcp.client.auth import TokenStorage
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken, ProtectedResourceMetadata

from refdesk.calls import Annotations
from refdesk.config.models import Config
from refdesk.errors import ConfigError
from refdesk.tools.registry import Tool
from tests.conftest import Serve
from tests.issuers import (
    CLIENT,
    KEYS,
    SECRET,
    AuthorizationServer,
    SigningKey,
    authorization_server,
)
from tests.ports import find_free_port
from tests.processes import started_server
from tests.servers import NoArguments, RunningServer, whoami
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

AUDIENCE = "https://desk.example/mcp"
WHOAMI = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "whoami", "arguments": {}}}
WRITE = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "write", "arguments": {}}}
WELL_KNOWN = "/.well-known/oauth-protected-resource"
MODES = ["legacy", "2026-07-28"]
KEY = "a-key-of-some-length"


@pytest.fixture
async def issuer() -> AsyncIterator[AuthorizationServer]:
    async with authorization_server(AUDIENCE) as server:
        yield server


@asynccontextmanager
async def serving(serve: Serve, issuer: AuthorizationServer, **settings: Any) -> AsyncIterator[RunningServer]:
    oauth = {"auth__required": True, "auth__oauth__issuer": issuer.url, "auth__oauth__audience": AUDIENCE}
    async with serve(**oauth | settings) as server:
        write = Tool(
            "write", "Write", "Changes.", "docs", NoArguments, whoami, annotations=Annotations(read_only=False)
        )
        server.desk.registry.add_tool(write)
        yield server


async def post(server: RunningServer, token: str | None, message: Any = WHOAMI, **headers: str) -> httpx2.Response:
    bearer = {"authorization": f"Bearer {token}"} if token is not None else {}
    return await server.post(message, **bearer, **headers)


def field(answer: httpx2.Response, name: str) -> str | None:
    return extract_field_from_www_auth(answer, name)


async def test_a_token_says_who_calls(serve: Serve, issuer: AuthorizationServer) -> None:
    async with serving(serve, issuer, auth__oauth__tenant_claim="org") as server:
        answer = await post(server, issuer.token(sub="ann", org="acme"))
        assert answer.json()["result"]["content"][0]["text"] == "acme/ann"
        rest = await server.http.post(
            "/api/tools/whoami", json={}, headers={"authorization": f"Bearer {issuer.token(sub='bob', org='beta')}"}
        )
        assert rest.json()["content"][0]["text"] == "beta/bob"


async def test_a_client_without_a_token_is_told_where_to_get_one(serve: Serve, issuer: AuthorizationServer) -> None:
    async with serving(serve, issuer, auth__oauth__required_scopes=["docs:read", "docs:search"]) as server:
        answer = await post(server, None)
        assert answer.status_code == 401
        assert field(answer, "resource_metadata") == f"https://desk.example{WELL_KNOWN}/mcp"
        assert field(answer, "scope") == "docs:read docs:search"
        assert field(answer, "error") is None, "no error for one who has not sent anything yet"
        for path in (WELL_KNOWN, f"{WELL_KNOWN}/mcp"):
            page = await server.http.get(path)
            assert page.status_code == 200
            told = ProtectedResourceMetadata.model_validate_json(page.content)
            assert str(told.resource) == AUDIENCE
            assert [str(url).rstrip("/") for url in told.authorization_servers] == [issuer.url]
            assert told.scopes_supported == ["docs:read", "docs:search"]


async def test_without_an_issuer_there_is_no_such_page_and_no_such_challenge(serve: Serve) -> None:
    async with serve(auth__required=True, auth__keys=[{"key": KEY}]) as server:
        assert (await server.http.get(WELL_KNOWN)).status_code == 404
        assert (await post(server, None)).headers["www-authenticate"] == "Bearer"


async def test_a_wrong_token_is_refused_before_its_body_is_read(serve: Serve, issuer: AuthorizationServer) -> None:
    async with serving(serve, issuer) as server:
        for token, said in (
            (issuer.token(exp=1), "The access token has expired"),
            (issuer.token(aud="https://other.example"), "The access token is for another audience"),
            (issuer.token(iss="https://evil.example"), "The access token is from another issuer"),
            (issuer.token(SigningKey.make("one")), "The access token is not valid"),
            ("a.b.c", "The access token is not valid"),
        ):
            answer = await server.http.post(
                "/mcp", content=b"x" * 1_000_000, headers={"authorization": f"Bearer {token}"}
            )
            assert (answer.status_code, answer.json()) == (401, {"detail": said})
            assert (field(answer, "error"), field(answer, "error_description")) == ("invalid_token", said)
            assert field(answer, "resource_metadata")
        assert server.app.bodies.in_flight == 0


async def test_a_token_with_too_few_scopes_is_told_all_it_needs(serve: Serve, issuer: AuthorizationServer) -> None:
    async with serving(serve, issuer, auth__oauth__required_scopes=["a", "b"]) as server:
        answer = await post(server, issuer.token(scope="a"))
        assert answer.status_code == 403
        assert (field(answer, "error"), field(answer, "scope")) == ("insufficient_scope", "a b")
        assert field(answer, "resource_metadata")
        assert (await post(server, issuer.token(scope="b a"))).status_code == 200


SCOPES: dict[str, Any] = {"auth__oauth__scope_roles": {"read": ["reader"], "write": ["writer"]}}


async def test_a_call_beyond_the_scopes_of_a_token_is_a_challenge_for_more(
    serve: Serve, issuer: AuthorizationServer
) -> None:
    async with serving(serve, issuer, **SCOPES) as server:
        reading = issuer.token(scope="read")
        for answer in (
            await post(server, reading, WRITE),
            await post(server, reading, WRITE, accept="application/json, text/event-stream"),
            await server.http.post("/api/tools/write", json={}, headers={"authorization": f"Bearer {reading}"}),
        ):
            assert answer.status_code == 403
            assert (field(answer, "error"), field(answer, "scope")) == ("insufficient_scope", "read write")
        assert (await post(server, reading)).status_code == 200
        listed = (await post(server, reading, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"})).json()
        assert "write" not in {tool["name"] for tool in listed["result"]["tools"]}
        assert "result" in (await post(server, issuer.token(scope="read write"), WRITE)).json()
        assert (await post(server, issuer.token())).status_code == 403


async def test_keys_and_tokens_are_taken_side_by_side(serve: Serve, issuer: AuthorizationServer) -> None:
    async with serving(serve, issuer, auth__keys=[{"key": KEY, "user": "key-user"}]) as server:
        assert "default/key-user" in (await post(server, KEY)).text
        assert "default/ann" in (await post(server, issuer.token())).text
        for wrong in (None, "wrong"):
            answer = await post(server, wrong)
            assert (answer.status_code, answer.json()) == (401, {"detail": "Invalid API key"})
            assert field(answer, "resource_metadata")


async def test_an_issuer_that_is_down_is_no_fault_of_the_caller(serve: Serve, issuer: AuthorizationServer) -> None:
    async with serving(serve, issuer, auth__keys=[{"key": KEY}]) as server:
        await issuer.stop()
        answer = await post(server, issuer.token())
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert "www-authenticate" not in answer.headers
        assert (await post(server, KEY)).status_code == 200, "keys do not need the issuer"
        ready = await server.http.get("/ready")
        assert ready.status_code == 200
        assert ready.json()["checks"]["issuer"]["state"] == "down"


async def test_a_page_of_an_allowed_origin_can_read_the_challenge(serve: Serve, issuer: AuthorizationServer) -> None:
    """Without it, a client in a browser could not find out where to get a token."""
    async with serving(serve, issuer, server__allowed_origins=["https://app.example"]) as server:
        answer = await post(server, None, origin="https://app.example")
        assert answer.status_code == 401
        assert "www-authenticate" in answer.headers["access-control-expose-headers"]
        assert answer.headers["access-control-allow-origin"] == "https://app.example"


async def test_one_fetch_serves_a_crowd_that_comes_with_new_tokens(serve: Serve, issuer: AuthorizationServer) -> None:
    async with serving(serve, issuer) as server:
        issuer.hold()
        calls = [asyncio.create_task(post(server, issuer.token(sub=f"{number}"))) for number in range(30)]
        await issuer.arrived.wait()
        issuer.held.set()
        assert [answer.status_code for answer in await asyncio.gather(*calls)] == [200] * 30
        assert issuer.asked[KEYS] == 1


async def test_a_session_belongs_to_the_user_of_the_token_and_not_to_the_token(
    serve: Serve, issuer: AuthorizationServer
) -> None:
    accept = "application/json, text/event-stream"
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    initialize = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
    async with serving(serve, issuer, auth__oauth__tenant_claim="org") as server:
        opened = await post(server, issuer.token(sub="ann", org="acme"), initialize, accept=accept)
        session = {"mcp_session_id": opened.headers["mcp-session-id"], "accept": accept}
        renewed = issuer.token(sub="ann", org="acme", jti="another")
        assert (await post(server, renewed, ping, **session)).status_code == 200
        for other in (issuer.token(sub="bob", org="acme"), issuer.token(sub="ann", org="beta")):
            assert (await post(server, other, ping, **session)).status_code == 404
            assert (await post(server, other, WHOAMI, **session)).status_code == 404
        assert (await post(server, issuer.token(sub="ann", org="acme", exp=1), ping, **session)).status_code == 401


class Storage(TokenStorage):
    """Where the official client keeps what it was given."""

    def __init__(self) -> None:
        self.tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        raise AssertionError("this client is registered already")


@pytest.mark.parametrize("mode", MODES)
async def test_the_official_client_finds_its_way_and_comes_back_with_more_scopes(
    serve: Serve, issuer: AuthorizationServer, mode: Any
) -> None:
    """From a bare 401 to a token, through our metadata and the issuer's; then step-up for a tool that writes."""
    own: dict[str, Any] = {"server__port": find_free_port(), "auth__oauth__audience": None, **SCOPES}
    async with serving(serve, issuer, auth__oauth__required_scopes=["read"], **own) as server:
        url, storage = f"{server.url}/mcp", Storage()
        provider = ClientCredentialsOAuthProvider(url, storage, CLIENT, SECRET, issuer=issuer.url)
        async with (
            httpx2.AsyncClient(auth=provider, verify=False, timeout=PATIENCE_SECONDS) as http,
            Client(streamable_http_client(url, http_client=http), mode=mode) as client,
        ):
            first = await client.call_tool("whoami", {})
            assert storage.tokens is not None
            assert storage.tokens.scope == "read"
            second = await client.call_tool("write", {})
            assert storage.tokens.scope == "read write"
        for result in (first, second):
            assert isinstance(result, types.CallToolResult)
            assert isinstance(result.content[0], types.TextContent)
            assert result.content[0].text == f"default/{CLIENT}"


async def test_what_a_caller_shows_at_the_door_goes_no_further(serve: Serve, issuer: AuthorizationServer) -> None:
    """The window service sees its own key and nothing of the caller's (a token is for one server only)."""
    heads: list[str] = []

    async def record(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 500 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    service = await asyncio.start_server(record, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{service.sockets[0].getsockname()[1]}/window"
    remote = {"reader__retrieval_window_url": url, "reader__retrieval_api_key": "its-own-key"}
    async with service, serving(serve, issuer, **remote) as server:
        token = issuer.token()
        arguments = {"doc_id": "refdesk/index.md", "anchor_chunk_id": "c1"}
        params = {"name": "read_chunk_window", "arguments": arguments}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        await post(server, token, message, cookie="session=mine", x_api_key="mine-too")
    assert heads
    for head in heads:
        assert "its-own-key" in head
        for secret in (token, "mine", "cookie", "authorization"):
            assert secret not in head.lower()


@pytest.mark.slow
async def test_no_credential_is_ever_written_to_the_log(issuer: AuthorizationServer, tmp_path: Path) -> None:
    """Six secrets, each used rightly and wrongly, with everything logged that can be."""
    wrong_key, wrong_token = "planted-wrong-key", issuer.token(SigningKey.make("one"), sub="planted")
    good, expired = issuer.token(), issuer.token(exp=1)
    secrets = [KEY, wrong_key, wrong_token, good, expired, "planted-in-the-address"]
    environ = {
        "MCP_AUTH_REQUIRED": "true",
        "MCP_API_KEY": KEY,
        "REFDESK__LOGGING__LEVEL": "debug",
        "REFDESK__AUTH__OAUTH__ISSUER": issuer.url,
        "REFDESK__AUTH__OAUTH__AUDIENCE": AUDIENCE,
        "REFDESK__AUTH__OAUTH__JWKS_URL": f"http://user:{secrets[-1]}@{issuer.url.removeprefix('http://')}{KEYS}",
    }
    async with started_server(tmp_path, **environ) as server:
        answers = []
        async with httpx2.AsyncClient(base_url=server.url, verify=False, timeout=PATIENCE_SECONDS) as http:
            for secret in secrets[:5]:
                bearer, key = {"authorization": f"Bearer {secret}"}, {"x-api-key": secret}
                answers += [
                    await http.post("/api/tools/nothing", json={}, headers=headers) for headers in (bearer, key)
                ]
            answers.append(await http.get("/metrics", headers={"x-api-key": KEY}))
            answers += [await http.get(path) for path in ("/ready", "/health", WELL_KNOWN)]
        await server.stop()
    assert any(answer.status_code == 404 for answer in answers), "the right ones were let in"
    told = json.dumps(server.log) + "".join(answer.text + str(answer.headers) for answer in answers)
    assert [secret for secret in secrets if secret in told] == []


@pytest.mark.parametrize("where", [{"server__host": "0.0.0.0"}, {"server__port": 0}])
def test_an_audience_is_asked_for_where_the_own_address_is_not_known(
    settings: Callable[..., Config], where: dict[str, Any]
) -> None:
    oauth: dict[str, Any] = {"auth__required": True, "auth__oauth__issuer": "https://as.example", "server__port": 8001}
    assert settings(**oauth).token_audience == "http://127.0.0.1:8001/mcp"
    with pytest.raises(ConfigError, match=r"auth\.oauth\.audience"):
        settings(**oauth | where)
    assert settings(**oauth | where, auth__oauth__audience=AUDIENCE).token_audience == AUDIENCE
