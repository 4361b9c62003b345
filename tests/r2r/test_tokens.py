"""The service account's tokens against R2R itself: they expire, are taken back and are used up, and nobody notices."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from pydantic import SecretStr

from refdesk.config.models import R2RConfig
from refdesk.engines.base import Search
from refdesk.engines.r2r.engine import R2REngine
from refdesk.errors import RefdeskError
from tests.contracts.engine import ACME, FOXES, bring, found
from tests.r2r.conftest import OpenEngine
from tests.r2r.lab import Account, Lab
from tests.r2r.lab.proxy import LOGIN, REFRESH, SEARCH, Fault, Proxy
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.r2r, pytest.mark.timeout(400)]

CALLERS = 100

CONNECTIONS = R2RConfig().max_connections
"""Requests that an engine sends to R2R at a time."""


@pytest.fixture
async def engine(way: Proxy, open_engine: OpenEngine) -> AsyncIterator[R2REngine]:
    """An engine with a document in it, whose every request is counted."""
    async with open_engine(way.url) as engine:
        await bring(engine, "Foxes", FOXES)
        yield engine


async def search_at_once(engine: R2REngine, callers: int) -> list[int]:
    """How many hits each of so many callers gets who search at the same time, each for something else."""
    counts: list[int] = []

    async def one(number: int) -> None:
        counts.append(len(await found(engine, f"fox berries {number}")))

    async with anyio.create_task_group() as tasks:
        for number in range(callers):
            tasks.start_soon(one, number)
    return counts


async def test_a_token_that_has_expired_is_refreshed_once_for_everybody(way: Proxy, open_engine: OpenEngine) -> None:
    way.next_is_expired = True
    async with open_engine(way.url) as engine:
        await bring(engine, "Foxes", FOXES)
        assert (way.count(LOGIN), way.count(REFRESH)) == (1, 1)
        assert await found(engine, "fox")


async def test_tokens_that_live_for_a_second_are_renewed_before_anybody_is_refused(
    way: Proxy, open_engine: OpenEngine
) -> None:
    way.access_seconds = 1.0
    async with open_engine(way.url) as engine:
        await bring(engine, "Foxes", FOXES)
        with anyio.fail_after(PATIENCE_SECONDS):
            while way.count(REFRESH) < 3:
                assert await found(engine, "fox")
        assert way.count(LOGIN) == 1


async def test_a_hundred_callers_whose_token_is_taken_back_make_one_refresh(
    r2r: Lab, way: Proxy, engine: R2REngine
) -> None:
    before = way.count(REFRESH)
    r2r.revoke_access(way.tokens[-1]["access_token"])
    asked = way.count(SEARCH)
    counts: list[int] = []

    async def search() -> None:
        counts.extend(await search_at_once(engine, CALLERS))

    async with anyio.create_task_group() as tasks:
        with way.fault(Fault(SEARCH, hangs=True)):  # nobody is refused before as many ask as can
            tasks.start_soon(search)
            await eventually(lambda: way.count(SEARCH) - asked == CONNECTIONS)
    assert len(counts) == CALLERS
    assert min(counts) > 0
    assert (way.count(LOGIN), way.count(REFRESH) - before) == (1, 1)
    assert way.count(SEARCH) - asked <= 2 * CALLERS


async def test_a_refresh_token_that_is_used_up_is_followed_by_one_login(
    r2r: Lab, way: Proxy, engine: R2REngine
) -> None:
    r2r.revoke_access(way.tokens[-1]["access_token"])
    r2r.use_up(way.tokens[-1]["refresh_token"])
    refreshes = way.count(REFRESH)
    assert min(await search_at_once(engine, 20)) > 0
    assert (way.count(LOGIN), way.count(REFRESH) - refreshes) == (2, 1)


async def test_a_wrong_password_is_told_as_such_and_not_tried_by_everybody(way: Proxy, open_engine: OpenEngine) -> None:
    refused: list[RefdeskError] = []
    async with open_engine(way.url, password=SecretStr("Wr0ng-Passw0rd!")) as engine:

        async def one() -> None:
            with pytest.raises(RefdeskError) as error:
                await engine.search(ACME, Search("fox", collections=("animals",)))
            refused.append(error.value)

        async with anyio.create_task_group() as tasks:
            for _ in range(CALLERS):
                tasks.start_soon(one)
    assert {error.retryable for error in refused} == {False}
    assert "Wr0ng" not in "".join(error.detail for error in refused)
    assert 1 <= way.count(LOGIN) <= 3


async def test_a_key_takes_the_place_of_the_account_and_nobody_logs_in(
    r2r: Lab, way: Proxy, account: Account, open_engine: OpenEngine
) -> None:
    key = SecretStr(r2r.api_key(account))
    async with open_engine(way.url, email=None, password=None, api_key=key) as engine:
        await bring(engine, "Foxes", FOXES)
        assert await found(engine, "fox")
    assert (way.count(LOGIN), way.count(REFRESH)) == (0, 0)


async def test_no_credential_is_ever_written_to_the_log(
    way: Proxy, account: Account, r2r: Lab, open_engine: OpenEngine, tmp_path: Path
) -> None:
    file = tmp_path / "log"

    async with open_engine(way.url, log_file=file) as engine:
        with way.fault(Fault("/v3/collections", status=503)):  # which are looked at in the background
            await eventually(lambda: file.exists() and file.stat().st_size > 0)
        await bring(engine, "Foxes", FOXES)
        r2r.revoke_access(way.tokens[-1]["access_token"])
        r2r.use_up(way.tokens[-1]["refresh_token"])
        assert await found(engine, "fox")
        with way.fault(Fault(SEARCH, is_reset=True)), pytest.raises(RefdeskError):
            await found(engine, "fox berries")
    logged = file.read_text()
    for secret in [account.password, *(token for pair in way.tokens for token in pair.values())]:
        assert secret not in logged
