"""Refdesk, the reference desk for LLM agents.

async with refdesk.open() as desk:
    answer = await desk.call("search_documentation", {"query": "how do I start it?"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refdesk.version import __version__

if TYPE_CHECKING:
    from refdesk.app import Desk as Desk
    from refdesk.app import open_desk as open


__all__ = ["Desk", "__version__", "open"]


def __getattr__(name: str) -> object:
    # Loaded on first use, so that `refdesk --help` does not pay for what it does not show.
    if name in {"open", "Desk"}:
        from refdesk import app

        return app.open_desk if name == "open" else app.Desk
    raise AttributeError(f"module 'refdesk' has no attribute {name!r}")
