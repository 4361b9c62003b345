"""What a server prints on its error output: to the log, line by line, without secrets and without drowning the rest."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain

logger = logging.getLogger(__name__)

MAX_LINE_CHARACTERS = 2000
"""Of a line; a traceback's longest are shorter, and what is longer is data."""

MAX_LINE_BYTES = 65_536
"""Of a line that are looked at; what follows up to its end is dropped."""

KEPT_LINES = 200
"""The last ones, for whoever wants to know what became of a server."""

LINES_PER_SECOND = 100
"""Logged at most; more is a flood, of which only the number is told."""

MIN_SECRET_CHARACTERS = 6
"""Shorter ones would be found in innocent words, and are no secrets worth the name."""

MASK = "********"

_COLOURS = re.compile("\x1b\\[[0-9;:?]*[ -/]*[@-~]")
_UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
                     "\U000e0000-\U000e0fff]")  # fmt: skip
"""What a terminal obeys, or what does not show."""

_CONFESSION = re.compile(
    r"""(?ix) ( (?: api[_-]?key | token | secret | passw(?:or)?d | passphrase | credentials? | authorization )
                [\w-]{0,32} ["']? \s{0,4} [:=] \s{0,4} ["']? (?: (?:bearer|basic|token) \s{1,4} )? ) [^\s"',;&]+
        | ( \b (?: bearer | basic ) \s{1,4} ) [\w.~+/=-]{8,}
        | ( \b \w{2,16} :// [^\s/:@]{0,256} : ) [^\s/@]{1,256} (?=@)
        | () \b (?: sk | pk | ghp | gho | ghs | github_pat | glpat | xox[abp] ) [_-] [\w-]{6,}"""
)
"""What follows these words is no business of a log, set by us or not."""


class Chatter(asyncio.Protocol):
    """Reads a server's error output as it comes, so that the server never waits for a reader."""

    def __init__(
        self,
        server: str,
        command: str,
        secrets: Iterable[str],
        heard: Callable[[str], None] | None,
        over: Callable[[], None],
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.is_over = False
        self._server = server
        self._prefix = f"[STDERR][{_visible(command)[:200]}]"
        self._heard = heard
        self._over = over
        self._now = now
        self._held = bytearray()
        self._secrets, self._longest = _pattern_of(secrets)
        self._transport: asyncio.BaseTransport | None = None
        self._second = 0.0
        self._logged = 0
        self._left_out = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Now it is read."""
        self._transport = transport

    def close(self) -> None:
        """Read no more of it."""
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Take in some of it; of a flood, only the lines that would be kept are looked at."""
        *lines, rest = data.split(b"\n")
        if lines:
            self._hold(lines[0])
            lines[0] = bytes(self._held)
            self._held.clear()
            self._left_out += max(0, len(lines) - KEPT_LINES)
            for line in lines[-KEPT_LINES:]:
                self._take(line)
        self._hold(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        """The last words may have no line end."""
        if self._held:
            self._take(bytes(self._held))
        self._second = 0.0
        self._tell_left_out()
        self.is_over = True
        self._over()

    def clean(self, raw: bytes) -> str:
        """A line as it may be shown. Colours go first, for they could stand in the middle of a secret."""
        text = _COLOURS.sub("", raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip())
        if self._secrets is not None:
            text = self._secrets.sub(MASK, text)
            if len(raw) >= MAX_LINE_BYTES:
                text = text[: -self._longest]  # of a secret that was cut in two, half would be left
        return _visible(_CONFESSION.sub(_masked, text[:MAX_LINE_CHARACTERS]))[:MAX_LINE_CHARACTERS]

    def _hold(self, data: bytes) -> None:
        self._held += data[: MAX_LINE_BYTES - len(self._held)]

    def _take(self, raw: bytes) -> None:
        text = self.clean(raw)
        if not text:
            return
        self.lines.append(text)
        if self._heard is not None:
            self._heard(text)
        if self._has_turn():
            logger.info(f"{self._prefix} {text}", extra={"fields": {"server": self._server}})
        else:
            self._left_out += 1

    def _has_turn(self) -> bool:
        now = self._now()
        if now - self._second >= 1:
            self._tell_left_out()
            self._second, self._logged = now, 0
        self._logged += 1
        return self._logged <= LINES_PER_SECOND

    def _tell_left_out(self) -> None:
        if self._left_out:
            fields = {"server": self._server, "lines": self._left_out}
            logger.info(f"{self._prefix} (lines left out)", extra={"fields": fields})
            self._left_out = 0


def _pattern_of(secrets: Iterable[str]) -> tuple[re.Pattern[str] | None, int]:
    """Finds any of them, also by the line where one has several, as keys in files do; and how long the longest is."""
    pieces = chain.from_iterable((secret, *secret.splitlines()) for secret in secrets)
    # The longest first: of two secrets, one may begin with the other.
    found = sorted({piece for piece in pieces if len(piece) >= MIN_SECRET_CHARACTERS}, key=len, reverse=True)
    return (re.compile("|".join(map(re.escape, found))), len(found[0])) if found else (None, 0)


def _masked(found: re.Match[str]) -> str:
    return next(group for group in found.groups() if group is not None) + MASK


def _visible(text: str) -> str:
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
