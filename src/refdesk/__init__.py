"""Refdesk, the reference desk for LLM agents.

async with refdesk.open() as desk:
    answer = await desk.call("search_documentation", {"query": "how do I start it?"})

async with refdesk.connect("https://example.com/mcp") as client:
    result = await client.call("a_tool", {"of": "any MCP server"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from refdesk.version import __version__

if TYPE_CHECKING:
    from refdesk.app import Desk as Desk
    from refdesk.app import open_desk as open
    from refdesk.downstream.client.connecting import connect as connect
    from refdesk.downstream.client.error_mapping import AppError as AppError
    from refdesk.downstream.client.error_mapping import map_error as map_error
    from refdesk.downstream.client.mcp_client import Client as Client


__all__ = ["AppError", "Client", "Desk", "__version__", "connect", "map_error", "open"]


def __getattr__(name: str) -> object:
    # Imported on first use, to keep `refdesk --help` fast.
    if name in {"open", "Desk"}:
        from refdesk import app

        return app.open_desk if name == "open" else app.Desk
    if name in {"connect", "Client"}:
        from refdesk.downstream.client import connecting

        return getattr(connecting, name)
    if name in {"map_error", "AppError"}:
        from refdesk.downstream.client import error_mapping

        return getattr(error_mapping, name)
    raise AttributeError(f"module 'refdesk' has no attribute {name!r}")
