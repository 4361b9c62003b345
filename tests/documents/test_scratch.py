"""Files that live only as long as they are needed."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import warnings
from threading import Event
from typing import Any

import pytest

from refdesk.documents.scratch import scratch_file
from tests.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.anyio


async def test_a_file_that_is_made_for_somebody_who_is_cancelled_meanwhile_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, release, made = Event(), Event(), list[Any]()
    make = tempfile.TemporaryFile

    def slowly() -> Any:
        begun.set()
        release.wait(PATIENCE_SECONDS)
        made.append(make())
        return made[0]

    async def use() -> None:
        async with scratch_file():
            raise AssertionError("it was cancelled before")

    monkeypatch.setattr(tempfile, "TemporaryFile", slowly)
    using = asyncio.create_task(use())
    assert await asyncio.to_thread(begun.wait, PATIENCE_SECONDS)
    using.cancel()
    with pytest.raises(asyncio.CancelledError):
        await using
    del using
    release.set()

    def is_closed() -> bool:
        gc.collect()
        return bool(made and made[0].closed)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await eventually(is_closed)
