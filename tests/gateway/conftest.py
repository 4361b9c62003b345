"""Gateways are looked at for what they leave behind, so that nothing else may start or end beside them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from refdesk.config.models import Config
from tests.tools.knowing import open_indexed_desk


@pytest.fixture(scope="session", autouse=True)
async def whole_manual(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The manual is read once, before the first gateway: a desk that is at it has processes that come and go."""
    async with open_indexed_desk(tmp_path_factory.mktemp("settled")):
        pass


@pytest.fixture
def settings(settings: Callable[..., Config]) -> Callable[..., Config]:
    """Without a model, which would embed the manual in a process of its own."""
    return lambda **overrides: settings(**{"embedding__source": "none"} | overrides)
