"""Translates MCP server entries of other clients' files into Refdesk's keys. Variables are not expanded.

Each client has its own keys for the same things, and keys that mean nothing to other programs.
"""

from __future__ import annotations

from collections.abc import Mapping
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
