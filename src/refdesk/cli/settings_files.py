"""Changes of other programs' settings files: one entry of a JSON or TOML text, and all other characters stay.

An edited text is verified with a parser, shown as a diff, and written atomically with a backup.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shutil
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from refdesk.cli.terminal import detect_style, sanitize
from refdesk.downstream.files import jsonc
from refdesk.downstream.files.client_files import MAX_BYTES
from refdesk.errors import CannotOpen
from refdesk.support.fs import read_plain_text, replace_file

BACKUP_SUFFIX = ".before-refdesk"
"""Suffix of the backup, which holds the content before the last change."""

PRIVATE_MODE = 0o600
SHARED_MODE = 0o644
"""Mode of new files: private in a home folder, readable by everyone in a project."""

_WHITESPACE_OR_COMMENTS = re.compile(r"(?:\s++|//[^\n]*+|/\*.*?\*/)*+", re.DOTALL)
_REST_OF_LINE = re.compile(r"[ \t]*//[^\n]*")
_HEADER = re.compile(r"^[ \t]*\[{1,2}([^\]\n]+)\]{1,2}[ \t]*(?:#.*)?$", re.MULTILINE)

_DECODER = json.JSONDecoder()

DEFAULT_INDENT = "  "
"""Indentation for a file that has no indented member."""


class EditError(Exception):
    """The text can't be edited safely; the message says why."""


@dataclass(frozen=True, slots=True)
class FileChange:
    """Old and new text of a file. The old text is None if the file doesn't exist."""

    path: Path
    before: str | None
    after: str
    is_shared: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the text stays the same."""
        return self.before == self.after

    def diff(self) -> list[str]:
        """Return the change as a unified diff."""
        old = "/dev/null" if self.before is None else str(self.path)
        lines = difflib.unified_diff(
            (self.before or "").splitlines(), self.after.splitlines(), old, str(self.path), lineterm=""
        )
        return [sanitize(line) for line in lines]

    def print_diff(self) -> None:
        """Print the change as a diff, in colour on a terminal."""
        style = detect_style(sys.stdout)
        colours = {"---": style.bold, "+++": style.bold, "+": style.green, "-": style.red}
        for line in self.diff():
            colour = next((colour for sign, colour in colours.items() if line.startswith(sign)), str)
            print(colour(line))
        sys.stdout.flush()

    def write(self) -> Path | None:
        """Write the change and return the backup's path, if there is one; raise CannotOpen if it fails."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if read_text(self.path) != self.before:
                raise CannotOpen(f"{self.path} has changed in the meantime. Try again.")
            default = SHARED_MODE if self.is_shared else PRIVATE_MODE
            mode = self.path.stat().st_mode & 0o777 if self.before is not None else default
            if not mode & stat.S_IWUSR:
                # Replacing it would work, but the owner or a program that writes it made it read-only on purpose.
                raise CannotOpen(f"{self.path} is read-only and was not changed.")
            backup = None
            if self.before is not None:
                backup = self.path.with_name(self.path.name + BACKUP_SUFFIX)
                shutil.copy2(self.path, backup)
            replace_file(self.path, self.after.encode())
            os.chmod(self.path, mode)
        except OSError as error:
            raise CannotOpen(f"{self.path} cannot be written: {error.strerror or error}.") from None
        return backup


