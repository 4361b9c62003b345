"""Rules of `.gitignore` files.

Paths are matched name by name, never by one expression over the whole path, so that hostile rules can't make matching
slower than linear in paths and rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate

MAX_RULE = 1000
"""Longest rule in characters; longer lines are skipped."""

_ESCAPED = re.compile(r"\\(.)|\[\^")
_TRAILING_BLANKS = re.compile(r"(?<!\\) +$")

Names = Sequence[str]
"""Path components from a folder down to a file."""


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line of an ignore file; a leading `!` negates it."""

    names: tuple[re.Pattern[str] | None, ...]
    """One pattern per path component; None is `**`, any number of components."""
    is_negated: bool
    only_folders: bool


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Rules of one folder, `depth` names below the walked one."""

    rules: tuple[IgnoreRule, ...]
    depth: int = 0

    def decide(self, path: Names, *, is_folder: bool) -> bool | None:
        """Whether a path is ignored, by the last matching rule; None if none matches."""
        below = path[self.depth :]
        for rule in reversed(self.rules):
            if (is_folder or not rule.only_folders) and _match_names(rule.names, below):
                return not rule.is_negated
        return None


def parse_rules(lines: Iterable[str], depth: int = 0) -> IgnoreRules:
    """Parse the lines of an ignore file."""
    return IgnoreRules(tuple(rule for line in lines if (rule := _parse_rule(line)) is not None), depth)


def _parse_rule(line: str) -> IgnoreRule | None:
    if len(line) > MAX_RULE or line.startswith("#"):
        return None
    line = _TRAILING_BLANKS.sub("", line)
    is_negated = line.startswith("!")
    pattern = line.removeprefix("!")
    only_folders = pattern.endswith("/")
    pattern = pattern.rstrip("/")
    if not pattern:
        return None
    names = [name for name in pattern.split("/") if name]
    if "/" not in pattern:
        names.insert(0, "**")
    if names[-1] == "**":
        # Matches everything below, not the folder itself.
        names.insert(-1, "*")
    patterns = (None if name == "**" else translate(_ESCAPED.sub(_translate_escape, name)) for name in names)
    compiled = tuple(None if pattern is None else re.compile(pattern) for pattern in patterns)
    return IgnoreRule(compiled, is_negated, only_folders)


def _translate_escape(found: re.Match[str]) -> str:
    """Translate a backslash escape or `[^` of Git to the syntax of `fnmatch`."""
    if found[1] is None:
        return "[!"
    return f"[{found[1]}]" if found[1] in "*?[" else found[1]


def _match_names(pattern: Sequence[re.Pattern[str] | None], path: Names) -> bool:
    """Match name by name; on a mismatch, only the last `**` has to take one name more."""
    at, star, resume = 0, -1, 0
    index = 0
    while index < len(path):
        wanted = pattern[at] if at < len(pattern) else None
        if at < len(pattern) and wanted is None:
            star, resume, at = at, index, at + 1
        elif wanted is not None and wanted.match(path[index]):
            at, index = at + 1, index + 1
        elif star >= 0:
            resume += 1
            at, index = star + 1, resume
        else:
            return False
    return all(name is None for name in pattern[at:])
