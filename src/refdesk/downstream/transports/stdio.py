"""A server that is a process of ours: one JSON message a line, to its input and from its output.

What it prints that is no message costs that one line; a line longer than is taken costs it its life.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from signal import Signals
from typing import Any, cast

import orjson

from refdesk.config.servers import McpServerConfig
from refdesk.downstream.transports.base import Inbox, Message, NotTaken
from refdesk.downstream.transports.process import END_TIMEOUTS, EndTimeouts, ServerProcess, environment_for
from refdesk.downstream.transports.stderr import Chatter
from refdesk.errors import InvalidCall, RefdeskError, ServerAway, ServerGone, ServerTalksNonsense
from refdesk.telemetry.secrets import secrets_of

LAST_WORDS_SECONDS = 1.0
"""From the first sign that a server is at its end to telling so: for what it has said before, and its exit status. All
of it is there within a millisecond, unless the machine is busy or the server has only closed its output."""

MAX_BATCH = 1000
"""Messages in one line; revisions that know batches know none of that size."""

MAX_PARTS = 200_000
"""Objects and lists in one message. More take longer than a tenth of a second to read, and nobody is served meanwhile;
a few megabytes of nothing but empty lists would take seconds and half a gigabyte."""

COUNTED_BYTES = 262_144
"""From this size on they are counted; smaller messages cannot have that many that it would matter."""

MAX_LINES_A_TURN = 256
"""Taken in one go; then others have a turn of the loop, whatever a server floods us with."""

CLOSING_SECONDS = 0.5
"""For the loop to close our ends of the pipes; it takes one turn of it."""

MAX_GARBAGE_BYTES = 4096
"""Of a line that is no message, looked at to quote it."""

MAX_QUOTE_CHARACTERS = 300
"""Of a server's own words in a sentence of ours."""


@asynccontextmanager
async def open_stdio(
    name: str,
    settings: McpServerConfig,
    inbox: Inbox,
    *,
    heard_stderr: Callable[[str], None] | None = None,
    end_timeouts: EndTimeouts = END_TIMEOUTS,
    last_words_seconds: float = LAST_WORDS_SECONDS,
) -> AsyncIterator[StdioTransport]:
    """Start the server's process; it is gone, with whatever it has started, within three seconds of leaving.

    `heard_stderr` is called with every line of its error output that is kept, secrets masked.
    """
    transport = StdioTransport(name, settings, inbox, heard_stderr, end_timeouts, last_words_seconds)
    try:
        await _to_the_end(transport.connect())
        yield transport
    finally:
        await _to_the_end(transport.close())


