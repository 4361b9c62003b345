"""Translates MCP server entries of other clients' files into Refdesk's keys. Variables are not expanded.

Each client has its own keys for the same things, and keys that mean nothing to other programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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

ALLOWING = ("includeTools", "include_tools", "enabledTools", "enabled_tools", "allowedTools")
DENYING = ("excludeTools", "exclude_tools", "disabledTools", "disabled_tools")

_REDUNDANT_TYPES = {"local": None, "remote": None, "builtin": None}
"""Types of opencode and others that only repeat what `command` and `url` already say."""


@dataclass(slots=True)
class TranslatedEntry:
    """A server entry in Refdesk's keys, with its problems and warnings."""

    entry: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def put(self, key: str, value: Any, original_key: str) -> None:
        """Set a key; record a problem if a synonym has already set it to another value."""
        if self.entry.get(key, value) != value:
            self.problems.append((original_key, f"{key} is set twice under different names; keep one"))
        else:
            self.entry[key] = value


def translate(raw: Mapping[Any, Any]) -> TranslatedEntry:
    """Translate a server entry of any client's file. Unknown keys are kept, so that validation can report them."""
    out = TranslatedEntry()
    original_key = {key: value for key, value in raw.items() if value is not None and key not in IGNORED}
    for key in original_key.keys() & UNSUPPORTED.keys():
        out.warnings.append((key, UNSUPPORTED[key]))
    for key, value in original_key.items():
        if key not in UNSUPPORTED and key not in _CONVERTERS:
            out.put(RENAMED.get(key, key), value, key)
    for key, put in _CONVERTERS.items():
        if key in original_key:
            put(out, key, original_key[key])
    if "httpUrl" in original_key:
        out.entry.setdefault("type", "http")
    return out


def _convert_disabled(out: TranslatedEntry, key: str, value: Any) -> None:
    if not isinstance(value, bool):
        out.problems.append((key, "expected true or false"))
    elif value:
        out.put("enabled", False, key)


def _convert_type(out: TranslatedEntry, key: str, value: Any) -> None:
    if not (isinstance(value, str) and value in _REDUNDANT_TYPES):
        out.put("type", value, key)


def _convert_command(out: TranslatedEntry, key: str, value: Any) -> None:
    """Convert a program, a list of program and arguments (opencode), or an object that adds the environment (Zed)."""
    if isinstance(value, list) and value:
        out.put("command", value[0], key)
        if value[1:]:
            out.put("args", value[1:], key)
    elif isinstance(value, Mapping) and "path" in value:
        for inner, name in (("path", "command"), ("args", "args"), ("env", "env")):
            if value.get(inner) is not None:
                out.put(name, value[inner], f"{key}.{inner}")
    else:
        out.put("command", value, key)


def _convert_tools(out: TranslatedEntry, key: str, value: Any) -> None:
    """Convert tool rules; a plain list of names, as some clients have it, becomes the allow list."""
    if isinstance(value, list):
        value = {} if "*" in value else {"allow": value}
    out.put("tools", value, key)


def _convert_tool_list(rule: str) -> Callable[[TranslatedEntry, str, Any], None]:
    def add(out: TranslatedEntry, key: str, value: Any) -> None:
        tools = out.entry.get("tools", {})
        if not isinstance(tools, Mapping) or rule in tools:
            out.problems.append((key, f"tools.{rule} is set twice under different names; keep one"))
        else:
            out.entry["tools"] = {**tools, rule: value}

    return add


def _convert_bearer_variable(out: TranslatedEntry, key: str, value: Any) -> None:
    _merge_into("headers", out, key, {"Authorization": f"Bearer ${{{value}}}"} if isinstance(value, str) else value)


def _convert_header_variables(out: TranslatedEntry, key: str, value: Any) -> None:
    is_mapping = isinstance(value, Mapping)
    _merge_into(
        "headers", out, key, {name: f"${{{variable}}}" for name, variable in value.items()} if is_mapping else value
    )


def _convert_env_names(out: TranslatedEntry, key: str, value: Any) -> None:
    is_name_list = isinstance(value, list) and all(isinstance(name, str) for name in value)
    _merge_into("env", out, key, {name: f"${{{name}:-}}" for name in value} if is_name_list else value)


def _merge_into(target: str, out: TranslatedEntry, key: str, more: Any) -> None:
    existing = out.entry.get(target, {})
    if isinstance(existing, Mapping) and isinstance(more, Mapping):
        out.entry[target] = {**more, **existing}
    else:
        out.problems.append((key, "expected names of environment variables"))


def _convert_startup_milliseconds(out: TranslatedEntry, key: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    out.put("connect_timeout_seconds", value / 1000 if is_number else value, key)


_CONVERTERS: dict[str, Callable[[TranslatedEntry, str, Any], None]] = {
    "disabled": _convert_disabled,
    "command": _convert_command,
    "type": _convert_type,
    "transport": _convert_type,
    "transportType": _convert_type,
    "tools": _convert_tools,
    "bearer_token_env_var": _convert_bearer_variable,
    "env_http_headers": _convert_header_variables,
    "env_vars": _convert_env_names,
    "startup_timeout_ms": _convert_startup_milliseconds,
    **dict.fromkeys(ALLOWING, _convert_tool_list("allow")),
    **dict.fromkeys(DENYING, _convert_tool_list("deny")),
}
"""Keys whose values need converting. They run in this order, after all other keys have been copied."""

KNOWN = frozenset({*IGNORED, *UNSUPPORTED, *RENAMED, *_CONVERTERS, "envFile"})
"""Every key that other clients' files may have."""
