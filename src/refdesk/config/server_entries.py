"""Parses `mcpServers`, in any client's format, into server configurations or a fault per invalid key.

Each client has its own keys for the same things, and keys that mean nothing to other programs. They are translated to
Refdesk's keys before variables are expanded. Values are masked in faults: any text of a server may hold a secret.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic_core import ErrorDetails

from refdesk.config.messages import Fault, describe_kind, describe_unknown_key, explain, quoted, suggest
from refdesk.config.placeholders import expand_for_server
from refdesk.config.server_model import DocsSource, McpServerConfig, ToolRules
from refdesk.config.setting_keys import SERVERS
from refdesk.config.types import MASK, Url, is_encodable
from refdesk.support.fs import read_plain_text

NAME = re.compile(r"(?! )[A-Za-z0-9._ -]{1,64}(?<! )")
NAME_RULE = "a server's name is 1 to 64 letters, digits, dots, hyphens, underscores or spaces between them"

KEYS = tuple(key for key, field in McpServerConfig.model_fields.items() if not field.exclude)
ENV_FILE = "envFile"
PARTS = {"tools": tuple(ToolRules.model_fields), "docs": tuple(DocsSource.model_fields)}
"""Keys of a server, the one key that is read but not stored, and the keys of its nested sections."""

MAX_DEPTH = 8
"""Levels below a server at which variables are expanded. Only `docs.arguments` nests freely, and hardly deeper."""

MAX_VALUES = 10_000
"""Values visited per server. YAML aliases can expand a few lines into more than fits in memory."""

MAX_ENV_FILE_BYTES = 1_048_576
"""A larger file isn't a list of variables."""

_VALID_UNEXPANDED = ("command", "args", "env", "headers", "cwd")
"""Keys whose values are valid with unexpanded variables."""

_LINE = re.compile(r"\s*(?:export\s+)?(?P<name>[A-Za-z_][\w.-]*)\s*=\s*(?P<value>.*?)\s*", re.ASCII)


@dataclass(slots=True)
class ServerEntries:
    """Result of parsing `mcpServers`."""

    servers: dict[str, McpServerConfig] = field(default_factory=dict)
    written: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Translated entries with `${VAR}` unexpanded, so that they can be stored without secrets."""
    faults: list[Fault] = field(default_factory=list)
    warnings: list[Fault] = field(default_factory=list)
    broken: dict[str, list[Fault]] = field(default_factory=dict)
    """Faults by server, for the servers that have any."""

    def reject(self, name: Any, faults: list[Fault]) -> None:
        """Leave a server out and record why."""
        self.faults += faults
        self.broken[name if isinstance(name, str) else quoted(name)] = faults


@dataclass(slots=True)
class _EntryReader:
    """Expands the variables in one server entry, and locates its faults."""

    source: str
    key: str
    environ: Mapping[str, str]
    folder: Path
    secrets: set[str] = field(default_factory=set)
    unresolved: list[Fault] = field(default_factory=list)
    """Variables that can't be expanded, and files of variables that can't be read."""
    unreadable: list[Fault] = field(default_factory=list)
    values: int = 0

    def fault(self, text: str, *steps: object) -> Fault:
        inner = (f"[{step}]" if isinstance(step, int) else f".{quoted(step)}" for step in steps if step != "[key]")
        return Fault(self.source, self.key + "".join(inner), text)

    def expand(self, raw: Any, *steps: object) -> Any:
        """Return the value with variables expanded in every text inside it."""
        self.values += 1
        if self.values > MAX_VALUES or len(steps) > MAX_DEPTH:
            return raw
        if isinstance(raw, str):
            problems: list[str] = []
            text = expand_for_server(raw, self.environ, self.folder, problems, self.secrets)
            if not is_encodable(text):
                self.unreadable.append(self.fault("not UTF-8 text", *steps))
            else:
                self.unresolved += [self.fault(problem, *steps) for problem in dict.fromkeys(problems)]
            return text
        if isinstance(raw, Mapping):
            return {name: self.expand(item, *steps, name) for name, item in raw.items()}
        if isinstance(raw, list | tuple):
            return [self.expand(item, *steps, index) for index, item in enumerate(raw)]
        return raw


def read_entries(
    raw: Any,
    environ: Mapping[str, str],
    *,
    source: str,
    folder: Path,
    key: str = SERVERS,
    keep_unresolved: bool = False,
) -> ServerEntries:
    """Parse every server of a mapping, leaving out those with faults. Relative paths are relative to `folder`.

    With `keep_unresolved`, a server whose variables can't be expanded is kept, disabled and with its `problem`.
    """
    out = ServerEntries()
    if not isinstance(raw, Mapping):
        out.faults.append(Fault(source, key, f"expected a mapping of names to servers, not {describe_kind(raw)}"))
        return out
    for name, entry in raw.items():
        reader = _EntryReader(source, f"{key}.{quoted(name)}", environ, folder)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            out.reject(name, [reader.fault(NAME_RULE)])
        elif isinstance(entry, McpServerConfig):
            out.servers[name] = entry
        elif not isinstance(entry, Mapping):
            out.reject(name, [reader.fault(f"expected a mapping, not {describe_kind(entry)}")])
        else:
            _read_entry(out, name, entry, reader, keep_unresolved)
    return out


def get_server_key(fault: Fault, name: str) -> str:
    """Return a fault's key relative to its server; empty if the fault is about the whole server."""
    return fault.key.removeprefix(f"{SERVERS}.{quoted(name)}").lstrip(".")


