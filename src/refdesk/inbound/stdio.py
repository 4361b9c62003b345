"""Stdio transport: MCP on standard input and output, one message per line, with the same checks as HTTP.

Standard output only carries the protocol. Anything else the process prints goes to standard error. An invalid line is
answered with an error and has no other effect.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import BinaryIO

import anyio
from anyio.to_thread import run_sync

from refdesk.calls import LOCAL, new_trace_id
from refdesk.config.models import ServerConfig
from refdesk.errors import InvalidRequest, ProtocolError
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.jsonrpc import RpcRequest, encode_error, parse, read_id, read_message
from refdesk.inbound.mcp.dispatch import McpDispatcher
from refdesk.inbound.mcp.revisions import PROTOCOL_VERSION_META
from refdesk.inbound.mcp.sessions import Session
from refdesk.inbound.mcp.streams import Outbox
from refdesk.inbound.requests import RequestContext


async def serve_stdio(services: Services, settings: ServerConfig) -> None:
    """Serve one client until it closes standard input and all responses are sent."""
    with claim_streams() as (reader, writer):
        connection = StdioConnection(McpDispatcher(services, title=settings.name), settings, reader, writer)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_on_signal, tasks.cancel_scope)
            await connection.serve()
            tasks.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


class LineWriter(Outbox):
    """Standard output, written in a thread: a client that doesn't read must not block the server."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(lambda message: message + b"\n")
        self._file = file

    def close(self) -> None:
        """Let `run` return when everything is written."""
        self._is_closed = True
        self._has_data.set()

    async def run(self) -> None:
        """Write lines until closed. Raises BrokenPipeError if nobody can read them."""

        def write(lines: bytes) -> None:
            self._file.write(lines)
            self._file.flush()

        while True:
            lines = self._take_all()
            if lines:
                await run_sync(write, lines, abandon_on_cancel=True)
            elif self._is_closed:
                return
            else:
                await self._has_data.wait()


class LineChannel:
    """Messages of a call among the lines of all others."""

    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer
        self.is_closed = False

    def open(self) -> LineWriter | None:
        """Return the writer. None if the call is over."""
        return None if self.is_closed else self._writer


class StdioConnection:
    """Reads requests line by line, and answers each in a task."""

    def __init__(self, dispatcher: McpDispatcher, settings: ServerConfig, reader: BinaryIO, writer: BinaryIO) -> None:
        self._dispatcher = dispatcher
        self._settings = settings
        self._reader = reader
        self._writer = LineWriter(writer)
        self._session = Session(LOCAL, self._writer.send)
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until the end of input, and until the responses in progress are sent. A broken pipe ends it at once."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_lines, tasks.cancel_scope)
                # A thread rather than a pipe reader: standard input may be a file, which a selector can't wait for.
                while line := await run_sync(self._read_line, abandon_on_cancel=True):
                    if line.strip():
                        self._take_line(line)
                self._dispatcher.close()
                if self._tasks:
                    await asyncio.wait(self._tasks, timeout=self._settings.shutdown_grace_seconds)
                self._writer.close()
        finally:
            self._session.close()
            self._dispatcher.close_session(self._session)
            for task in self._tasks:
                task.cancel()

    async def _write_lines(self, scope: anyio.CancelScope) -> None:
        try:
            await self._writer.run()
        except BrokenPipeError:
            scope.cancel()

    def _take_line(self, line: bytes) -> None:
        parsed = None
        try:
            if len(line) > self._settings.max_body_bytes:
                raise InvalidRequest(f"The line is longer than {self._settings.max_body_bytes} bytes")
            parsed = parse(line, max_depth=self._settings.max_json_depth)
            message = read_message(parsed)
            if not isinstance(message, RpcRequest):
                self._dispatcher.take(message, self._session)
            elif message.id in self._session.in_flight:
                raise InvalidRequest("A request with this id is still being answered")
            else:
                task = asyncio.ensure_future(self._answer(message))
                self._session.begin(message.id, task)
                self._tasks.add(task)
                task.add_done_callback(partial(self._session.finish, message.id))
                task.add_done_callback(self._tasks.discard)
        except ProtocolError as error:
            self._writer.put(encode_error(read_id(parsed), error) + b"\n")

    async def _answer(self, request: RpcRequest) -> None:
        """Answer a request, in the stateless revision if its `_meta` names one. A cancelled one gets no response."""
        context = RequestContext(LOCAL, new_trace_id())
        channel = LineChannel(self._writer)
        meta = request.params.get("_meta")
        is_modern = isinstance(meta, dict) and PROTOCOL_VERSION_META in meta and request.method != "initialize"
        try:
            if is_modern:
                _, answer = await self._dispatcher.answer_modern(request, context, channel)
            else:
                answer = await self._dispatcher.answer(request, context, channel, self._session)
        finally:
            channel.is_closed = True
        self._writer.put(answer + b"\n")

    def _read_line(self) -> bytes:
        """Read one line. Of a line that is too long, return just enough to detect it."""
        limit = self._settings.max_body_bytes + 1
        line = self._reader.readline(limit)
        rest = line
        while len(rest) == limit and not rest.endswith(b"\n"):
            rest = self._reader.readline(limit)
        return line


@contextmanager
def claim_streams() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Take over standard input and output for the protocol.

    Meanwhile other code reads nothing from them and prints to standard error.
    """
    reader, writer = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        # Not closed at the end: a thread may still be reading, and its descriptor must not be reused.
        yield os.fdopen(reader, "rb", closefd=False), os.fdopen(writer, "wb", closefd=False)
    finally:
        os.close(nothing)
        os.dup2(reader, 0)
        os.dup2(writer, 1)
