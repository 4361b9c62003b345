"""Calling a desk's tools and taking what they answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from refdesk.app import Desk
from refdesk.calls import LOCAL, Caller, TenantId

OTHER = replace(LOCAL, tenant=TenantId("other"))
"""Somebody of another tenant."""


async def ask(desk: Desk, tool: str, caller: Caller = LOCAL, **arguments: Any) -> dict[str, Any]:
    """What a tool answers, as structure; it must not fail."""
    answer = await desk.call(tool, arguments, caller=caller)
    assert not answer.is_error, answer.text
    result: dict[str, Any] = answer.structured
    return result


async def failure(desk: Desk, tool: str, caller: Caller = LOCAL, **arguments: Any) -> str:
    """What a tool says of its failure; it must fail."""
    answer = await desk.call(tool, arguments, caller=caller)
    assert answer.is_error, answer.text
    return answer.text
