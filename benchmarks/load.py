"""A closed-loop load generator on keep-alive connections, cheap enough that the server is what is measured.

Run as a process of its own: reads a plan as JSON on standard input, writes what it measured as JSON on standard output.
Every request has an id and a text that no other has; an answer without that text ends the run with an error.
"""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import itertools
import json
import re
import sys
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

import uvloop

from processes import cpu_seconds

ID = "10000000"
"""The place in a body where the number of the request goes; always eight digits, so that lengths stay the same."""
STREAM_END = b"\r\n0\r\n\r\n"
DRAIN_SECONDS = 10.0
"""How long the last answers may take before the run is given up."""

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to send, how often, and whose CPU time to read."""

    port: int
    headers: Mapping[str, str]
    body: str
    opening: Sequence[Mapping[str, Any]]
    """Messages that open a session on each connection; none for calls that need no session."""
    concurrency: int
    warmup_seconds: float
    seconds: float
    max_calls: int
    server_pids: Sequence[int]
    path: str = "/mcp"


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one run found."""

    calls: int
    seconds: float
    server_cpu_seconds: float
    client_cpu_seconds: float
    p50_ms: float
    p99_ms: float


class WrongAnswer(Exception):
    """The server did not echo what it was sent."""


class Run:
    """What the connections share: the numbers of the requests, the times of the answers, and the end."""

    def __init__(self, max_calls: int) -> None:
        self.numbers: Iterator[int] = itertools.count(int(ID))
        self.times = array("d")
        self.over = False
        self.open = 0
        self.closed = asyncio.Event()
        self.stopped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._max_calls = max_calls

    def answered(self, seconds: float) -> None:
        """Note an answer, and the end when there were enough."""
        self.times.append(seconds)
        if len(self.times) >= self._max_calls:
            self.stop(None)

    def stop(self, error: Exception | None) -> None:
        """End the run."""
        self.over = True
        if not self.stopped.done():
            self.stopped.set_exception(error) if error else self.stopped.set_result(None)

    async def go_on(self, seconds: float) -> None:
        """Let the connections work for a while, or until the run ends."""
        done, _ = await asyncio.wait([self.stopped], timeout=seconds)
        for future in done:
            future.result()


class Connection(asyncio.Protocol):
    """One client: sends, waits for the whole answer, sends again."""

    def __init__(self, run: Run, pieces: Sequence[bytes]) -> None:
        self._run = run
        self._pieces = pieces
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start."""
        self._transport = cast(asyncio.Transport, transport)
        self._run.open += 1
        self._ask()

    def _ask(self) -> None:
        self._number = b"%d" % next(self._run.numbers)
        self._sent_at = time.perf_counter()
        self._transport.write(self._number.join(self._pieces))

    def data_received(self, data: bytes) -> None:
        """Check a whole answer and go on."""
        if self._received:
            data = self._received + data
        if not _is_whole(data):
            self._received = data
            return
        self._received = b""
        self._run.answered(time.perf_counter() - self._sent_at)
        if not data.startswith(b"HTTP/1.1 200") or b"echo-" + self._number not in data:
            self._run.stop(WrongAnswer(data[:1000].decode("utf-8", "replace")))
        if self._run.over:
            self._transport.close()
        else:
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        """A connection that ends by itself ends the run."""
        if not self._run.over:
            self._run.stop(WrongAnswer(f"the server closed a connection: {exc}"))
        self._run.open -= 1
        if not self._run.open:
            self._run.closed.set()


def _is_whole(data: bytes) -> bool:
    head_end = data.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    length = _LENGTH.search(data, 0, head_end)
    if length is None:
        return data.endswith(STREAM_END)
    return len(data) >= head_end + 4 + int(length[1])


async def load(plan: Plan, sessions: Sequence[str]) -> Measured:
    """Keep every connection busy, and measure once they have been for a while."""
    run = Run(plan.max_calls)
    loop = asyncio.get_running_loop()
    for number in range(plan.concurrency):
        extra = {"Mcp-Session-Id": sessions[number]} if sessions else {}
        await loop.create_connection(partial(Connection, run, _pieces(plan, extra)), "127.0.0.1", plan.port)
    await run.go_on(plan.warmup_seconds)
    before, begun = len(run.times), (time.perf_counter(), cpu_of(plan.server_pids), time.process_time())
    await run.go_on(plan.seconds)
    after, ended = len(run.times), (time.perf_counter(), cpu_of(plan.server_pids), time.process_time())
    run.over = True
    async with asyncio.timeout(DRAIN_SECONDS):
        await run.closed.wait()
    if run.stopped.done():
        run.stopped.result()
    wall, server_cpu, client_cpu = (end - begin for begin, end in zip(begun, ended, strict=True))
    times = sorted(run.times[before:after])
    if not times:
        raise WrongAnswer(f"no answer within {plan.seconds:g} s")
    return Measured(len(times), wall, server_cpu, client_cpu, percentile(times, 50), percentile(times, 99))


def cpu_of(pids: Sequence[int]) -> float:
    return sum(cpu_seconds(pid) for pid in pids)


def percentile(ordered: Sequence[float], percent: int) -> float:
    """In milliseconds."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000


def _pieces(plan: Plan, extra: Mapping[str, str]) -> list[bytes]:
    """A whole request, cut where its number goes."""
    body = plan.body.encode()
    headers = {"Host": f"127.0.0.1:{plan.port}", **plan.headers, **extra, "Content-Length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return (f"POST {plan.path} HTTP/1.1\r\n{head}\r\n".encode() + body).split(ID.encode())


def _open_session(plan: Plan) -> str:
    """The id of a new session."""
    session = ""
    for message in plan.opening:
        headers = {**plan.headers, **({"Mcp-Session-Id": session} if session else {})}
        response = _post(plan, headers, json.dumps(message))
        session = session or response.headers["Mcp-Session-Id"]
    return session


def _end_session(plan: Plan, session: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", plan.port, timeout=DRAIN_SECONDS)
    connection.request("DELETE", plan.path, headers={**plan.headers, "Mcp-Session-Id": session})
    connection.getresponse().read()
    connection.close()


def _post(plan: Plan, headers: Mapping[str, str], body: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", plan.port, timeout=DRAIN_SECONDS)
    connection.request("POST", plan.path, body, dict(headers))
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status not in (200, 202):
        raise WrongAnswer(f"{response.status}: {answer[:500]!r}")
    return response


def main() -> int:
    """Read the plan, carry it out, print what was measured."""
    plan = Plan(**json.load(sys.stdin))
    try:
        sessions = [_open_session(plan) for _ in range(plan.concurrency)] if plan.opening else []
        measured = uvloop.run(load(plan, sessions))
        for session in sessions:
            _end_session(plan, session)
    except (WrongAnswer, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(dataclasses.asdict(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
