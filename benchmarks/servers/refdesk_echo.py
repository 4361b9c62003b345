"""Refdesk as `refdesk serve` runs it, with an echo tool added: real door, whole policy chain, log line and metrics.

The log goes to standard error as JSON, one line a call; the benchmark makes that a file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop
from listening import announce

from refdesk.app import open_desk
from refdesk.calls import Call
from refdesk.config.models import Config, ConvertConfig, ServerConfig
from refdesk.inbound.http_server import bind, serve_http
from refdesk.telemetry.log import Log
from refdesk.tools.json_schema import Arguments
from refdesk.tools.registry import Tool


class EchoArguments(Arguments):
    """What is to be said back."""

    text: str


async def echo(arguments: EchoArguments, call: Call) -> str:
    """The text, unchanged."""
    return arguments.text


ECHO = Tool("echo", "Echo", "Says a text back.", "docs", EchoArguments, echo)


async def serve(data: Path) -> None:
    """Serve until told to stop; files beside the data may be converted."""
    config = Config(data_dir=data, server=ServerConfig(port=0), convert=ConvertConfig(roots=(data.parent,)))
    log = Log("info", "json")
    log.capture_standard_logging()
    listener = bind(config.server)
    async with open_desk(config, log=log) as desk:
        desk.registry.add_tool(ECHO)
        await serve_http(desk, config, [listener], lambda: announce(listener))


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1])))
