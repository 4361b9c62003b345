"""Connections of stand-in servers, whose clients may leave at any time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Close a connection at the end of the block, and ignore errors because the client has left.

    uvloop raises `RuntimeError` for a write to a connection that is closed.
    """
    try:
        yield
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    except RuntimeError:
        if not writer.is_closing():
            raise
    finally:
        writer.close()
