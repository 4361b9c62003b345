"""Clients that mean harm, against the real server process: they go, memory stays, and everybody else is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from tests.inbound.test_process import SEARCH
from tests.processes import started_server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

HEADER_SECONDS, BODY_SECONDS = 4.0, 5.0
"""Long enough for an honest client on a busy machine, which is one of 501 in this very loop."""
TIMEOUTS = {
    "REFDESK__SERVER__HEADER_TIMEOUT_SECONDS": str(HEADER_SECONDS),
    "REFDESK__SERVER__BODY_TIMEOUT_SECONDS": str(BODY_SECONDS),
    "REFDESK__SERVER__IDLE_TIMEOUT_SECONDS": str(BODY_SECONDS),
}
GONE_WITHIN_SECONDS = 60.0
"""Far more than the time-outs: what is promised is that they go, not how busy the machine is meanwhile."""


def head(port: int, length: int) -> bytes:
    lines = (
        f"POST /mcp HTTP/1.1\r\nHost: localhost:{port}",
        "Content-Type: application/json",
        f"Content-Length: {length}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class SlowClient:
    """Opens a request, sends one more drop of it whenever it is told to, and reads until the server ends it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, drop: bytes) -> None:
        self._writer = writer
        self._drop = drop
        self.reading = asyncio.ensure_future(self._read(reader))

    @classmethod
    async def open(cls, port: int, opening: bytes, drop: bytes) -> SlowClient:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(opening)
        return cls(reader, writer, drop)

    def drip(self) -> None:
        if not self.reading.done():
            self._writer.write(self._drop)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionError):
            while await reader.read(4096):
                continue
        self._writer.close()


async def call(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps(SEARCH).encode()
    writer.write(head(port, len(body)) + body)
    assert b" 200 " in await reader.readline()
    writer.close()


@asynccontextmanager
async def hostile_server(tmp_path: Path, **more: str) -> AsyncIterator[tuple[int, int]]:
    async with started_server(tmp_path, **{**TIMEOUTS, **more}) as server:
        yield server.process.pid, int(server.url.rpartition(":")[2])


async def test_500_slow_clients_are_gone_in_time_while_calls_go_on(tmp_path: Path) -> None:
    async with hostile_server(tmp_path) as (_, port):
        await call(port)  # the first one opens what all others use
        kinds = (
            (f"POST /mcp HTTP/1.1\r\nHost: localhost:{port}\r\n".encode(), b"X-Slow: 1\r\n"),
            (head(port, 100_000), b" "),
            (b"", b""),
        )
        clients = [await SlowClient.open(port, *kinds[number % 3]) for number in range(500)]
        calls = 0
        async with asyncio.timeout(GONE_WITHIN_SECONDS):
            while not all(client.reading.done() for client in clients):
                for client in clients:
                    client.drip()
                await call(port)
                calls += 1
        assert calls


async def test_100_half_sent_bodies_do_not_grow_memory_past_the_bound(tmp_path: Path) -> None:
    bound = 32 * 1024 * 1024
    more = {"REFDESK__SERVER__MAX_INFLIGHT_BODY_BYTES": str(bound), "REFDESK__SERVER__BODY_TIMEOUT_SECONDS": "120"}
    async with hostile_server(tmp_path, **more) as (pid, port):
        await call(port)
        before = resident_bytes(pid)
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _, writer in clients:
            writer.write(head(port, 4_000_000) + b"x" * 3_900_000)
        refusals = [asyncio.ensure_future(reader.readline()) for reader, _ in clients]
        try:
            async with asyncio.timeout(GONE_WITHIN_SECONDS):
                for refused in asyncio.as_completed(refusals):
                    assert b" 503 " in await refused
                    # All but those that fit below the bound.
                    if sum(refusal.done() for refusal in refusals) >= 100 - bound // 3_900_000:
                        break
            grown = resident_bytes(pid) - before
            await call(port)
        finally:
            for refusal in refusals:
                refusal.cancel()
            await asyncio.gather(*refusals, return_exceptions=True)
            for _, writer in clients:
                writer.close()
    # The bodies, a copy of the largest while it is put together, and what the allocator keeps.
    assert grown < bound + 24 * 1024 * 1024


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc to measure memory")
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024
