"""A desk for an example: the one that REFDESK_URL names, or else one of its own that is gone at the end.

Not an example itself: with `scripts/serve` in another terminal, all of this is `url = "http://127.0.0.1:8001"`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

PATIENCE_SECONDS = 60


@asynccontextmanager
async def open_desk(settings: Mapping[str, Any] | None = None) -> AsyncIterator[str]:
    """The address of a desk; with settings, always of one of its own."""
    if settings is None and (url := os.environ.get("REFDESK_URL")):
        yield url.rstrip("/")
        return
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="refdesk-example-") as folder:
        process = start(settings or {"mcpServers": {}}, port, Path(folder))
        try:
            await until_ready(f"http://127.0.0.1:{port}/ready", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


def start(settings: Mapping[str, Any], port: int, folder: Path) -> subprocess.Popen[bytes]:
    """`refdesk serve`, with its settings, its data and its log in a folder."""
    config = folder / "refdesk.yaml"
    config.write_text(json.dumps(settings))  # JSON is YAML too
    command = ["refdesk", "serve", "--port", str(port), "--config", str(config), "--data", str(folder / "data")]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-m", *command], stderr=log)


async def until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait for the first answer."""
    async with asyncio.timeout(PATIENCE_SECONDS), httpx2.AsyncClient() as http:
        while process.poll() is None:
            try:
                if (await http.get(url)).is_success:
                    return
            except httpx2.TransportError:
                await asyncio.sleep(0.1)
    raise RuntimeError("the desk did not start; `refdesk serve` by hand says why")


def free_port() -> int:
    """A port that nobody uses."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
