"""Clients that mean harm, against the real server process: they go, memory stays, and everybody else is served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


async def drip_headers(writer: asyncio.StreamWriter, port: int) -> None:
    writer.write(f"POST /mcp HTTP/1.1\r\nHost: localhost:{port}\r\n".encode())
    await _drip(writer, b"X-Slow: 1\r\n")


async def drip_a_body(writer: asyncio.StreamWriter, port: int) -> None:
    writer.write(head(port, 100_000))
    await _drip(writer, b" ")


async def say_nothing(writer: asyncio.StreamWriter, port: int) -> None:
    await asyncio.Event().wait()


async def _drip(writer: asyncio.StreamWriter, drop: bytes) -> None:
    while True:
        writer.write(drop)
        await writer.drain()
        await asyncio.sleep(0.2)


async def slow_client(port: int, behave: object) -> None:
    """Behaves until the server has had enough of it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert callable(behave)
    behaviour = asyncio.ensure_future(behave(writer, port))
    try:
        while await reader.read(4096):
            continue
    except ConnectionError:
        return
    finally:
        behaviour.cancel()
        await asyncio.gather(behaviour, return_exceptions=True)
        writer.close()


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
        kinds = (drip_headers, drip_a_body, say_nothing)
        clients = [asyncio.ensure_future(slow_client(port, kinds[number % 3])) for number in range(500)]
        calls = 0
        async with asyncio.timeout(GONE_WITHIN_SECONDS):
            while not all(client.done() for client in clients):
                await call(port)
                calls += 1
        await asyncio.gather(*clients)
        assert calls > 10


async def test_100_half_sent_bodies_do_not_grow_memory_past_the_bound(tmp_path: Path) -> None:
    bound = 32 * 1024 * 1024
    more = {"REFDESK__SERVER__MAX_INFLIGHT_BODY_BYTES": str(bound), "REFDESK__SERVER__BODY_TIMEOUT_SECONDS": "20"}
    async with hostile_server(tmp_path, **more) as (pid, port):
        await call(port)
        before = resident_bytes(pid)
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        for _, writer in clients:
            writer.write(head(port, 4_000_000) + b"x" * 3_900_000)
        async with asyncio.timeout(GONE_WITHIN_SECONDS):
            refusals = [asyncio.ensure_future(reader.readline()) for reader, _ in clients]
            for refused in asyncio.as_completed(refusals):
                assert b" 503 " in await refused
                # All but those that fit below the bound.
                if sum(refusal.done() for refusal in refusals) >= 100 - bound // 3_900_000:
                    break
        grown = resident_bytes(pid) - before
        await call(port)
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
