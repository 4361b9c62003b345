"""Which files of a folder are left alone: the rules of `.gitignore`, in our own few lines.

A rule is matched name by name, never as one expression over a whole path: a folder that somebody else wrote the rules
for can then not make matching take longer than its paths and rules are long.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate

MAX_RULE = 1000
"""Characters of a rule; paths are hardly longer, and a longer line is no rule."""

_ESCAPED = re.compile(r"\\(.)|\[\^")
_TRAILING_BLANKS = re.compile(r"(?<!\\) +$")

Names = Sequence[str]
"""The names on the way from a folder down to a file."""


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """A line of an ignore file: what it matches is ignored, or no longer ignored if the line begins with `!`."""

    names: tuple[re.Pattern[str] | None, ...]
    """One for each name of a path; None is `**`, any number of names."""
    is_negated: bool
    only_folders: bool

    def matches(self, path: Names, *, is_folder: bool) -> bool:
        """Whether the rule is about this path, which is relative to the folder that the rule stands in."""
        return (is_folder or not self.only_folders) and _match_names(self.names, path)


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """The rules that stand in one folder, `depth` names below the one that is walked."""

    rules: tuple[IgnoreRule, ...]
    depth: int = 0

    def decide(self, path: Names, *, is_folder: bool) -> bool | None:
        """Whether a path from the walked folder is ignored; None when no rule is about it. The last rule decides."""
        below = path[self.depth :]
        for rule in reversed(self.rules):
            if rule.matches(below, is_folder=is_folder):
                return not rule.is_negated
        return None


def parse_rules(lines: Iterable[str], depth: int = 0) -> IgnoreRules:
    """The rules in the lines of an ignore file."""
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
        # Everything below, but not the folder itself.
        names.insert(-1, "*")
    return IgnoreRule(tuple(map(_compile_name, names)), is_negated, only_folders)


def _compile_name(glob: str) -> re.Pattern[str] | None:
    return None if glob == "**" else re.compile(translate(_ESCAPED.sub(_translate_escape, glob)))


def _translate_escape(found: re.Match[str]) -> str:
    """What Git writes with a backslash or `[^`, in the spelling of `fnmatch`."""
    if found[1] is None:
        return "[!"
    return f"[{found[1]}]" if found[1] in "*?[" else found[1]


def _match_names(pattern: Sequence[re.Pattern[str] | None], path: Names) -> bool:
    """Match name by name; on a mismatch the last `**` takes one name more, and no earlier one ever has to."""
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
