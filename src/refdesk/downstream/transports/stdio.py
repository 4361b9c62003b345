"""stdio transport: a child process with one JSON message per line on stdin and stdout.

An invalid line is skipped. A line above the size limit gets the process killed. Lines of its stderr are logged and kept
for diagnosis, without secrets and at a limited rate.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from signal import Signals
from typing import Any, cast

import orjson

from refdesk.config.server_model import McpServerConfig
from refdesk.config.types import MASK
from refdesk.downstream.jsonrpc import (
    MAX_PARTS,
    PART_COUNT_THRESHOLD,
    Message,
    NotTaken,
    Transport,
    TransportListener,
    deliver_messages,
    encode_message,
)
from refdesk.downstream.transports.process import END_TIMEOUTS, EndTimeouts, ServerProcess, build_environment
from refdesk.errors import RefdeskError, ServerAway, ServerGone, ServerTalksNonsense
from refdesk.telemetry.log import MIN_SECRET_CHARACTERS, escape_hidden, iter_secrets

logger = logging.getLogger(__name__)

EXIT_GRACE_SECONDS = 1.0
"""Time from the first sign of a server's exit until the connection is reported lost, to collect its last output and
exit status. They arrive within a millisecond, unless the machine is busy or the server has only closed its output."""

MAX_LINES_PER_TURN = 256
"""Lines handled before other tasks get a turn of the event loop."""

CLOSING_SECONDS = 0.5
"""Time for the event loop to close our ends of the pipes, which takes one iteration."""

MAX_GARBAGE_BYTES = 4096
"""Bytes of an invalid line that are considered for quoting."""

MAX_QUOTE_CHARACTERS = 300
"""Characters of server output quoted in an error message."""

MAX_LINE_CHARACTERS = 2000
"""Characters kept of a line of stderr. The longest lines of tracebacks are shorter; longer ones are data."""

MAX_LINE_BYTES = 65_536
"""Bytes considered of a line of stderr. The rest up to its end is dropped."""

MAX_KEPT_LINES = 200
"""Last lines of stderr kept for diagnosis."""

LINES_PER_SECOND = 100
"""Lines of stderr logged per second. The rest of a flood is only counted."""

_ANSI_ESCAPES = re.compile("\x1b\\[[0-9;:?]*[ -/]*[@-~]")
_CREDENTIAL = re.compile(
    r"""(?ix) ( (?: api[_-]?key | token | secret | passw(?:or)?d | passphrase | credentials? | authorization )
                [\w-]{0,32} ["']? \s{0,4} [:=] \s{0,4} ["']? (?: (?:bearer|basic|token) \s{1,4} )? ) [^\s"',;&]+
        | ( \b (?: bearer | basic ) \s{1,4} ) [\w.~+/=-]{8,}
        | ( \b \w{2,16} :// [^\s/:@]{0,256} : ) [^\s/@]{1,256} (?=@)
        | () \b (?: sk | pk | ghp | gho | ghs | github_pat | glpat | xox[abp] ) [_-] [\w-]{6,}"""
)
"""Values that follow these words look like credentials and are masked, whether we configured them or not."""


class StdioTransport(Transport):
    """A server process and its three pipes. It and its child processes are gone within three seconds of closing."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        listener: TransportListener,
        *,
        on_stderr_line: Callable[[str], None] | None = None,
        end_timeouts: EndTimeouts = END_TIMEOUTS,
        exit_grace_seconds: float = EXIT_GRACE_SECONDS,
    ) -> None:
        """Start the process. `on_stderr_line` receives each kept line of its stderr, with secrets masked."""
        super().__init__(name, listener)
        self._exit_grace_seconds = exit_grace_seconds
        self._exit_timer: asyncio.TimerHandle | None = None
        self._all_closed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        command = settings.command or ""
        env = build_environment({name: value.get_secret_value() for name, value in settings.env.items()}, os.environ)
        self._stdin = _Input(self._on_part_closed)
        self._stderr = StderrReader(name, command, iter_secrets(settings), on_stderr_line, self._on_part_closed)
        max_bytes, sanitize = settings.max_message_bytes, self._stderr.clean
        self._stdout = _Output(listener, max_bytes, sanitize, self._reject_oversized, self._on_part_closed)
        argv = [command, *settings.args]
        self._process = ServerProcess(name, argv, env, settings.cwd, self._on_part_closed, timeouts=end_timeouts)
        self._unclaimed_pipes = list(self._process.pipes)

    @property
    def pid(self) -> int:
        """Process id of the server, which is also its process group id."""
        return self._process.pid

    async def open(self) -> None:
        await _run_uncancelled(self._connect_pipes())

    async def close(self) -> None:
        await _run_uncancelled(self._end())

    async def _connect_pipes(self) -> None:
        """Connect the pipes to the event loop."""
        stdin, stdout, stderr = self._unclaimed_pipes
        try:
            await self._loop.connect_read_pipe(lambda: self._stderr, stderr)
            self._unclaimed_pipes.remove(stderr)
            await self._loop.connect_read_pipe(lambda: self._stdout, stdout)
            self._unclaimed_pipes.remove(stdout)
            await self._loop.connect_write_pipe(lambda: self._stdin, stdin)
            self._unclaimed_pipes.remove(stdin)
        except OSError as error:
            raise ServerAway(f"No pipes to the server {self.name!r}: {error.strerror}. Try again.") from error

    async def send(self, message: Message, headers: Mapping[str, str] | None = None) -> None:
        """Write a message. Waits only while the server doesn't read."""
        line = encode_message(self.name, message, orjson.OPT_APPEND_NEWLINE)
        while self._stdin.drained is not None and self._error is None:
            await asyncio.shield(self._stdin.drained)
        self._raise_if_closed()
        if self._exit_timer is not None:
            raise NotTaken(f"The server {self.name!r} is at its end")
        self._stdin.write(line)

    async def _end(self) -> None:
        """Report the loss, end the process and close the pipes."""
        self._close_with(ServerGone(f"The connection to the server {self.name!r} was closed"))
        self._stdin.close()
        await self._process.end()
        self._stdout.close()
        self._stderr.close()
        for pipe in self._unclaimed_pipes:
            pipe.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_SECONDS):
                await self._all_closed.wait()

    def _on_part_closed(self) -> None:
        """Handle the end of a pipe or of the process.

        Once all of them have ended, the reason is known. Until then a timer runs.
        """
        is_output_complete = self._stdout.is_closed and self._stderr.is_closed and self._process.status is not None
        if is_output_complete and self._stdin.is_closed:
            self._all_closed.set()
        if self._error is None and is_output_complete:
            self._close_after_exit()
        elif self._error is None and self._exit_timer is None:
            self._exit_timer = self._loop.call_later(self._exit_grace_seconds, self._close_after_exit)

    def _close_after_exit(self) -> None:
        self._close_with(ServerGone(_describe_exit(self.name, self._process.status, self._stderr.lines)))

    def _reject_oversized(self, what: str) -> None:
        self._close_with(ServerTalksNonsense(f"The server {self.name!r} was stopped: it sent {what}"))
        self._process.kill()

    def _close_with(self, error: RefdeskError) -> None:
        if self._exit_timer is not None:
            self._exit_timer.cancel()
        self._stdout.is_muted = True
        self._stdin.resume_writing()  # wakes senders, which then see the error
        super()._close_with(error)


