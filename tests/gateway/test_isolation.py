"""What is one caller's, or the desk's, reaches nobody else: S6, S8 and S11 of the security cases.

Two thousand calls here; `REFDESK_CROSSED_CALLS=10000 pytest tests/gateway/test_isolation.py` is the long run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import pytest

from tests.conftest import Serve
from tests.downstream.servers import running_talkative
from tests.gateway.desks import ROOT, Gateway, bad, gateway
from tests.gateway.served import serve_desk
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

CALLS = int(os.environ.get("REFDESK_CROSSED_CALLS", "2000"))
AT_A_TIME = 25
LATE_ECHO = ["-m", "tests.gateway.late_echo"]


@asynccontextmanager
async def late_echo_over_http() -> AsyncIterator[str]:
    """Its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, *LATE_ECHO, "http", cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.communicate()


@pytest.mark.slow
async def test_s6_no_answer_is_crossed_between_clients_that_use_the_same_ids(serve: Serve) -> None:
    async with late_echo_over_http() as url:
        over_stdio = {"command": sys.executable, "args": [*LATE_ECHO, "stdio"], "cwd": str(ROOT)}
        async with gateway(serve, http={"url": url}, stdio=over_stdio) as desk, aiohttp.ClientSession() as http:
            sessions = {name: (await desk.session()).headers for name in ("ann", "bob")}
            ways = [(name, headers, server) for name, headers in sessions.items() for server in ("http", "stdio")]
            crossed = await asyncio.gather(*(_find_crossed(http, desk.url, *way, CALLS // len(ways)) for way in ways))
            assert crossed == [[], [], [], []]
            assert (await desk.describe("http"))["in_flight"] == (await desk.describe("stdio"))["in_flight"] == 0


async def _find_crossed(
    http: aiohttp.ClientSession, url: str, name: str, headers: dict[str, str], server: str, calls: int
) -> list[Any]:
    """What came that was another's; the ids are the same for both clients."""
    dice, places = Random(f"{name} {server}"), asyncio.Semaphore(AT_A_TIME)
    wrong: list[Any] = []

    async def call(number: int) -> None:
        text = f"{name} {server} {number}"
        # In a session no two calls at a time have the same id: even ones are for the one server, odd for the other.
        id = 10 + 2 * number + (server == "stdio")
        params = {"name": f"{server}__echo", "arguments": {"text": text, "ms": dice.randrange(10)}}
        message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
        async with places, http.post(url, json=message, headers=headers) as response:
            answer = _message_in(await response.text())
        if answer["id"] != id or answer["result"]["content"][0]["text"] != text:
            wrong.append((text, answer))

    await asyncio.gather(*(call(number) for number in range(calls)))
    return wrong


def _message_in(body: str) -> Any:
    """The message that a body is, or that is the last of its events."""
    data = body if body.startswith("{") else [line for line in body.splitlines() if line.startswith("data: {")][-1][6:]
    return json.loads(data)


OF_THE_CALLER = {
    "authorization": "Bearer of-the-caller",
    "cookie": "session=of-the-caller",
    "x_tenant": "of-the-caller",
}


async def _headers_seen(desk: Gateway, server: str, **headers: str) -> dict[str, str]:
    """What a server behind the desk is sent along with a call."""
    answer = await desk.ask("tools/call", {"name": f"{server}__headers", "arguments": {}}, **headers)
    seen: dict[str, str] = answer["result"]["structuredContent"]["headers"]
    return seen


async def test_s8_what_the_caller_presents_is_passed_on_to_no_server_but_one_that_is_to_have_it(serve: Serve) -> None:
    async with running_talkative() as server:
        own = {"headers": {"authorization": "Bearer of-the-desk"}}
        servers: dict[str, Any] = {
            "plain": {"url": server.url("http")},
            "own": {"url": server.url("http"), **own},
            "sse": {"type": "sse", "url": server.url("sse")},
            "websocket": {"url": server.url("websocket")},
            "forwarded": {"url": server.url("http"), "forward_token": True, **own},
        }
        async with gateway(serve, **servers) as desk:
            for name in ("plain", "own", "sse", "websocket"):
                seen = await _headers_seen(desk, name, **OF_THE_CALLER)
                assert "of-the-caller" not in str(seen)
                assert seen.get("authorization") == ("Bearer of-the-desk" if name == "own" else None)
                assert "of-the-caller" not in str(await _headers_seen(desk, name, x_api_key="of-the-caller"))
            seen = await _headers_seen(desk, "forwarded", **OF_THE_CALLER)
            assert seen["authorization"] == "Bearer of-the-caller"
            assert not {"cookie", "x-api-key", "x-tenant"} & seen.keys()
            # Whoever presents nothing of their own does not get to use what the one before presented.
            assert "of-the-caller" not in str(await _headers_seen(desk, "forwarded"))


SECRETS = {
    "env": "planted-env-5f1c9a",
    "header": "planted-header-7b2e4d",
    "login": "planted-login-9c3f1b",
    "query": "planted-query-2d8a6e",
    "argument": "planted-argument-4e7b3c",
    "caller": "planted-caller-8a5d2f",
}


def _servers_with_secrets(port: int) -> dict[str, Any]:
    refusing, query = f"user:{SECRETS['login']}@127.0.0.1:9", f"token={SECRETS['query']}"
    return {
        "bad": bad(env={"API_KEY": SECRETS["env"]}),
        "crashes": bad("exit", env={"API_KEY": SECRETS["env"]})
        | {"args": [*bad("exit")["args"], f"--token={SECRETS['argument']}"]},
        "refused": {
            "url": f"http://{refusing}/mcp?{query}",
            "headers": {"Authorization": f"Bearer {SECRETS['header']}"},
        },
        "talk": {"url": f"http://127.0.0.1:{port}/mcp?{query}", "headers": {"X-Api-Key": SECRETS["header"]}},
    }


@pytest.mark.slow
async def test_s11_no_secret_is_in_the_log_an_error_or_a_page(tmp_path: Path) -> None:
    async with running_talkative() as server:
        servers = _servers_with_secrets(server.port)
        async with serve_desk(tmp_path, "bad", "talk", **servers) as desk:
            desk.http.headers["authorization"] = f"Bearer {SECRETS['caller']}"
            tools = [f"bad__{tool}" for tool in ("secret", "stderrodd", "crash", "rpcerror", "echo")]
            said = [await desk.call(tool) for tool in (*tools, *(f"{name}__echo" for name in servers))]
            await desk.until_described("refused", state="Error")
            server.process.kill()
            await server.process.wait()
            said += [await desk.call("talk__echo") for _ in range(10)]
            said += [await desk.ask(method) for method in ("tools/list", "resources/list", "prompts/list")]
            pages = [(await desk.http.get(page)).text for page in ("/ready", "/metrics", "/health", "/api/tools")]
            await desk.stop()
        texts = [*map(str, said), *pages, *map(json.dumps, desk.log), *_texts_below(tmp_path / "data")]
        found = [(name, text[:300]) for text in texts for name, secret in SECRETS.items() if secret in text]
        assert found == []
        # They would have been there: the servers have said them, and somebody has masked them.
        assert any("using key ********" in text for text in texts)
        assert any("refused" in text and "Error" in text for text in pages)


def _texts_below(folder: Path) -> list[str]:
    """Every file that the desk has written, such as the log of each server and the lists that are kept."""
    return [path.read_bytes().decode("utf-8", "replace") for path in folder.rglob("*") if path.is_file()]
