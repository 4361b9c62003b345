"""One connection per way in, kept open for a file's tests: they change nothing on the server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from refdesk.config.loading import load
from tests.behaviour.ways import WAYS, Way


@pytest.fixture(params=WAYS, scope="module")
async def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Way]:
    """The same test over plain HTTP, Streamable HTTP old and new, and stdio."""
    given = {"data_dir": str(tmp_path_factory.mktemp("data")), "server.port": 0, "embedding.source": "none"}
    config = load(None, {}, given)
    async with WAYS[request.param](config) as way:
        yield way