def _read_entry(
    out: ServerEntries, name: str, entry: Mapping[Any, Any], reader: _EntryReader, keep_unresolved: bool
) -> None:
    translated = translate(entry)
    out.written[name] = {key: translated.entry[key] for key in (*KEYS, ENV_FILE) if key in translated.entry}
    out.warnings += [reader.fault(text, key) for key, text in translated.warnings]
    faults = [reader.fault(text, key) for key, text in translated.problems]
    for key in translated.entry:
        if key not in KEYS and key != ENV_FILE:
            suggested = suggest(key, [*KEYS, *KNOWN]) if isinstance(key, str) else None
            unknown = describe_unknown_key(suggested, KEYS)
            faults.append(reader.fault(unknown, key if isinstance(key, str) else quoted(key)))
    values = reader.expand(translated.entry)
    env_file, env = values.get(ENV_FILE), values.get("env", {})
    if env_file is not None and isinstance(env, Mapping):
        try:
            values["env"] = {**_read_env_file(env_file, reader.folder), **env}
        except ValueError as error:
            reader.unresolved.append(reader.fault(str(error), ENV_FILE))
    known = {key: value for key, value in values.items() if key in KEYS}
    if values.get("enabled") is not False:
        # A disabled server may be incomplete: that is a common reason to disable it.
        faults += reader.unreadable
        if reader.unresolved and keep_unresolved:
            known = _disable(known, reader)
        else:
            faults += reader.unresolved
    secrets = tuple(map(SecretStr, sorted(reader.secrets)))
    try:
        server = McpServerConfig.model_validate({**known, "filled_in": secrets})
    except ValidationError as error:
        details = error.errors(include_url=False)
        # A fault of the whole entry usually follows from a fault of one key.
        faults += [_to_fault(detail, reader) for detail in details if detail["loc"] or not faults]
    if faults:
        out.reject(name, faults)
    else:
        raw_url = values.get("url") if server.problem else None
        out.servers[name] = server.model_copy(update={"url": Url(raw_url)}) if isinstance(raw_url, str) else server