def read_text(path: Path) -> str | None:
    """Return the text of a settings file, or None if it doesn't exist; raise CannotOpen if it can't be read."""
    try:
        return read_plain_text(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise CannotOpen(f"{path} {error}.") from None


def edit_keeping_line_endings(text: str, edit: Callable[[str], str]) -> str:
    """Apply an edit that only handles LF, keeping CRLF line endings."""
    plain = text.replace("\r\n", "\n")
    if text.count("\n") != text.count("\r\n") or plain == text:
        return edit(text)
    return edit(plain).replace("\n", "\r\n")


def find_value(document: Any, path: Sequence[str]) -> Any:
    """Return the value at the path of a parsed document, or None."""
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def open_parent(document: dict[str, Any], path: Sequence[str], problem: str) -> dict[str, Any]:
    """Return the object that holds the last name of a path, creating missing ones; raise EditError for other values."""
    for name in path[:-1]:
        document = document.setdefault(name, {})
        if not isinstance(document, dict):
            raise EditError(f"{name} {problem}")
    return document


# JSON


@dataclass(frozen=True, slots=True)
class _Member:
    """Position of an object member: the start of its name, and the start and end of its value."""

    name: str
    start: int
    value: int
    end: int


def set_member(text: str, path: Sequence[str], value: Any) -> str:
    """Return the text with the value at the path, creating missing objects on the way."""
    text = text if text.strip() else "{}\n"
    expected = _parse_json(text)
    open_parent(expected, path, "is not an object")[path[-1]] = value
    plain, indent = jsonc.blank_extensions(text), ""
    start, end = _find_object(plain)
    for depth, name in enumerate(path, 1):
        members = list(_iter_members(plain, start))
        existing = next((one for one in members if one.name == name), None)
        if existing is None:
            for missing in reversed(path[depth:]):
                value = {missing: value}
            return _verify_json(_insert_member(text, start, end, members, name, value, indent), expected)
        indent = _find_indent(text, existing.start, indent + DEFAULT_INDENT)
        start, end = existing.value, existing.end
    return _verify_json(text[:start] + _serialize_json(value, indent, text) + text[end:], expected)


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return the text without the member at the path, which must exist, its line and its comma."""
    expected = _parse_json(text)
    del open_parent(expected, path, "is not an object")[path[-1]]
    plain = jsonc.blank_extensions(text)
    start, _ = _find_object(plain)
    for name in path[:-1]:
        start = next(one.value for one in _iter_members(plain, start) if one.name == name)
    members = list(_iter_members(plain, start))
    index = next(number for number, one in enumerate(members) if one.name == path[-1])
    begin, end = members[index].start, members[index].end
    after = _skip(text, end)
    has_comma = text[after] == ","
    end = after + 1 if has_comma else end
    line = text.rfind("\n", 0, begin)
    if line >= 0 and not text[line:begin].strip():
        begin = line
    elif has_comma:
        end += len(text[end:]) - len(text[end:].lstrip(" "))
    changed = text[:begin] + text[end:]
    if index > 0 and not has_comma:
        # The last member was removed: drop the comma of the one before it.
        comma = _skip(changed, members[index - 1].end)
        changed = changed[:comma] + changed[comma + 1 :]
    return _verify_json(changed, expected)


def get_member(text: str, path: Sequence[str]) -> Any:
    """Return the value at the path, or None."""
    return find_value(_parse_json(text) if text.strip() else {}, path)


def _parse_json(text: str) -> dict[str, Any]:
    try:
        found = jsonc.parse(text)
    except ValueError as error:
        raise EditError(str(error)) from None
    if not isinstance(found, dict):
        raise EditError("it is not a JSON object")
    if duplicate := next(jsonc.find_duplicate_keys(found), None):
        raise EditError(f"{duplicate[:100]} appears twice")
    return found


def _verify_json(text: str, expected: Any) -> str:
    try:
        is_right = jsonc.parse(text) == expected
    except ValueError:
        is_right = False
    if not is_right:
        raise EditError("its layout cannot be edited safely")
    return text


def _skip(text: str, at: int) -> int:
    """Return the position after whitespace and comments."""
    found = _WHITESPACE_OR_COMMENTS.match(text, at)
    return found.end() if found else at


def _find_object(plain: str) -> tuple[int, int]:
    """Return the start and end of a text's outermost object."""
    start = _skip(plain, 0)
    return start, _DECODER.raw_decode(plain, start)[1]


def _iter_members(plain: str, start: int) -> Iterator[_Member]:
    """Yield the members of the object that starts here, in a text without comments and trailing commas."""
    at = _skip(plain, start + 1)
    while plain[at] != "}":
        name, end = _DECODER.raw_decode(plain, at)
        value = _skip(plain, _skip(plain, end) + 1)
        _, end = _DECODER.raw_decode(plain, value)
        yield _Member(name, at, value, end)
        at = _skip(plain, end)
        at = _skip(plain, at + 1) if plain[at] == "," else at


def _insert_member(
    text: str, start: int, end: int, members: Sequence[_Member], name: str, value: Any, indent: str
) -> str:
    """Append a member, on its own line unless the object is on one line."""
    if not members:
        member_indent = indent + _detect_indent(text)
        close = end - 1
        content = text[start + 1 : close].rstrip()
        entry = f"{json.dumps(name, ensure_ascii=False)}: {_serialize_json(value, member_indent, text)}"
        return f"{text[: start + 1]}{content}\n{member_indent}{entry}\n{indent}{text[close:]}"
    last = members[-1]
    after = _skip(text, last.end)
    has_comma = text[after] == ","
    end = after + 1 if has_comma else last.end
    before = text[:end] if has_comma else f"{text[:end]},"
    if "\n" not in text[start : members[0].start]:
        return f"{before} {json.dumps(name)}: {json.dumps(value)}{text[end:]}"
    member_indent = _find_indent(text, last.start, indent + _detect_indent(text))
    # A comment at the end of the line belongs to the member before it.
    rest = _REST_OF_LINE.match(text, end)
    comment = rest[0] if rest else ""
    entry = f"{json.dumps(name, ensure_ascii=False)}: {_serialize_json(value, member_indent, text)}" + (
        "," if has_comma else ""
    )
    return f"{before}{comment}\n{member_indent}{entry}{text[end + len(comment) :]}"


def _serialize_json(value: Any, indent: str, text: str) -> str:
    lines = json.dumps(value, indent=_detect_indent(text), ensure_ascii=False).splitlines()
    return f"\n{indent}".join(lines)


def _detect_indent(text: str) -> str:
    """Return the text's indentation."""
    first = re.search(r"\{[ \t]*\n([ \t]+)\S", text)
    return first[1] if first else DEFAULT_INDENT


def _find_indent(text: str, at: int, default: str) -> str:
    """Return the whitespace before a member on its line, or the default if there is other text."""
    before = text[text.rfind("\n", 0, at) + 1 : at]
    return before if before.strip() == "" else default


# TOML


def set_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """Return the text with the table, replacing an existing one or appended at the end."""
    expected = _parse_toml(text)
    open_parent(expected, path, "is no table")[path[-1]] = dict(values)
    written = _serialize_toml(path, values)
    if spans := _find_spans(text, path):
        for begin, end in reversed(spans[1:]):
            text = text[:begin] + text[end:]
        begin, end = spans[0]
        after = text[end:]
        text = text[:begin] + written + ("\n" if after.strip() else "") + after
    else:
        lead = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        text = f"{text}{lead}{written}"
    return _verify_toml(text, expected)


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return the text without the table, which must exist."""
    expected = _parse_toml(text)
    del open_parent(expected, path, "is no table")[path[-1]]
    for begin, end in reversed(_find_spans(text, path)):
        text = text[:begin] + text[end:]
    return _verify_toml(text.rstrip("\n") + "\n" if text.strip() else "", expected)


def get_table(text: str, path: Sequence[str]) -> Any:
    """Return the value at the path, or None."""
    return find_value(_parse_toml(text), path)


def _parse_toml(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise EditError(f"not valid TOML: {error}") from None


def _verify_toml(text: str, expected: Mapping[str, Any]) -> str:
    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        found = {}
    # A parent table that held only this one disappears with it.
    if any(found.get(name, {}) != expected.get(name, {}) for name in (*found, *expected)):
        raise EditError("it is laid out in a way that cannot be changed safely")
    return text


def _find_spans(text: str, path: Sequence[str]) -> list[tuple[int, int]]:
    """Return the spans of a table and its subtables, without the comments that lead in the next header."""
    headers = list(_HEADER.finditer(text))
    spans = []
    for header, following in zip_longest(headers, headers[1:]):
        if _parse_header(header[1])[: len(path)] == list(path):
            end = following.start() if following else len(text)
            lines = text[header.end() : end].splitlines(keepends=True)
            while following and lines and lines[-1].lstrip().startswith("#"):
                end -= len(lines.pop())
            spans.append((header.start(), end))
    return spans


def _parse_header(header: str) -> list[str]:
    """Return the names in a header; empty if it can't be parsed, and so isn't ours."""
    try:
        found: Any = tomllib.loads(f"[{header}]")
    except tomllib.TOMLDecodeError:
        return []
    names = []
    while found:
        ((name, found),) = found.items()
        names.append(name)
    return names


def _serialize_toml(path: Sequence[str], values: Mapping[str, Any]) -> str:
    header = ".".join(name if re.fullmatch(r"[\w-]+", name, re.ASCII) else json.dumps(name) for name in path)
    # JSON strings and lists of strings are valid TOML.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
    return "\n".join([f"[{header}]", *lines, ""])
