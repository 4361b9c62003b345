"""What a client is told of the servers behind the desk."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from refdesk.calls import ANONYMOUS, Caller
from tests.tools.gateways import Desk, open_test_desk, talkative

pytestmark = pytest.mark.anyio

URI = "refdesk://servers"


async def servers(desk: Desk, caller: Caller = ANONYMOUS) -> list[dict[str, Any]]:
    (content,) = (await desk.ask("resources/read", caller, uri=URI))["contents"]
    told: list[dict[str, Any]] = json.loads(content["text"])
    return told


async def test_the_servers_open_to_a_caller_are_told_with_their_state(tmp_path: Path) -> None:
    both = {"one": talkative(), "two": talkative(tenants=["acme"])}
    async with open_test_desk(tmp_path, both) as desk:
        (one,) = await servers(desk)
        assert (one["server"], one["state"]) == ("one", "Running")
        assert one["tools"] > 0
        assert "pid" not in one
        limited = replace(ANONYMOUS, servers=frozenset({"one__echo"}))
        assert [told["server"] for told in await servers(desk, limited)] == ["one"]
        nobody = replace(ANONYMOUS, servers=frozenset({"three"}))
        assert await servers(desk, nobody) == []
        uris = [entry["uri"] for entry in (await desk.ask("resources/list", nobody))["resources"]]
        assert URI not in uris
