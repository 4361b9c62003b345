"""The desk's own names are its own, though servers are there before its tools are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.downstream.servers import ROOT
from tests.tools.knowing import open_indexed_desk
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

SCRIPT = ROOT / "tests" / "downstream" / "servers" / "docs_source.py"


async def test_a_server_cannot_take_the_name_of_one_of_our_own_tools(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"result": {"content": [{"type": "text", "text": "of-the-fake"}]}}')
    rename = {"rename": {"search": "search_documentation"}}
    server = {"command": sys.executable, "args": [str(SCRIPT), str(tmp_path / "script.json")], "tools": rename}
    for _ in range(2):  # the second time with its list at hand from the start
        async with open_indexed_desk(
            tmp_path / "data", mcpServers={"fake": server}, downstream__prefix="never"
        ) as desk:
            await eventually(lambda: "fake__search_documentation" in desk.registry.tools)
            assert (await desk.call("fake__search_documentation", {"query": "x"})).text == "of-the-fake"
            assert "of-the-fake" not in (await desk.call("search_documentation", {"query": "keys"})).text
