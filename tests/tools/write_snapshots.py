"""Writes the tool list as it is now into `tests/snapshots/tools`: `python -m tests.tools.write_snapshots`."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from refdesk.app import open_desk
from refdesk.calls import LOCAL, Call
from refdesk.config.loading import load

SNAPSHOTS = Path(__file__).parents[1] / "snapshots" / "tools"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with open_desk(load(None, {}, {"data_dir": folder})) as desk:
            tools = (await desk.handle(Call("tools/list", caller=LOCAL))).result["tools"]
    for path in SNAPSHOTS.glob("*.json"):
        path.unlink()
    for tool in tools:
        text = json.dumps(tool, indent=2, ensure_ascii=False)
        (SNAPSHOTS / f"{tool['name']}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    asyncio.run(main())
