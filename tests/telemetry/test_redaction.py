"""A running desk keeps to itself what it was told in confidence, wherever one looks."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from tests.processes import started_server
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

KEY = "planted-key-of-a-caller-1"
PLANTED = {
    "a caller's key": KEY,
    "a key for another service": "planted-answers-key-2",
    "a password inside an address": "planted-redis-password-3",
    "a credential that is refused": "planted-wrong-bearer-4",
    "a cookie": "planted-cookie-5",
    "an argument": "planted-argument-6",
}

CONFIG = f"""
auth: {{required: true, keys: [{{key: {KEY}, user: ann}}]}}
answers: {{api_key: {PLANTED["a key for another service"]}}}
cache: {{redis: {{url: "redis://user:{PLANTED["a password inside an address"]}@localhost:6399"}}}}
logging: {{level: debug}}
"""


def call(tool: str, arguments: object, method: str = "tools/call") -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"name": tool, "arguments": arguments}}


async def visit(url: str) -> str:
    """Ask for all kinds of things, right and wrong; what came back, less what echoes the question."""
    argument = PLANTED["an argument"]
    headers = {"x-api-key": KEY, "cookie": f"session={PLANTED['a cookie']}"}
    messages: list[object] = [
        call("search_documentation", {"query": argument}),
        call("search_documentation", {"query": [argument], argument: 1}),
        call("get_document", {"document": argument}),
        call("convert_url", {"url": f"http://127.0.0.1:9/{argument}"}),
        call(argument, {}, method="no/such/method"),
    ]
    async with httpx2.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_SECONDS, verify=False) as http:
        for message in messages:
            await http.post("/mcp", json=message)
        await http.post("/mcp", content=f'{{"broken": "{argument}', headers={"content-type": "application/json"})
        refused = await http.post(
            "/mcp",
            json=messages[0],
            headers={"x-api-key": PLANTED["a credential that is refused"]},
        )
        assert refused.status_code == 401
        pages = [await http.get(path) for path in ("/", "/health", "/ready", "/metrics")]
    assert all(page.status_code == 200 for page in pages)
    return "\n".join([refused.text, *(page.text for page in pages)])


@pytest.mark.slow
async def test_six_planted_secrets_are_in_no_line_and_on_no_page(tmp_path: Path) -> None:
    (tmp_path / "refdesk.yaml").write_text(CONFIG)
    async with started_server(tmp_path) as server:
        shown = await visit(server.url)
        await server.stop()
    assert len([line for line in server.log if line["event"] == "call"]) >= 5, "there is something to look through"
    for what, secret in PLANTED.items():
        assert secret not in shown, what
        assert [line for line in server.log if secret in json.dumps(line)] == [], what
