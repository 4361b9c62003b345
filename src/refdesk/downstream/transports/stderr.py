"""Reader for a server's stderr: masks secrets, limits the rate, and logs each line."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain

from refdesk.telemetry.log import escape_hidden

logger = logging.getLogger(__name__)

MAX_LINE_CHARACTERS = 2000
"""Characters kept of a line. The longest lines of tracebacks are shorter; longer ones are data."""

MAX_LINE_BYTES = 65_536
"""Bytes considered of a line. The rest up to its end is dropped."""

MAX_KEPT_LINES = 200
"""Last lines kept for diagnosis."""

LINES_PER_SECOND = 100
"""Lines logged per second. The rest of a flood is only counted."""

MIN_SECRET_CHARACTERS = 6
"""Shorter secrets would match ordinary words."""

MASK = "********"

_ANSI_ESCAPES = re.compile("\x1b\\[[0-9;:?]*[ -/]*[@-~]")
_CREDENTIAL = re.compile(
    r"""(?ix) ( (?: api[_-]?key | token | secret | passw(?:or)?d | passphrase | credentials? | authorization )
                [\w-]{0,32} ["']? \s{0,4} [:=] \s{0,4} ["']? (?: (?:bearer|basic|token) \s{1,4} )? ) [^\s"',;&]+
        | ( \b (?: bearer | basic ) \s{1,4} ) [\w.~+/=-]{8,}
        | ( \b \w{2,16} :// [^\s/:@]{0,256} : ) [^\s/@]{1,256} (?=@)
        | () \b (?: sk | pk | ghp | gho | ghs | github_pat | glpat | xox[abp] ) [_-] [\w-]{6,}"""
)
"""Values that follow these words look like credentials and are masked, whether we configured them or not."""


class StderrReader(asyncio.Protocol):
    """Protocol that reads a server's stderr continuously, so that the server never blocks on it."""

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
        self.lines: deque[str] = deque(maxlen=MAX_KEPT_LINES)
        self.is_closed = False
        self._server = server
        self._prefix = f"[STDERR][{escape_hidden(command)[:200]}]"
        self._on_line = on_line
        self._on_close = on_close
        self._now = now
        self._partial = bytearray()
        self._secrets, self._longest = _compile_secrets(secrets)
        self._transport: asyncio.BaseTransport | None = None
        self._second = 0.0
        self._logged = 0
        self._dropped = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def close(self) -> None:
        """Stop reading."""
        if self._transport is not None:
            self._transport.close()

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
        self.is_closed = True
        self._on_close()

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
            logger.info(f"{self._prefix} {text}", extra={"fields": {"server": self._server}})
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
            logger.info(f"{self._prefix} (lines left out)", extra={"fields": fields})
            self._dropped = 0


def _compile_secrets(secrets: Iterable[str]) -> tuple[re.Pattern[str] | None, int]:
    """Return a pattern for the secrets and each of their lines, and the length of the longest."""
    pieces = chain.from_iterable((secret, *secret.splitlines()) for secret in secrets)
    # Longest first: one secret may be a prefix of another.
    found = sorted({piece for piece in pieces if len(piece) >= MIN_SECRET_CHARACTERS}, key=len, reverse=True)
    return (re.compile("|".join(map(re.escape, found))), len(found[0])) if found else (None, 0)
