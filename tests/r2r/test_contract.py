"""R2R is put through what every engine must do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import ClassVar

import pytest

from refdesk.engines.base import LACKS_REINDEX, LACKS_SHARED
from refdesk.engines.r2r.engine import R2REngine
from tests.contracts.engine import EngineContract
from tests.r2r.conftest import OpenEngine
from tests.r2r.lab import Lab

pytestmark = [pytest.mark.anyio, pytest.mark.r2r, pytest.mark.timeout(400)]


class TestR2R(EngineContract):
    lacks: ClassVar[Mapping[str, str]] = {
        "test_everybody_finds_and_reads_what_is_shared_and_nobody_removes_it": (
            "R2R belongs to a team: what comes with Refdesk itself is not written into it"
        ),
        "test_while_and_after_its_index_is_made_anew_a_tenant_finds_what_it_found": (
            "R2R keeps its index itself, and has no way to have it made anew"
        ),
    }

    @pytest.fixture
    async def engine(self, r2r: Lab, open_engine: OpenEngine) -> AsyncIterator[R2REngine]:
        async with open_engine(r2r.url) as engine:
            yield engine

    async def test_it_declares_itself_what_it_lacks(self, engine: R2REngine) -> None:
        assert engine.traits.lacks == {LACKS_SHARED, LACKS_REINDEX}