def _disable(known: Mapping[str, Any], reader: _EntryReader) -> dict[str, Any]:
    """Return the values of a server that lacks variables, without those that are invalid until it has them."""
    paths = [fault.key.removeprefix(f"{reader.key}.") for fault in reader.unresolved]
    incomplete = {re.split(r"[.[]", path)[0] for path in paths}.difference(_VALID_UNEXPANDED)
    rest = {key: value for key, value in known.items() if key not in incomplete}
    if "url" in incomplete:
        rest["url"] = "http://unresolved.invalid"
    problem = "; ".join(f"{path}: {fault.text}" for path, fault in zip(paths, reader.unresolved, strict=True))
    return {**rest, "enabled": False, "problem": problem}


def _read_env_file(path: Any, folder: Path) -> dict[str, str]:
    """Parse the `KEY=VALUE` lines of a file; raise ValueError with a reason."""
    if not isinstance(path, str) or "\0" in path:
        raise ValueError(f"expected a path, not {describe_kind(path)}")
    try:
        text = read_plain_text(folder / path, MAX_ENV_FILE_BYTES)
    except FileNotFoundError:
        raise ValueError("no such file") from None
    except ValueError as error:
        raise ValueError(f"the file {error}") from None
    variables = {}
    for line in text.splitlines():
        if not line.lstrip().startswith("#") and (found := _LINE.fullmatch(line)):
            value = found["value"]
            is_quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
            variables[found["name"]] = value[1:-1] if is_quoted else value.partition(" #")[0].rstrip()
    return variables


def _to_fault(detail: ErrorDetails, reader: _EntryReader) -> Fault:
    steps = detail["loc"]
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        known = PARTS.get(str(steps[0]), KEYS)
        return reader.fault(describe_unknown_key(suggest(str(steps[-1]), known), known), *steps)
    if not steps:
        return reader.fault(f"expected {detail['ctx']['error']}")
    choices = re.findall(r"'([^']+)'", str(detail.get("ctx", {}).get("expected", "")))
    may_be_secret = steps[0] in ("env", "headers", "args", "url", "command", "docs")
    return reader.fault(explain(detail, MASK if may_be_secret else quoted(detail["input"]), choices), *steps)


# Keys of other clients

IGNORED = frozenset(
    (
        "$schema _comment alwaysAllow approval_policy authProviderType autoApprove autoStart category "
        "default_tools_approval_mode description dev displayName gallery icon iconUrl icons id instructions label "
        "longRunning metadata name note notes provider registryUrl required scopes source tags title trust version"
    ).split()
)
"""Keys about how a client displays a server or asks for approval. They have no meaning here."""

UNSUPPORTED = {
    "timeout": "is ignored, as clients disagree on its unit; set call_timeout_seconds",
    "headersHelper": "is ignored, as it isn't run; set headers, with ${NAME} for secrets",
    "oauth": "is ignored; set headers, with ${NAME} for the token",
    "auth": "is ignored; set headers, with ${NAME} for the token",
    "sandbox": "is ignored: the server runs with the permissions of Refdesk",
    "sandboxEnabled": "is ignored: the server runs with the permissions of Refdesk",
}
"""Keys that have no effect here but that users may rely on, with what to do instead."""

RENAMED = {
    "serverUrl": "url",
    "httpUrl": "url",
    "uri": "url",
    "isActive": "enabled",
    "environment": "env",
    "envs": "env",
    "http_headers": "headers",
    "workingDirectory": "cwd",
    "env_file": "envFile",
    "tool_timeout_sec": "call_timeout_seconds",
    "startup_timeout_sec": "connect_timeout_seconds",
}
"""Synonyms of Refdesk's keys. Giving two synonyms with different values is a problem."""

TOOL_LISTS = {
    **dict.fromkeys(("includeTools", "include_tools", "enabledTools", "enabled_tools", "allowedTools"), "allow"),
    **dict.fromkeys(("excludeTools", "exclude_tools", "disabledTools", "disabled_tools"), "deny"),
}
"""Lists of tools, with the key of `tools` that each stands for."""

CONVERTED = (
    *"disabled command type transport transportType tools".split(),
    *"bearer_token_env_var env_http_headers env_vars startup_timeout_ms".split(),
    *TOOL_LISTS,
)
"""Keys whose values need converting. They are converted in this order, after all other keys have been copied."""

