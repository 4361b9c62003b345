"""Parser of robots.txt (RFC 9309): the longest matching rule decides, and Allow wins a tie."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import quote

AGENT = "refdesk"
"""Product token for Refdesk."""

MAX_ROBOTS_BYTES = 500 * 1024
"""RFC 9309 requires at least this much to be read; the rest is ignored."""

MAX_RULES = 2000
"""Rules kept per site; real sites have dozens."""

_ESCAPE = re.compile("%([0-9a-fA-F]{2})")
_UNRESERVED = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ASCII = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True)
class RobotsRule:
    """Rule for a path prefix: `*` matches any characters, a final `$` the end."""

    pattern: str
    allowed: bool

    def matches(self, path: str) -> bool:
        """Whether the rule matches a path, in time linear to its length whatever the pattern."""
        ends = self.pattern.endswith("$")
        first, *parts = self.pattern.removesuffix("$").split("*")
        if not parts:
            return path == first if ends else path.startswith(first)
        if not path.startswith(first):
            return False
        at = len(first)
        last = parts.pop() if ends else ""
        for part in parts:
            found = path.find(part, at)
            if found < 0:
                return False
            at = found + len(part)
        return path.endswith(last, at)


@dataclass(frozen=True, slots=True)
class Robots:
    """Rules of one site for this crawler."""

    rules: tuple[RobotsRule, ...] = ()

    def allow(self, target: str) -> bool:
        """Whether a path with its query may be fetched."""
        path = normalize_path(target)
        matching = [rule for rule in self.rules if rule.matches(path)]
        return max(matching, key=lambda rule: (len(rule.pattern), rule.allowed)).allowed if matching else True


def parse_robots(text: str, agent: str = AGENT) -> Robots:
    """Parse the rules for `agent`: those of all groups that name it, or else of `*`."""
    named: list[RobotsRule] = []
    general: list[RobotsRule] = []
    is_named = False
    for agents, rules in _parse_groups(text):
        if agent in agents:
            is_named = True
            named += rules
        elif "*" in agents:
            general += rules
    return Robots(tuple((named if is_named else general)[:MAX_RULES]))


def _parse_groups(text: str) -> Iterator[tuple[set[str], list[RobotsRule]]]:
    """Yield each run of `User-agent` lines with its rules; other lines don't end a group."""
    agents: set[str] = set()
    rules: list[RobotsRule] = []
    has_rules = False
    for line in text.removeprefix("\ufeff").splitlines():
        key, colon, value = (part.strip() for part in line.partition("#")[0].partition(":"))
        key = key.lower() if colon else ""
        if key == "user-agent":
            if has_rules:
                yield agents, rules
                agents, rules, has_rules = set(), [], False
            # The product token, such as `refdesk` of `Refdesk/1.0 (docs)`.
            agents.add("*" if value.startswith("*") else re.split(r"[^A-Za-z_-]", value, maxsplit=1)[0].lower())
        elif key in ("allow", "disallow"):
            has_rules = True
            if value and agents:
                rules.append(RobotsRule(normalize_path(value), key == "allow"))
    yield agents, rules


def normalize_path(path: str) -> str:
    """Normalize percent-encoding: only what needs it is encoded, in upper case."""

    def normalize_escape(escape: re.Match[str]) -> str:
        character = chr(int(escape[1], 16))
        return character if character in _UNRESERVED else escape[0].upper()

    return quote(_ESCAPE.sub(normalize_escape, path), safe=_ASCII, errors="replace")
