"""Input requests of versions without a handshake: the call ends with requests, and is repeated with the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.jsonrpc import Callbacks
from refdesk.downstream.transports.base import Message
from refdesk.errors import ServerTalksNonsense, ServerTooSlow

MAX_ROUNDS = 10
"""How often a server may request input before it has to return a result."""


async def resolve_input_requests(
    server: Connection, method: str, params: Mapping[str, Any], result: Message, callbacks: Callbacks, seconds: float
) -> Message:
    """Answer input requests and repeat the call until it has a result, within so many seconds in total."""
    try:
        async with asyncio.timeout(seconds):
            for _ in range(MAX_ROUNDS):
                next_params = {**params, **await _answer_requests(server, result, callbacks)}
                result = await server.request(method, next_params, callbacks=callbacks, seconds=seconds)
                if result.get("resultType") != "input_required":
                    return result
    except TimeoutError:
        raise ServerTooSlow(f"The server {server.name!r} had no answer within {seconds:g} s of its questions") from None
    raise ServerTalksNonsense(f"The server {server.name!r} asked {MAX_ROUNDS} times without an answer")


async def _answer_requests(server: Connection, result: Message, callbacks: Callbacks) -> dict[str, Any]:
    """Return the parameters to add to the repeated call."""
    requests = result.get("inputRequests")
    if not isinstance(requests, dict) or not all(_is_request(each) for each in requests.values()):
        raise ServerTalksNonsense(f"The server {server.name!r} requires input but sent no valid requests")
    answers = {
        name: await callbacks.ask(name, each["method"], each.get("params") or {}) for name, each in requests.items()
    }
    state = {"requestState": result["requestState"]} if "requestState" in result else {}
    return {"inputResponses": answers, **state}


def _is_request(requests: Any) -> bool:
    return (
        isinstance(requests, dict)
        and isinstance(requests.get("method"), str)
        and isinstance(requests.get("params", {}), (dict, type(None)))
    )