KNOWN = frozenset({*IGNORED, *UNSUPPORTED, *RENAMED, *CONVERTED, "envFile"})
"""Every key that other clients' files may have."""

REDUNDANT_TYPES = ("local", "remote", "builtin")
"""Types of opencode and others that only repeat what `command` and `url` already say."""


@dataclass(slots=True)
class TranslatedEntry:
    """A server entry in Refdesk's keys, with its problems and warnings. Variables are not expanded."""

    entry: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def put(self, key: str, value: Any, original_key: str) -> None:
        """Set a key; record a problem if a synonym has already set it to another value."""
        if key in self.entry and self.entry[key] != value:
            self.problems.append((original_key, f"{key} is set twice under different names; keep one"))
        else:
            self.entry[key] = value

    def merge(self, key: str, more: Any, original_key: str) -> None:
        """Add environment variables or headers to those of a key, which take precedence."""
        existing = self.entry.get(key, {})
        if isinstance(existing, Mapping) and isinstance(more, Mapping):
            self.entry[key] = {**more, **existing}
        else:
            self.problems.append((original_key, "expected names of environment variables"))


def translate(raw: Mapping[Any, Any]) -> TranslatedEntry:
    """Translate a server entry of any client's file. Unknown keys are kept, so that validation can report them."""
    out = TranslatedEntry()
    values = {key: value for key, value in raw.items() if value is not None and key not in IGNORED}
    for key in values.keys() & UNSUPPORTED.keys():
        out.warnings.append((key, UNSUPPORTED[key]))
    for key, value in values.items():
        if key not in UNSUPPORTED and key not in CONVERTED:
            out.put(RENAMED.get(key, key), value, key)
    for key in CONVERTED:
        if key in values:
            _convert(key, values[key], out)
    if "httpUrl" in values:
        out.entry.setdefault("type", "http")
    return out


def _convert(key: str, value: Any, out: TranslatedEntry) -> None:
    match key, value:
        case "disabled", bool():
            if value:
                out.put("enabled", False, key)
        case "disabled", _:
            out.problems.append((key, "expected true or false"))
        case "command", [program, *args]:
            # A list of program and arguments, as of opencode.
            out.put("command", program, key)
            if args:
                out.put("args", args, key)
        case "command", {"path": _}:
            # An object that adds the environment, as of Zed.
            for inner, name in (("path", "command"), ("args", "args"), ("env", "env")):
                if value.get(inner) is not None:
                    out.put(name, value[inner], f"{key}.{inner}")
        case (("type" | "transport" | "transportType"), _):
            if value not in REDUNDANT_TYPES:
                out.put("type", value, key)
        case "tools", list():
            # Some clients have a plain list of names.
            out.put("tools", {} if "*" in value else {"allow": value}, key)
        case "bearer_token_env_var", _:
            out.merge("headers", {"Authorization": f"Bearer ${{{value}}}"} if isinstance(value, str) else value, key)
        case "env_http_headers", Mapping():
            out.merge("headers", {name: f"${{{variable}}}" for name, variable in value.items()}, key)
        case "env_vars", list() if all(isinstance(name, str) for name in value):
            out.merge("env", {name: f"${{{name}:-}}" for name in value}, key)
        case (("env_http_headers" | "env_vars"), _):
            out.merge("headers" if key == "env_http_headers" else "env", value, key)
        case "startup_timeout_ms", int() | float() if not isinstance(value, bool):
            out.put("connect_timeout_seconds", value / 1000, key)
        case "startup_timeout_ms", _:
            out.put("connect_timeout_seconds", value, key)
        case _ if rule := TOOL_LISTS.get(key):
            tools = out.entry.get("tools", {})
            if not isinstance(tools, Mapping) or rule in tools:
                out.problems.append((key, f"tools.{rule} is set twice under different names; keep one"))
            else:
                out.entry["tools"] = {**tools, rule: value}
        case _:
            out.put(key, value, key)
