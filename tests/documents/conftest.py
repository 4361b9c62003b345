"""Fixtures of tests that fetch documents."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.documents.web import Web, running_web


@pytest.fixture
async def web() -> AsyncIterator[Web]:
    async with running_web() as web:
        yield web


@pytest.fixture
def listeners() -> Iterator[socket.socket]:
    """A socket on every address of this machine, of both families, that would show any connection."""
    if not socket.has_dualstack_ipv6():
        pytest.skip("needs IPv6")
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listener:
        listener.setblocking(False)
        yield listener