class StdioTransport:
    """A running server: its process, and the three pipes to it."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        inbox: Inbox,
        heard_stderr: Callable[[str], None] | None,
        end_timeouts: EndTimeouts,
        last_words_seconds: float,
    ) -> None:
        self.name = name
        self._last_words_seconds = last_words_seconds
        self._inbox = inbox
        self._error: RefdeskError | None = None
        self._last_words: asyncio.TimerHandle | None = None
        self._is_over = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        command = settings.command or ""
        env = environment_for({name: value.get_secret_value() for name, value in settings.env.items()}, os.environ)
        self._stdin = _Input(self._is_ending)
        self._stderr = Chatter(name, command, secrets_of(settings), heard_stderr, self._is_ending)
        max_bytes, shown = settings.max_message_bytes, self._stderr.clean
        self._stdout = _Output(inbox, max_bytes, shown, self._overflow, self._is_ending)
        argv = [command, *settings.args]
        self._process = ServerProcess.start(name, argv, env, settings.cwd, self._is_ending, timeouts=end_timeouts)
        self._unclaimed = list(self._process.pipes)

    @property
    def pid(self) -> int:
        """Of the server's process, and of its group."""
        return self._process.pid

    @property
    def stderr_lines(self) -> deque[str]:
        """The last lines of its error output, secrets masked."""
        return self._stderr.lines

    async def connect(self) -> None:
        """Take hold of the pipes."""
        stdin, stdout, stderr = self._unclaimed
        try:
            await self._loop.connect_read_pipe(lambda: self._stderr, stderr)
            self._unclaimed.remove(stderr)
            await self._loop.connect_read_pipe(lambda: self._stdout, stdout)
            self._unclaimed.remove(stdout)
            await self._loop.connect_write_pipe(lambda: self._stdin, stdin)
            self._unclaimed.remove(stdin)
        except OSError as error:
            raise ServerAway(f"The server {self.name!r} cannot be talked to: {error.strerror}; try again") from error

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Write a message; waits only while the server does not read."""
        try:
            line = orjson.dumps(message, _plain, orjson.OPT_APPEND_NEWLINE)
        except orjson.JSONEncodeError as error:
            raise InvalidCall(f"This cannot be sent to the server {self.name!r} as JSON: {error}") from error
        while self._stdin.room is not None and self._error is None:
            await asyncio.shield(self._stdin.room)
        if self._error is not None:
            raise type(self._error)(self._error.detail)
        if self._last_words is not None:
            raise NotTaken(f"The server {self.name!r} is at its end")
        self._stdin.write(line)

    def speaks(self, version: str) -> None:
        """Nothing here depends on it."""

    async def close(self) -> None:
        """Whoever waits is told, the process is seen to its end, and the pipes are closed."""
        self._lose(ServerGone(f"The connection to the server {self.name!r} was closed"))
        self._stdin.close()
        await self._process.end()
        self._stdout.close()
        self._stderr.close()
        for pipe in self._unclaimed:
            pipe.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._is_over.wait()

    def _is_ending(self) -> None:
        """One of the pipes has ended, or the process has: soon all of them will have, and then it is known why."""
        has_spoken = self._stdout.is_over and self._stderr.is_over and self._process.status is not None
        if has_spoken and self._stdin.is_over:
            self._is_over.set()
        if self._error is None and has_spoken:
            self._lose_by_itself()
        elif self._error is None and self._last_words is None:
            self._last_words = self._loop.call_later(self._last_words_seconds, self._lose_by_itself)

    def _lose_by_itself(self) -> None:
        self._lose(ServerGone(_obituary(self.name, self._process.status, self.stderr_lines)))

    def _overflow(self, what: str) -> None:
        self._lose(ServerTalksNonsense(f"The server {self.name!r} was stopped: it sent {what}"))
        self._process.kill()

    def _lose(self, error: RefdeskError) -> None:
        if self._error is None:
            self._error = error
            if self._last_words is not None:
                self._last_words.cancel()
            self._stdout.is_muted = True
            self._stdin.resume_writing()  # whoever waits for room is to see that there is none
            self._inbox.lost(error)


class _Input(asyncio.Protocol):
    """Our end of a server's standard input."""

    def __init__(self, over: Callable[[], None]) -> None:
        self.is_over = False
        self.room: asyncio.Future[None] | None = None
        """While the server does not read: done when there is room again."""
        self._over = over
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def write(self, line: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line)

    def pause_writing(self) -> None:
        if self.room is None:
            self.room = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        room, self.room = self.room, None
        if room is not None:
            room.set_result(None)

    def close(self) -> None:
        """Tell the server that nothing follows; what it has not read by now it never will."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()
        elif self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._over()


class _Output(asyncio.Protocol):
    """A server's standard output, cut into messages; a line is copied together but once, in however many pieces."""

    def __init__(
        self,
        inbox: Inbox,
        max_bytes: int,
        shown: Callable[[bytes], str],
        overflow: Callable[[str], None],
        over: Callable[[], None],
    ) -> None:
        self.is_over = False
        self.is_muted = False
        """Once it is, what comes is read, so that the server can end, and dropped."""
        self._inbox = inbox
        self._max_bytes = max_bytes
        self._shown = shown
        self._overflow = overflow
        self._over = over
        self._held = bytearray()
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        if self.is_muted:
            return
        *lines, rest = data.split(b"\n")
        if lines:
            if self._held:
                self._finish_held(lines.pop(0))
            for line in lines:
                if not self.is_muted:
                    self._take(line)
            if len(lines) > MAX_LINES_A_TURN:
                self._have_a_break()
        if rest:
            self._held += rest
            if len(self._held) > self._max_bytes:
                self._refuse()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._held and not self.is_muted:
            self._inbox.garbled("a line that was cut off")
        self.is_over = True
        self._over()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _finish_held(self, end: bytes) -> None:
        self._held += end
        line, self._held = self._held, bytearray()
        self._take(line)

    def _take(self, line: bytes | bytearray) -> None:
        if len(line) > self._max_bytes:
            self._refuse()
            return
        if len(line) > COUNTED_BYTES and line.count(b"[") + line.count(b"{") > MAX_PARTS:
            self._inbox.garbled(f"a line of {len(line)} bytes with more parts than are taken")
            return
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            if line and not line.isspace():
                self._garbled(line)
            return
        if type(message) is dict:
            self._inbox.received(message)
        else:
            self._take_batch(message, line)

    def _take_batch(self, messages: Any, line: bytes | bytearray) -> None:
        if not isinstance(messages, list) or not 0 < len(messages) <= MAX_BATCH:
            self._garbled(line)
            return
        for message in messages:
            if isinstance(message, dict):
                self._inbox.received(message)
            else:
                self._inbox.garbled("something in a batch that is no message")

    def _garbled(self, line: bytes | bytearray) -> None:
        shown = self._shown(bytes(line[:MAX_GARBAGE_BYTES]))
        self._inbox.garbled(f"a line that is no message: {shown[:MAX_QUOTE_CHARACTERS]}")

    def _refuse(self) -> None:
        self._held = bytearray()
        self.close()
        self._overflow(f"a message of more than {self._max_bytes} bytes")

    def _have_a_break(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            transport.pause_reading()
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Do what is bounded and must not be left half done, and only then heed that we were cancelled."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


def _obituary(name: str, status: int | None, stderr: Sequence[str]) -> str:
    if status is None:
        how = "has closed its output"
    elif status >= 0:
        how = f"ended with exit status {status}"
    else:
        how = f"was ended by {Signals(-status).name if -status in set(Signals) else f'signal {-status}'}"
    last = f"; it last said: {stderr[-1][:MAX_QUOTE_CHARACTERS]}" if stderr else ""
    return f"The server {name!r} {how}{last}"


def _plain(value: Any) -> Any:
    """Mappings that are no dictionaries are given to be passed on, too."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not known to JSON")
