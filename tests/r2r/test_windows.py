"""One user's windows on several projects, with documents in R2R, before and after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.r2r.lab import Account, Lab
from tests.windows import WAYS, OpenWindows, check_windows, write_settings

pytestmark = [pytest.mark.anyio, pytest.mark.r2r, pytest.mark.timeout(600)]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_two_windows_never_see_each_others_documents(
    way: OpenWindows, r2r: Lab, account: Account, tmp_path: Path
) -> None:
    write_settings(tmp_path, r2r={"api_url": r2r.url, "email": account.email, "password": account.password})
    await check_windows(way, tmp_path)
