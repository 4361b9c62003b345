"""Deciding about tools that changed since they were trusted: what is different, and that it counts only as shown."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from refdesk.downstream.fleet.pins import Held, Pins

CONTEXT_LINES = 2
"""Lines of what is unchanged that are shown around a change."""


def waiting(pins: Pins, server: str | None, tool: str | None) -> list[Held]:
    """What waits for approval: of all servers or of one, all tools or one."""
    return [held for held in pins.held(server) if tool in (None, held.tool)]


def decide(pins: Pins, server: str, tool: str | None, shown: Sequence[Held], *, reject: bool) -> list[Held]:
    """Trust what was shown, or refuse it; what was decided about.

    Raises InvalidArguments when nothing waits. Only what was seen is trusted, also when it changes at this very moment.
    """
    return pins.reject(server, tool) if reject else pins.approve(server, tool, as_shown=shown)


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> Iterator[str]:
    """What was taken away and what was added, line by line, with nothing in it that cannot be seen."""
    old, new = (_format_lines(one) if one is not None else [] for one in (before, after))
    for line in list(difflib.unified_diff(old, new, n=CONTEXT_LINES, lineterm=""))[2:]:
        if not line.startswith("@@"):
            yield line


def _format_lines(definition: Mapping[str, Any]) -> list[str]:
    return [visible(line) for line in json.dumps(definition, indent=2, sort_keys=True, ensure_ascii=False).splitlines()]


def visible(text: str) -> str:
    """The text with what does not show, and may be meant for a model alone, written as codes."""
    return "".join(one if one.isprintable() else f"\\u{{{ord(one):x}}}" for one in text)
