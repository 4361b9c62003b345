"""What goes out as JSON."""

from __future__ import annotations

from typing import Any

import pytest

from refdesk.errors import ServerTalksNonsense
from refdesk.inbound.jsonrpc import encode_result


def test_a_result_that_can_be_read_and_not_written_is_the_fault_of_the_server_that_gave_it() -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(ServerTalksNonsense, match="cannot be passed on: Recursion limit reached"):
        encode_result(1, {"content": [], "_meta": deep})
