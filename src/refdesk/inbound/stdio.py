"""Stdio transport: the SDK's server on standard input and output, with the same checks as HTTP.

Standard output only carries the protocol. Anything else the process prints goes to standard error. An invalid line is
answered with an error and has no other effect.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import anyio
from anyio.abc import ObjectReceiveStream, ObjectSendStream
from anyio.to_thread import run_sync
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter
from pydantic import ValidationError

from refdesk.config import ServerConfig
from refdesk.errors import InvalidRequest, ProtocolError
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.envelope import MessageId, RpcNotification, RpcRequest, parse, read_id, read_message
from refdesk.inbound.error_mapping import encode_error
from refdesk.inbound.mcp import SdkServer
from refdesk.inbound.notifications import NotificationHub

Incoming = SessionMessage | Exception


async def serve_stdio(services: Services, settings: ServerConfig) -> None:
    """Serve one client until it closes standard input and all responses are sent."""
    notifications = NotificationHub()
    server = SdkServer(services, notifications)
    to_server, incoming = anyio.create_memory_object_stream[Incoming](0)
    outgoing, from_server = anyio.create_memory_object_stream[SessionMessage](0)
    with claim_streams() as (reader, writer):
        transport = StdioServerTransport(reader, writer, settings)
        async with notifications.open(), anyio.create_task_group() as tasks:
            tasks.start_soon(transport.read_into, to_server)
            tasks.start_soon(transport.write_from, from_server, tasks.cancel_scope)
            tasks.start_soon(_cancel_on_signal, tasks.cancel_scope)
            await server.run(incoming, outgoing, server.create_initialization_options())
            tasks.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()


class StdioServerTransport:
    """Line-based transport that tracks the ids of requests in progress."""

    def __init__(self, reader: BinaryIO, writer: BinaryIO, settings: ServerConfig) -> None:
        self._reader = reader
        self._writer = writer
        self._settings = settings
        self._in_flight: set[MessageId] = set()
        self._answered = anyio.Event()

    async def read_into(self, server: ObjectSendStream[Incoming]) -> None:
        """Pass messages to the server. At the end of input, wait for the responses in progress."""
        async with server:
            # A thread rather than a pipe reader: standard input may be a file, which a selector can't wait for.
            while line := await run_sync(self._read_line, abandon_on_cancel=True):
                if line.strip():
                    await self._handle_line(line, server)
            with anyio.move_on_after(self._settings.shutdown_grace_seconds):
                while self._in_flight:
                    self._answered = anyio.Event()
                    await self._answered.wait()

    async def write_from(self, server: ObjectReceiveStream[SessionMessage], session: anyio.CancelScope) -> None:
        """Write each message as one line. A broken pipe ends the session."""
        async with server:
            try:
                async for message in server:
                    await self._write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode())
                    self._release_id(message.message)
            except BrokenPipeError:
                session.cancel()

    async def _handle_line(self, line: bytes, server: ObjectSendStream[Incoming]) -> None:
        parsed = None
        try:
            if len(line) > self._settings.max_body_bytes:
                raise InvalidRequest(f"The line is longer than {self._settings.max_body_bytes} bytes")
            parsed = parse(line, max_depth=self._settings.max_json_depth)
            message = _check_message(parsed, self._in_flight)
        except ProtocolError as error:
            await self._write(encode_error(read_id(parsed), error))
            return
        await server.send(SessionMessage(message))

    def _release_id(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id is not None:
            self._in_flight.discard(message.id)
            self._answered.set()

    async def _write(self, line: bytes) -> None:
        # Abandoned on shutdown: a client that doesn't read must not block it.
        await run_sync(self._write_line, line, abandon_on_cancel=True)

    def _write_line(self, line: bytes) -> None:
        self._writer.write(line + b"\n")
        self._writer.flush()

    def _read_line(self) -> bytes:
        """Read one line. Of a line that is too long, return just enough to detect it."""
        limit = self._settings.max_body_bytes + 1
        line = self._reader.readline(limit)
        rest = line
        while len(rest) == limit and not rest.endswith(b"\n"):
            rest = self._reader.readline(limit)
        return line


def _check_message(parsed: object, in_flight: set[MessageId]) -> JSONRPCMessage:
    """Convert a message to the SDK's type, and reserve the id of a request until it's answered."""
    request = read_message(parsed)
    if isinstance(request, RpcRequest) and request.id in in_flight:
        raise InvalidRequest("A request with this id is still being answered")
    try:
        message = jsonrpc_message_adapter.validate_python(parsed, by_name=False)
    except ValidationError:
        raise InvalidRequest("The message is not one of MCP's") from None
    if isinstance(request, RpcRequest):
        in_flight.add(request.id)
    elif isinstance(request, RpcNotification) and request.method == "notifications/cancelled":
        # A cancelled request gets no response, so its id is released here.
        cancelled = request.params.get("requestId")
        if isinstance(cancelled, str | int):
            in_flight.discard(cancelled)
    return message


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
