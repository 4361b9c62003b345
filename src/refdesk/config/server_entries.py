"""From `mcpServers`, as any client's file has it, to servers that can be used: or what is wrong, key by key.

Whatever is repeated of a value is masked: any text of a server may hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from refdesk.config.other_clients import KNOWN, translate
from refdesk.config.plain_files import read_plain_text
from refdesk.config.servers import NOT_WRITTEN, DocsSource, McpServerConfig, ToolRules
from refdesk.config.settings import SERVERS
from refdesk.config.types import MASK, is_encodable
from refdesk.config.variables import Filling
from refdesk.config.wording import Fault, explain, kind_of, quoted, suggestion, unknown

NAME = re.compile(r"(?! )[A-Za-z0-9._ -]{1,64}(?<! )")
NAME_RULE = "a server's name is 1 to 64 letters, digits, dots, hyphens, underscores or spaces between them"

KEYS = tuple(key for key in McpServerConfig.model_fields if key not in NOT_WRITTEN)
ENV_FILE = "envFile"
PARTS = {"tools": tuple(ToolRules.model_fields), "docs": tuple(DocsSource.model_fields)}
"""The keys of a server, one that is read with them and kept by none, and the keys of the parts it has."""

DEEPEST = 8
"""Levels below a server in which texts are filled in; `docs.arguments` may hold anything, but hardly more."""

MOST_VALUES = 10_000
"""Values of a server that are looked at; aliases in YAML can make a few lines into more than fits in memory."""

MOST_ENV_FILE_BYTES = 1_048_576
"""More is no list of variables."""

_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_][\w.-]*)\s*=\s*(?P<value>.*?)\s*", re.ASCII)


@dataclass(slots=True)
class Entries:
    """What was read: the servers, how they were written in our words, what is wrong, what is in vain."""

    servers: dict[str, McpServerConfig] = field(default_factory=dict)
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    """With `${VAR}` as it stands, so that it can be kept without its secrets."""
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    broken: dict[str, list[Fault]] = field(default_factory=dict)
    """The faults of each server that has some."""

    def refuse(self, name: Any, faults: list[Fault]) -> None:
        """Leave a server out, and say why."""
        self.faults += faults
        self.broken[name if isinstance(name, str) else quoted(name)] = faults


@dataclass(frozen=True, slots=True)
class _Place:
    source: str
    key: str

    def below(self, *steps: object) -> str:
        inner = (f"[{step}]" if isinstance(step, int) else f".{quoted(step)}" for step in steps if step != "[key]")
        return self.key + "".join(inner)

    def fault(self, text: str, *steps: object) -> Fault:
        return Fault(self.source, self.below(*steps), text)


def read_entries(given: Any, environ: Mapping[str, str], *, source: str, folder: Path, key: str = SERVERS) -> Entries:
    """Every server of a mapping; those with a fault are left out. `folder` is what a relative place is relative to."""
    out = Entries()
    if not isinstance(given, Mapping):
        out.faults.append(Fault(source, key, f"expected servers by their names, not {kind_of(given)}"))
        return out
    for name, entry in given.items():
        place = _Place(source, f"{key}.{quoted(name)}")
        if not isinstance(name, str) or not NAME.fullmatch(name):
            out.refuse(name, [place.fault(NAME_RULE)])
        elif isinstance(entry, McpServerConfig):
            out.servers[name] = entry
        elif not isinstance(entry, Mapping):
            out.refuse(name, [place.fault(f"expected a mapping, not {kind_of(entry)}")])
        else:
            _read_entry(out, name, entry, environ, place, folder)
    return out


def key_within(fault: Fault, name: str) -> str:
    """The key of a server that a fault of it is about, without the way to the server; empty for the whole of it."""
    return fault.key.removeprefix(f"{SERVERS}.{quoted(name)}").lstrip(".")


def _read_entry(
    out: Entries, name: str, entry: Mapping[Any, Any], environ: Mapping[str, str], place: _Place, folder: Path
) -> None:
    translated = translate(entry)
    out.written[name] = {key: translated.entry[key] for key in (*KEYS, ENV_FILE) if key in translated.entry}
    out.warnings += [place.fault(text, key) for key, text in translated.warnings]
    faults = [place.fault(text, key) for key, text in translated.problems]
    faults += _unknown_keys(translated.entry, place)
    filled = _Filled(environ, folder, place)
    values = filled.value(translated.entry)
    filled.environment(values)
    if values.get("enabled") is not False:
        # One that is switched off need not be complete: that is a reason to switch it off.
        faults += filled.faults
    known = {key: value for key, value in values.items() if key in KEYS}
    secrets = tuple(map(SecretStr, sorted(filled.secrets)))
    try:
        server = McpServerConfig.model_validate({**known, "filled_in": secrets})
    except ValidationError as error:
        details = error.errors(include_url=False)
        # What is wrong with the whole follows from what is wrong with a key.
        faults += [_fault(detail, place) for detail in details if detail["loc"] or not faults]
    if faults:
        out.refuse(name, faults)
    else:
        out.servers[name] = server


def _unknown_keys(entry: Mapping[Any, Any], place: _Place) -> Iterator[Fault]:
    for key in entry:
        if key not in KEYS and key != ENV_FILE:
            near = suggestion(key, [*KEYS, *KNOWN]) if isinstance(key, str) else None
            yield place.fault(unknown(near, KEYS), key if isinstance(key, str) else quoted(key))


@dataclass(slots=True)
class _Filled:
    """Fills in the variables of one server, text by text."""

    environ: Mapping[str, str]
    folder: Path
    place: _Place
    secrets: set[str] = field(default_factory=set)
    faults: list[Fault] = field(default_factory=list)
    values: int = 0

    def value(self, given: Any, *steps: object) -> Any:
        """The value with the texts in it filled in."""
        self.values += 1
        if self.values > MOST_VALUES or len(steps) > DEEPEST:
            return given
        if isinstance(given, str):
            return self._text(given, steps)
        if isinstance(given, Mapping):
            return {name: self.value(item, *steps, name) for name, item in given.items()}
        if isinstance(given, list | tuple):
            return [self.value(item, *steps, index) for index, item in enumerate(given)]
        return given

    def _text(self, given: str, steps: tuple[object, ...]) -> str:
        filling = Filling(self.environ, self.folder)
        text = filling(given)
        self.secrets |= filling.secrets
        problems = dict.fromkeys(filling.problems if is_encodable(text) else ["not UTF-8 text"])
        self.faults += [self.place.fault(problem, *steps) for problem in problems]
        return text

    def environment(self, entry: dict[str, Any]) -> None:
        """Put the variables of the file that it names below those that the entry itself has."""
        path, env = entry.pop(ENV_FILE, None), entry.get("env", {})
        try:
            if path is not None and isinstance(env, Mapping):
                entry["env"] = {**_variables_in(path, self.folder), **env}
        except ValueError as error:
            self.faults.append(self.place.fault(str(error), ENV_FILE))


def _variables_in(path: Any, folder: Path) -> dict[str, str]:
    """The `KEY=VALUE` lines of a file; raises ValueError with what is wrong."""
    if not isinstance(path, str) or "\0" in path:
        raise ValueError(f"expected a path, not {kind_of(path)}")
    try:
        text = read_plain_text(folder / path, MOST_ENV_FILE_BYTES)
    except FileNotFoundError:
        raise ValueError("there is no such file") from None
    except ValueError as error:
        raise ValueError(f"the file {error}") from None
    lines = (_LINE.fullmatch(line) for line in text.splitlines() if not line.lstrip().startswith("#"))
    return {line["name"]: _unquoted(line["value"]) for line in lines if line}


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


def _fault(detail: ErrorDetails, place: _Place) -> Fault:
    steps = detail["loc"]
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        known = PARTS.get(str(steps[0]), KEYS)
        return place.fault(unknown(suggestion(str(steps[-1]), known), known), *steps)
    if not steps:
        return place.fault(f"expected {detail['ctx']['error']}")
    choices = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
    return place.fault(explain(detail, _shown(steps, detail["input"]), choices), *steps)


def _shown(steps: tuple[int | str, ...], value: Any) -> str:
    """A wrong value; only of settings that cannot hold a secret."""
    return MASK if steps[0] in ("env", "headers", "args", "url", "command", "docs") else quoted(value)
