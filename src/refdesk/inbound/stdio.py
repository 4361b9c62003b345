"""Standard input and output: the SDK's server on this process's own streams."""

from __future__ import annotations

from mcp.server.stdio import stdio_server

from refdesk.inbound.audience import Audience
from refdesk.inbound.mcp import SdkServer
from refdesk.inbound.services import Services


async def serve_stdio(services: Services) -> None:
    """Serve one client until it closes our standard input."""
    audience = Audience()
    server = SdkServer(services, audience)
    async with audience.open(), stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())
