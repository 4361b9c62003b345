"""Approval of changed tools: diffs, and decisions that apply only to what was shown."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refdesk.downstream.fleet.pins import HeldTool, Pins

CONTEXT_LINES = 2
"""Unchanged lines shown around a change."""


def waiting(pins: Pins, server: str | None, tool: str | None) -> list[HeldTool]:
    """Return the held tools: of all servers or one, all tools or one."""
    return [held for held in pins.list_held(server) if tool in (None, held.tool)]


def decide(pins: Pins, server: str, tool: str | None, shown: Sequence[HeldTool], *, reject: bool) -> list[HeldTool]:
    """Approve the tools as shown, or reject them. Return the affected ones.

    Raises InvalidArguments if none is held. A tool that has changed since it was shown isn't approved.
    """
    return pins.reject(server, tool) if reject else pins.approve(server, tool, as_shown=shown)


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line diff of two definitions, with invisible characters escaped."""
    old, new = (_format_lines(one) if one is not None else [] for one in (before, after))
    for line in list(difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]:
        if not line.startswith("@@"):
            yield line


def _format_lines(definition: Mapping[str, Any]) -> list[str]:
    return [visible(line) for line in json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False).splitlines()]


def visible(text: str) -> str:
    """Escape unprintable characters, which may be meant for a model only."""
    return "".join(one if one.isprintable() else f"\\u{{{ord(one):x}}}" for one in text)