class _Pipe(asyncio.Protocol):
    """Our end of a pipe to a server."""

    def __init__(self, on_close: Callable[[], None]) -> None:
        self.is_closed = False
        self._on_close = on_close
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # with the methods of its direction

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._on_close()


class _Input(_Pipe):
    """Our end of a server's stdin."""

    drained: asyncio.Future[None] | None = None
    """Set while the server doesn't read; done when there's room again."""

    def write(self, line: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(line)

    def pause_writing(self) -> None:
        if self.drained is None:
            self.drained = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        drained, self.drained = self.drained, None
        if drained is not None:
            drained.set_result(None)

    def close(self) -> None:
        """Close stdin. Data that the server hasn't read yet is discarded."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()
        else:
            super().close()


class _Output(_Pipe):
    """A server's stdout, split into messages. The parts of a line are joined only once."""

    def __init__(
        self,
        listener: TransportListener,
        max_bytes: int,
        sanitize: Callable[[bytes], str],
        on_overflow: Callable[[str], None],
        on_close: Callable[[], None],
    ) -> None:
        super().__init__(on_close)
        self.is_muted = False
        """If set, output is read so that the server can exit, and discarded."""
        self._listener = listener
        self._max_bytes = max_bytes
        self._sanitize = sanitize
        self._reject_oversized = on_overflow
        self._partial = bytearray()

    def data_received(self, data: bytes) -> None:
        if self.is_muted:
            return
        *lines, rest = data.split(b"\n")
        if lines:
            if self._partial:
                self._partial += lines.pop(0)
                whole, self._partial = self._partial, bytearray()
                self._handle_line(whole)
            for line in lines:
                if not self.is_muted:
                    self._handle_line(line)
            transport = self._transport
            if len(lines) > MAX_LINES_PER_TURN and transport is not None and not transport.is_closing():
                transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._resume_reading)
        if rest:
            self._partial += rest
            if len(self._partial) > self._max_bytes:
                self._abort_oversized()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._partial and not self.is_muted:
            self._listener.on_garbage("a line that was cut off")
        super().connection_lost(exc)

    def _handle_line(self, line: bytes | bytearray) -> None:
        if len(line) > self._max_bytes:
            self._abort_oversized()
            return
        if len(line) > PART_COUNT_THRESHOLD and line.count(b"[") + line.count(b"{") > MAX_PARTS:
            self._listener.on_garbage(f"a line of {len(line)} bytes with more parts than are taken")
            return
        try:
            message = orjson.loads(line)
        except orjson.JSONDecodeError:
            if line and not line.isspace():
                self._report_garbage(line)
            return
        if not deliver_messages(self._listener, message):
            self._report_garbage(line)

    def _report_garbage(self, line: bytes | bytearray) -> None:
        sanitize = self._sanitize(bytes(line[:MAX_GARBAGE_BYTES]))
        self._listener.on_garbage(f"a line that is no message: {sanitize[:MAX_QUOTE_CHARACTERS]}")

    def _abort_oversized(self) -> None:
        self._partial = bytearray()
        self.close()
        self._reject_oversized(f"a message of more than {self._max_bytes} bytes")

    def _resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class StderrReader(_Pipe):
    """A server's stderr, read continuously, so that the server never blocks on it."""

    def __init__(
        self,
        server: str,
        command: str,
        secrets: Iterable[str],
        on_line: Callable[[str], None] | None,
        on_close: Callable[[], None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(on_close)
        self.lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self._server = server
        self._prefix = f"[STDERR][{escape_hidden(command)[:200]}]"
        self._on_line = on_line
        self._now = now
        self._partial = bytearray()
        self._secrets, self._longest = _compile_secrets(secrets)
        self._second = 0.0
        self._logged = 0
        self._dropped = 0

    def data_received(self, data: bytes) -> None:
        """Handle complete lines. In a flood, only the lines that would be kept are processed."""
        *lines, rest = data.split(b"\n")
        if lines:
            self._append_partial(lines[0])
            lines[0] = bytes(self._partial)
            self._partial.clear()
            self._dropped += max(0, len(lines) - MAX_KEPT_LINES)
            for line in lines[-MAX_KEPT_LINES:]:
                self._handle_line(line)
        self._append_partial(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the last line, which may lack a line end."""
        if self._partial:
            self._handle_line(bytes(self._partial))
        self._second = 0.0
        self._log_dropped()
        super().connection_lost(exc)

    def clean(self, raw: bytes) -> str:
        """Return a line without secrets and control characters.

        Escape sequences are removed first because they could split a secret.
        """
        text = _ANSI_ESCAPES.sub("", raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip())
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
            if len(raw) >= MAX_LINE_BYTES:
                text = text[: -self._longest]  # a secret cut in two would leave one half
        return escape_hidden(
            _CREDENTIAL.sub(lambda found: found[found.lastindex or 0] + MASK, text[:MAX_LINE_CHARACTERS])
        )[:MAX_LINE_CHARACTERS]

    def _append_partial(self, data: bytes) -> None:
        self._partial += data[: MAX_LINE_BYTES - len(self._partial)]

    def _handle_line(self, raw: bytes) -> None:
        text = self.clean(raw)
        if not text:
            return
        self.lines.append(text)
        if self._on_line is not None:
            self._on_line(text)
        if self._may_log():
            logger.warning(f"{self._prefix} {text}", extra={"fields": {"server": self._server}})
        else:
            self._dropped += 1

    def _may_log(self) -> bool:
        now = self._now()
        if now - self._second >= 1:
            self._log_dropped()
            self._second, self._logged = now, 0
        self._logged += 1
        return self._logged <= LINES_PER_SECOND

    def _log_dropped(self) -> None:
        if self._dropped:
            fields = {"server": self._server, "lines": self._dropped}
            logger.warning(f"{self._prefix} (lines left out)", extra={"fields": fields})
            self._dropped = 0


async def _run_uncancelled(work: Coroutine[Any, Any, None]) -> None:
    """Run bounded work to completion, and only then raise a cancellation."""
    task, cancelled = asyncio.ensure_future(work), None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()


def _describe_exit(name: str, status: int | None, stderr: Sequence[str]) -> str:
    if status is None:
        how = "has closed its output"
    elif status >= 0:
        how = f"ended with exit status {status}"
    else:
        how = f"was ended by {Signals(-status).name if -status in set(Signals) else f'signal {-status}'}"
    last = f"; its last stderr line: {stderr[-1][:MAX_QUOTE_CHARACTERS]}" if stderr else ""
    return f"The server {name!r} {how}{last}"


def _compile_secrets(secrets: Iterable[str]) -> tuple[re.Pattern[str] | None, int]:
    """Return a pattern for the secrets and each of their lines, and the length of the longest."""
    pieces = chain.from_iterable((secret, *secret.splitlines()) for secret in secrets)
    # Longest first: one secret may be a prefix of another.
    found = sorted({piece for piece in pieces if len(piece) >= MIN_SECRET_CHARACTERS}, key=len, reverse=True)
    return (re.compile("|".join(map(re.escape, found))), len(found[0])) if found else (None, 0)
