"""Requests from server to client (elicitation, sampling, roots) and the routing of their responses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import anyio
from mcp.server.connection import Connection
from mcp_types.methods import validate_client_result
from pydantic import ValidationError

from refdesk.calls import ClientRefused, InputRequired
from refdesk.errors import ClientCannot
from refdesk.inbound.envelope import Reply
from refdesk.inbound.notifications import DELIVERY_SECONDS

CAPABILITIES: Mapping[str, str] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The client capability that each request needs."""


def capabilities_of(connection: Connection) -> Mapping[str, Any]:
    """Return the capabilities that a client has declared, in wire format."""
    declared = connection.client_capabilities
    return {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)


def declares(capabilities: Mapping[str, Any], method: str) -> bool:
    """Return whether a client supports a request in at least one form."""
    return isinstance(capabilities.get(CAPABILITIES.get(method, "")), Mapping)


def require_form(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> None:
    """Raise ClientCannot if a client doesn't support this form of a request."""
    declared = capabilities.get(CAPABILITIES[method], {})
    if method == "elicitation/create":
        # A client that declares no mode supports forms, the only mode of the first revisions.
        form = params.get("mode", "form")
        lacks = form not in declared and not (form == "form" and "url" not in declared)
    else:
        form = "tools"
        lacks = method == "sampling/createMessage" and bool(params.get("tools")) and form not in declared
    if lacks:
        raise ClientCannot(f"This needs {method} with {form!r} from the client, which has not declared that.")


def cannot_be_asked(method: str) -> ClientCannot:
    """Build the error for a client that doesn't declare a capability."""
    return ClientCannot(f"This needs {method} from the client, which has not declared that it offers it.")


def cannot_end(asked: InputRequired) -> ClientCannot:
    """Build the error for a client that can't continue an `input_required` result."""
    methods = ", ".join(sorted({str(request.get("method")) for request in asked.requests.values()}))
    return ClientCannot(
        f"This needs {methods or 'to be called again'} from the client, which cannot be asked that way."
    )


def answer_in(reply: Reply, method: str, revision: str) -> Mapping[str, Any]:
    """Return the result of a client's response.

    Raises ClientRefused for an error response, and ClientCannot for an invalid result.
    """
    if isinstance(reply.error, Mapping):
        raise ClientRefused(method, reply.error)
    return checked_answer(reply.result, method, revision)


def checked_answer(answer: Any, method: str, revision: str) -> Mapping[str, Any]:
    """Validate the result of a request to the client, and return it unchanged."""
    try:
        with suppress(KeyError):  # the client's revision doesn't define this request
            validate_client_result(method, revision, answer)
    except ValidationError as error:
        raise ClientCannot(f"The client gave no usable answer to {method}.") from error
    if not isinstance(answer, Mapping):
        raise ClientCannot(f"The client gave no usable answer to {method}.")
    return answer


class Questions:
    """Requests to clients of sessions on the fast path that have no response yet.

    Kept by session, since only that session's client can answer, and they fail when it ends.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, asyncio.Future[Reply]]] = {}
        self._last = 0
        self._telling: set[asyncio.Task[None]] = set()

    @contextmanager
    def asked(self, session: str) -> Iterator[tuple[str, asyncio.Future[Reply]]]:
        """Register a request. Yields its id and a future for the response."""
        self._last += 1
        # The SDK's ids are numbers, so these never collide.
        id = f"refdesk-{self._last}"
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, {})[id] = reply
        try:
            yield id, reply
        finally:
            self._drop(session, id)

    def settle(self, session: str, reply: Reply) -> bool:
        """Pass a response to the waiting request. Return False if there is none."""
        waiting = self._waiting.get(session, {}).get(str(reply.id))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(reply)
        return True

    def tell(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification outside of a call's stream, without blocking."""
        telling = asyncio.ensure_future(_tell(connection, method, params))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    def forget(self, session: str) -> None:
        """Fail all pending requests of a session that has ended."""
        for reply in self._waiting.pop(session, {}).values():
            if not reply.done():
                reply.set_exception(ClientCannot("The client's session ended before it answered."))

    def _drop(self, session: str, id: str) -> None:
        waiting = self._waiting.get(session)
        if waiting is not None:
            waiting.pop(id, None)
            if not waiting:
                del self._waiting[session]


async def _tell(connection: Connection, method: str, params: Mapping[str, Any]) -> None:
    with anyio.move_on_after(DELIVERY_SECONDS):
        await connection.notify(method, params)
