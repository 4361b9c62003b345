"""When the list of a server is asked for that says again and again that it has changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.fleet.member import (
    COALESCE_SECONDS,
    FREE_CHANGES,
    MAX_PENALTY_SECONDS,
    QUIET_SECONDS,
    ServerList,
)

pytestmark = pytest.mark.anyio


async def nobody(kept: ServerList, is_new: bool) -> None: ...


async def test_a_list_that_changes_without_end_is_looked_at_later_each_time_until_it_calms_down() -> None:
    clock = SimpleNamespace(now=100.0)
    kept = ServerList("tools", cast(Connection, None), nobody, now=lambda: clock.now)

    def look() -> float:
        """Announce a change and have it looked at; how late that was."""
        kept.on_list_changed()
        delay: Any = kept._delay
        clock.now += delay
        kept._refresh_requested.clear()
        kept._asked_at = clock.now
        return float(delay)

    assert [look() for _ in range(FREE_CHANGES + 1)] == [COALESCE_SECONDS] * (FREE_CHANGES + 1)
    later = [look() for _ in range(20)]
    assert later == sorted(later)
    assert later[0] == 2 * COALESCE_SECONDS
    assert later[-1] == MAX_PENALTY_SECONDS
    clock.now += QUIET_SECONDS + 10**9
    assert look() == COALESCE_SECONDS
