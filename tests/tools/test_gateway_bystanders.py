"""Several callers at one process: what it says during the call of one is not for another."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from refdesk.calls import SILENT, Client
from refdesk.config.server_model import McpServerConfig
from tests.tools.gateways import Talker, open_test_desk, text_of
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio

NOSY = """
import json, sys
waiting, asker = [], None
def say(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    heard = json.loads(line)
    id, method = heard.get("id"), heard.get("method")
    if method == "initialize":
        info = {"name": "nosy", "version": "1"}
        say(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info})
    elif method == "tools/list":
        say(id=id, result={"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("wait", "ask")]})
    elif method == "tools/call" and heard["params"]["name"] == "wait":
        waiting.append(id)
    elif method == "tools/call":
        asker = id
        say(method="notifications/message", params={"level": "error", "data": "a secret of the one who asks"})
        say(id="q", method="elicitation/create", params={"message": "a secret of the one who asks"})
    elif id == "q":
        say(id=asker, result={"content": [{"type": "text", "text": json.dumps(heard)}]})
        for one in waiting:
            say(id=one, result={"content": []})
        waiting = []
"""


@pytest.mark.parametrize("asker", [SILENT, Talker(key="two")])
async def test_what_is_asked_during_the_call_of_one_client_is_never_asked_of_another(
    tmp_path: Path, asker: Client
) -> None:
    nosy = McpServerConfig.model_validate({"command": sys.executable, "args": ("-c", NOSY)})
    accepted: dict[str, Any] = {"elicitation/create": {"action": "accept"}}
    bystander = Talker(accepted, key="one")
    async with open_test_desk(tmp_path, {"nosy": nosy}) as desk, asyncio.TaskGroup() as group:
        await eventually(lambda: "nosy__wait" in desk.registry.tools)
        waiting = group.create_task(desk.call("nosy__wait", client=bystander))
        server = desk.fleet.servers["nosy"]
        await eventually(lambda: server.describe()["in_flight"] == 1)
        with anyio.fail_after(PATIENCE_SECONDS):
            answer = text_of(await desk.call("nosy__ask", client=asker))
            await waiting
    assert '"error"' in answer
    assert (bystander.asked, bystander.heard) == ([], [])
