"""Reading of HTTP response bodies in which timeouts take effect between any two parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio.lowlevel
import httpx2


async def iter_body(response: httpx2.Response) -> AsyncIterator[bytes]:
    """Yield the decoded parts of a streamed response, with a checkpoint before each.

    anyio does not cancel a read whose data has already arrived, so a service that always has more data ready would
    never be timed out.
    """
    async for part in response.aiter_bytes():
        await anyio.lowlevel.checkpoint()
        yield part


async def read_body(response: httpx2.Response, max_bytes: int, too_long: Callable[[], Exception]) -> bytes:
    """Read a streamed response as a whole. Raises the error that `too_long` returns if it exceeds `max_bytes`."""
    body = bytearray()
    async for part in iter_body(response):
        body += part
        if len(body) > max_bytes:
            raise too_long()
    return bytes(body)
