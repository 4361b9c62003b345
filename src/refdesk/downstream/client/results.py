"""Result of a tool call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from refdesk.errors import ServerTalksNonsense


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call. `raw` is the whole object."""

    raw: Mapping[str, Any]

    @classmethod
    def of(cls, server: str, raw: Mapping[str, Any]) -> ToolResult:
        """Validate a raw result: its content is a list of objects, and text items have text."""
        content = raw.get("content", [])
        if isinstance(content, list) and all(_is_valid_item(item) for item in content):
            return cls(raw)
        raise ServerTalksNonsense(f"The server {server!r} returned a result with malformed content")

    @property
    def content(self) -> Sequence[Mapping[str, Any]]:
        """Content items: text, images, audio, links, resources."""
        items: Sequence[Mapping[str, Any]] = self.raw.get("content", ())
        return items

    @property
    def structured(self) -> Any:
        """The structured content, if any."""
        return self.raw.get("structuredContent")

    @property
    def text(self) -> str:
        """The text of all text items, separated by blank lines."""
        return "\n\n".join(item["text"] for item in self.content if item.get("type") == "text")

    @property
    def is_error(self) -> bool:
        """Whether the tool failed. The text says why."""
        return self.raw.get("isError") is True


def _is_valid_item(item: Any) -> bool:
    return isinstance(item, dict) and (item.get("type") != "text" or isinstance(item.get("text"), str))
