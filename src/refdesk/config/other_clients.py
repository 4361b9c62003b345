"""MCP servers as other clients' files have them, in the words of this one's: pure renaming, nothing is filled in.

Each client has keys of its own for the same things, and keys that mean nothing to anybody else.
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
"""What says how a client shows a server, or when it asks its user before a call; it means nothing here."""

IN_VAIN = {
    "timeout": "has no effect, as it is seconds in some clients and milliseconds in others; set call_timeout_seconds",
    "headersHelper": "has no effect, as it is not run; set headers, with ${NAME} for what is secret",
    "oauth": "has no effect; set headers, with ${NAME} for the token",
    "auth": "has no effect; set headers, with ${NAME} for the token",
    "sandbox": "has no effect; the server runs with the rights of the desk",
    "sandboxEnabled": "has no effect; the server runs with the rights of the desk",
}
"""What somebody may rely on, and what to do in its place."""

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
"""Other words for the same; where two of them are given, that is a problem."""

ALLOWING = ("includeTools", "include_tools", "enabledTools", "enabled_tools", "allowedTools")
DENYING = ("excludeTools", "exclude_tools", "disabledTools", "disabled_tools")

_TYPES = {"local": None, "remote": None, "builtin": None}
"""Types by which opencode and others tell only what `command` and `url` tell as well."""


@dataclass(slots=True)
class Translated:
    """A server in our words, what was given in two ways or cannot be said here, and what was said in vain."""

    entry: dict[str, Any] = field(default_factory=dict)
    problems: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    def put(self, key: str, value: Any, said: str) -> None:
        """One key; where it has been given under another name as well, that must say the same."""
        if self.entry.get(key, value) != value:
            self.problems.append((said, f"{key} is given in two ways; keep one"))
        else:
            self.entry[key] = value


def translate(given: Mapping[Any, Any]) -> Translated:
    """A server of any client's file, in our words; keys that nobody knows are left for validation to name."""
    out = Translated()
    said = {key: value for key, value in given.items() if value is not None and key not in IGNORED}
    for key in said.keys() & IN_VAIN.keys():
        out.warnings.append((key, IN_VAIN[key]))
    for key, value in said.items():
        if key not in IN_VAIN and key not in _SAID_OTHERWISE:
            out.put(RENAMED.get(key, key), value, key)
    for key, put in _SAID_OTHERWISE.items():
        if key in said:
            put(out, key, said[key])
    if "httpUrl" in said:
        out.entry.setdefault("type", "http")
    return out


def _disabled(out: Translated, key: str, value: Any) -> None:
    if not isinstance(value, bool):
        out.problems.append((key, "expected true or false"))
    elif value:
        out.put("enabled", False, key)


def _type(out: Translated, key: str, value: Any) -> None:
    if not (isinstance(value, str) and value in _TYPES):
        out.put("type", value, key)


def _command(out: Translated, key: str, value: Any) -> None:
    """A program, a list of it and its arguments (opencode), or an object of both and the environment (Zed)."""
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


def _tools(out: Translated, key: str, value: Any) -> None:
    """Our own rules, or a list of names as some clients have it: that is what is allowed."""
    if isinstance(value, list):
        value = {} if "*" in value else {"allow": value}
    out.put("tools", value, key)


def _tool_list(rule: str) -> Callable[[Translated, str, Any], None]:
    def add(out: Translated, key: str, value: Any) -> None:
        tools = out.entry.get("tools", {})
        if not isinstance(tools, Mapping) or rule in tools:
            out.problems.append((key, f"tools.{rule} is given in two ways; keep one"))
        else:
            out.entry["tools"] = {**tools, rule: value}

    return add


def _bearer(out: Translated, key: str, value: Any) -> None:
    _add_to("headers", out, key, {"Authorization": f"Bearer ${{{value}}}"} if isinstance(value, str) else value)


def _header_variables(out: Translated, key: str, value: Any) -> None:
    named = isinstance(value, Mapping)
    _add_to("headers", out, key, {name: f"${{{held}}}" for name, held in value.items()} if named else value)


def _passed_on(out: Translated, key: str, value: Any) -> None:
    names = isinstance(value, list) and all(isinstance(name, str) for name in value)
    _add_to("env", out, key, {name: f"${{{name}:-}}" for name in value} if names else value)


def _add_to(target: str, out: Translated, key: str, more: Any) -> None:
    there = out.entry.get(target, {})
    if isinstance(there, Mapping) and isinstance(more, Mapping):
        out.entry[target] = {**more, **there}
    else:
        out.problems.append((key, "expected names of environment variables"))


def _startup_milliseconds(out: Translated, key: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    out.put("connect_timeout_seconds", value / 1000 if is_number else value, key)


_SAID_OTHERWISE: dict[str, Callable[[Translated, str, Any], None]] = {
    "disabled": _disabled,
    "command": _command,
    "type": _type,
    "transport": _type,
    "transportType": _type,
    "tools": _tools,
    "bearer_token_env_var": _bearer,
    "env_http_headers": _header_variables,
    "env_vars": _passed_on,
    "startup_timeout_ms": _startup_milliseconds,
    **dict.fromkeys(ALLOWING, _tool_list("allow")),
    **dict.fromkeys(DENYING, _tool_list("deny")),
}
"""Keys whose values are put otherwise here; seen to in this order, when all others are there."""

KNOWN = frozenset({*IGNORED, *IN_VAIN, *RENAMED, *_SAID_OTHERWISE, "envFile"})
"""Every key that other clients' files may have here."""
