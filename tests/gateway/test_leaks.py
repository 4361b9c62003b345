"""After any number of short sessions and faults, the desk has no task, file or process more than before.

Forty sessions here; `REFDESK_SESSIONS=1000 pytest tests/gateway/test_leaks.py --timeout 3600 -s` is the long run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.downstream.servers.bad_http import bad_http
from tests.gateway.desks import Gateway, bad
from tests.gateway.served import serve_counting_desk
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SESSIONS = int(os.environ.get("REFDESK_SESSIONS", "40"))
WARM_UP = max(20, SESSIONS // 10)
"""Sessions before anything is counted: what is imported, cached and allocated by the first ones stays."""

AT_A_TIME = 4
GROWTH = 0.05

SHORT_FAULTS = ("echo", "crash", "echo", "half", "echo", "garbage", "echo", "nullresult")
"""What is asked of a short session; never so many failures in a row that the server would be left alone."""

HANGS = ("echo", "", "", "hang", "", "")
HTTP_HANGS = ("echo", "hang", "echo", "badchunk")
"""What is asked, in some rounds nothing, of servers that have a fraction of a second for a call. On a busy machine they
fail more often."""

KEPT_FAULTS = ("garbage", "utf8bad", "dup", "wrongid", "nullresult", "echo", "deepresult", "rpcerror", "batch", "echo")
HTTP_FAULTS = ("reset", "echo", "lenlie", "echo", "ssebroken", "echo", "e429", "echo")


async def count(desk: Gateway) -> dict[str, Any]:
    """Tasks, files, children, memory."""
    counts: dict[str, Any] = json.loads(await desk.text("count"))
    return counts


async def rounds(desk: Gateway, sessions: int) -> int:
    """So many short sessions, some at a time, and about as many faults of servers that are kept; how many failed."""
    numbers = iter(range(sessions))
    faults = {
        "short": SHORT_FAULTS,
        "kept": KEPT_FAULTS,
        "http": HTTP_FAULTS,
        "hangs": HANGS,
        "http_hangs": HTTP_HANGS,
    }

    async def work() -> int:
        failed = 0
        for number in numbers:
            asked = {server: tools[number % len(tools)] for server, tools in faults.items()}
            calls = [desk.call(f"{server}__{tool}", text="x" * 1000) for server, tool in asked.items() if tool]
            failed += sum("error" in answer for answer in await asyncio.gather(*calls))
        return failed

    return sum(await asyncio.gather(*(work() for _ in range(AT_A_TIME))))


async def is_back_at(desk: Gateway, before: dict[str, Any]) -> dict[str, Any]:
    """Wait until nothing is there that was not before."""
    now: dict[str, Any] = {}

    async def is_so() -> bool:
        now.update(await count(desk))
        return all(now[what] <= before[what] for what in ("tasks", "files", "children"))

    try:
        await eventually(is_so)
    except TimeoutError:
        raise AssertionError(f"before: {before}, now: {now}") from None
    return now


async def test_faults_and_short_sessions_leave_nothing_behind(tmp_path: Path) -> None:
    async with bad_http() as server:
        servers: dict[str, Any] = {
            "short": bad(session="short"),
            "kept": bad(),
            "http": {"url": server.url()},
            "hangs": bad(session="short", call_timeout_seconds=0.3),
            "http_hangs": {"url": server.url(), "call_timeout_seconds": 0.2},
        }
        async with serve_counting_desk(tmp_path, **servers) as desk:
            await rounds(desk, WARM_UP)
            # One process that is kept, and its guard.
            before = await is_back_at(desk, {"tasks": 10**6, "files": 10**6, "children": 2})
            opened = (await desk.describe("short"))["sessions"]
            failed = await rounds(desk, SESSIONS)
            opened = (await desk.describe("short"))["sessions"] - opened
            after = await is_back_at(desk, before)
            shown = {what: (before[what], after[what]) for what in ("tasks", "files", "children", "rss")}
            sys.stdout.write(f"{opened} sessions, {failed} failures, before and after: {shown}\n")
            assert after["rss"] - before["rss"] < GROWTH * before["rss"]
            assert opened >= SESSIONS
            assert failed > SESSIONS / 2, "the faults were shown"
