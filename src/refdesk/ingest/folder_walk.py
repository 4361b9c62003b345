"""Walk of a folder's documents.

Skips hidden files, files matched by `.gitignore` and `.refdeskignore`, build output and dependencies. Links don't lead
out of the folder or in circles. Unreadable paths are reported, so that an unreachable file isn't taken for deleted.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path

from refdesk.documents.convert.formats import FORMATS
from refdesk.errors import CannotOpen

SUFFIXES = tuple(sorted({suffix for format in FORMATS.values() for suffix in format.suffixes}))
"""File name endings of documents."""

IGNORE_FILES = (".gitignore", ".refdeskignore")
"""The later one takes precedence."""

MAX_IGNORE_FILE = 1_000_000
"""Bytes; the longest real ones have a few thousand lines."""

SKIPPED_FOLDERS = frozenset(("node_modules", "bower_components", "__pycache__", "site-packages"))
"""Folders that are always skipped: they hold installed or cached files only."""

SKIPPED_BUILD_FOLDERS = frozenset(("target", "build", "dist", "out"))
"""Folders that are skipped next to a project file: elsewhere they may hold anything."""

PROJECT_FILES = frozenset(
    """Cargo.toml pom.xml build.sbt build.gradle build.gradle.kts package.json pyproject.toml setup.py setup.cfg
    CMakeLists.txt Makefile meson.build""".split()
)

GENERATED_MARKERS = frozenset(("CACHEDIR.TAG", "pyvenv.cfg"))
"""Files that mark a folder as a cache or a virtual environment."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A document on disk, with the metadata that shows whether it has changed."""

    path: Path
    relative: str
    """Path below the walked folder, with slashes on every system."""
    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class SkippedPath:
    """A file or folder that couldn't be read; `.` is the walked folder."""

    relative: str
    reason: str
    """A sentence."""


def walk(folder: Path, *, ignore: Sequence[str] = (), max_files: int) -> Iterator[FoundFile | SkippedPath]:
    """Yield the documents below a folder in a fixed order, at most `max_files`.

    `ignore` has rules that take precedence over all others. Raises `CannotOpen` if there is no such folder.
    """
    found = 0
    for item in _FolderWalk(folder, parse_rules(ignore)).run():
        if isinstance(item, FoundFile):
            found += 1
        if found > max_files:
            yield SkippedPath(
                ".", f"It has more than {max_files:,} documents, and the rest was skipped. Add its subfolders."
            )
            return
        yield item


class _FolderWalk:
    """One walk over a folder, with pending folders on a stack so that depth is unlimited."""

    def __init__(self, folder: Path, ignore: IgnoreRules) -> None:
        self._folder = folder
        self._inside = os.path.join(os.path.realpath(folder), "")
        self._pending: list[tuple[tuple[str, ...], tuple[IgnoreRules, ...]]] = [((), (ignore,))]

    def run(self) -> Iterator[FoundFile | SkippedPath]:
        while self._pending:
            names, rules = self._pending.pop()
            try:
                with os.scandir(os.path.join(self._folder, *names)) as listed:
                    entries = sorted(listed, key=lambda entry: entry.name)
            except OSError as error:
                if not names:
                    raise CannotOpen(f"{self._folder} isn't a readable folder: {error.strerror or error}.") from error
                if not isinstance(error, FileNotFoundError | NotADirectoryError):  # not deleted meanwhile
                    yield SkippedPath(_format_path(names), f"The folder can't be read: {error.strerror or error}.")
            else:
                yield from self._visit(names, rules, entries)

    def _visit(
        self, names: tuple[str, ...], rules: tuple[IgnoreRules, ...], entries: Sequence[os.DirEntry[str]]
    ) -> Iterator[FoundFile | SkippedPath]:
        """Yield the files of one folder and push its subfolders on the stack."""
        present = frozenset(entry.name for entry in entries)
        if names and present & GENERATED_MARKERS:
            return
        own, problems = _load_rules(names, entries)
        yield from problems
        stated, *above = rules
        rules = (stated, own, *above) if own.rules else rules
        folders: list[str] = []
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if not _is_ignored((*names, entry.name), rules, present):
                    folders.append(entry.name)
            elif entry.name.lower().endswith(SUFFIXES) and not _is_ignored((*names, entry.name), rules):
                yield from self._check_file(entry, (*names, entry.name))
        self._pending += [((*names, name), rules) for name in reversed(folders)]

    def _check_file(self, entry: os.DirEntry[str], names: Sequence[str]) -> Iterator[FoundFile | SkippedPath]:
        relative = "/".join(names)
        if _format_path(names) != relative:
            yield SkippedPath(_format_path(names), "Its name is not valid UTF-8: rename it.")
            return
        try:
            is_inside = not entry.is_symlink() or os.path.realpath(entry.path).startswith(self._inside)
            status = entry.stat() if is_inside else None
        except FileNotFoundError:
            return  # Deleted meanwhile, or a broken link.
        except OSError as error:
            yield SkippedPath(relative, f"The file can't be inspected: {error.strerror or error}.")
            return
        if status is not None and stat.S_ISREG(status.st_mode):
            yield FoundFile(Path(entry.path), relative, status.st_size, status.st_mtime_ns, status.st_ino)


def _is_ignored(names: Sequence[str], rules: Iterable[IgnoreRules], beside: frozenset[str] | None = None) -> bool:
    """Whether the nearest matching rule ignores a path; without one, whether it is a generated folder."""
    is_folder = beside is not None
    for level in rules:
        verdict = level.decide(names, is_folder=is_folder)
        if verdict is not None:
            return verdict
    name = names[-1]
    return beside is not None and (
        name in SKIPPED_FOLDERS or (name in SKIPPED_BUILD_FOLDERS and not PROJECT_FILES.isdisjoint(beside))
    )


def _load_rules(names: Sequence[str], entries: Iterable[os.DirEntry[str]]) -> tuple[IgnoreRules, list[SkippedPath]]:
    """Load the rules in a folder; also return its ignore files that couldn't be read."""
    lines: list[str] = []
    problems: list[SkippedPath] = []
    for entry in entries:
        if entry.name in IGNORE_FILES and entry.is_file(follow_symlinks=False):
            try:
                if entry.stat().st_size > MAX_IGNORE_FILE:
                    raise OSError("it is too long")
                # Names that aren't UTF-8 match the spelling of a directory listing.
                with open(entry.path, encoding="utf-8-sig", errors="surrogateescape") as file:
                    lines += file.read(MAX_IGNORE_FILE).split("\n")
            except OSError as error:
                reason = f"Its rules were ignored: {error.strerror or error}."
                problems.append(SkippedPath(_format_path([*names, entry.name]), reason))
    return parse_rules(lines, len(names)), problems


def _format_path(names: Sequence[str]) -> str:
    """Join names to a path that can be printed and stored, whatever bytes they have."""
    return "/".join(names).encode("utf-8", "backslashreplace").decode()


# Rules of `.gitignore` files. Paths are matched name by name, never by one expression over the whole path, so that
# hostile rules can't make matching slower than linear in paths and rules.


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
