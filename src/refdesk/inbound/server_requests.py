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
from refdesk.inbound.envelope import RpcResponse
from refdesk.inbound.notifications import DELIVERY_SECONDS

CAPABILITIES: Mapping[str, str] = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""The client capability that each request needs."""


def get_capabilities(connection: Connection) -> Mapping[str, Any]:
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


def build_unsupported_error(method: str) -> ClientCannot:
    """Build the error for a client that doesn't declare a capability."""
    return ClientCannot(f"This needs {method} from the client, which has not declared that it offers it.")


def build_input_error(input_required: InputRequired) -> ClientCannot:
    """Build the error for a client that can't continue an `input_required` result."""
    methods = ", ".join(sorted({str(request.get("method")) for request in input_required.requests.values()}))
    return ClientCannot(
        f"This needs {methods or 'to be called again'} from the client, which cannot be asked that way."
    )


def read_answer(response: RpcResponse, method: str, revision: str) -> Mapping[str, Any]:
    """Return the result of a client's response.

    Raises ClientRefused for an error response, and ClientCannot for an invalid result.
    """
    if isinstance(response.error, Mapping):
        raise ClientRefused(method, response.error)
    return validate_answer(response.result, method, revision)


def validate_answer(answer: Any, method: str, revision: str) -> Mapping[str, Any]:
    """Validate the result of a request to the client, and return it unchanged."""
    try:
        with suppress(KeyError):  # the client's revision doesn't define this request
            validate_client_result(method, revision, answer)
    except ValidationError as error:
        raise ClientCannot(f"The client gave no usable answer to {method}.") from error
    if not isinstance(answer, Mapping):
        raise ClientCannot(f"The client gave no usable answer to {method}.")
    return answer


class PendingRequests:
    """Requests to clients of sessions on the fast path that have no response yet.

    Kept by session, since only that session's client can answer, and they fail when it ends.
    """

    def __init__(self) -> None:
        self._pending: dict[str, dict[str, asyncio.Future[RpcResponse]]] = {}
        self._last = 0
        self._notify_tasks: set[asyncio.Task[None]] = set()

    @contextmanager
    def register(self, session: str) -> Iterator[tuple[str, asyncio.Future[RpcResponse]]]:
        """Register a request. Yields its id and a future for the response."""
        self._last += 1
        # The SDK's ids are numbers, so these never collide.
        id = f"refdesk-{self._last}"
        response: asyncio.Future[RpcResponse] = asyncio.get_running_loop().create_future()
        self._pending.setdefault(session, {})[id] = response
        try:
            yield id, response
        finally:
            self._remove(session, id)

    def resolve(self, session: str, response: RpcResponse) -> bool:
        """Pass a response to the waiting request. Return False if there is none."""
        pending = self._pending.get(session, {}).get(str(response.id))
        if pending is None or pending.done():
            return False
        pending.set_result(response)
        return True

    def notify(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification outside of a call's stream, without blocking."""
        task = asyncio.ensure_future(_notify(connection, method, params))
        self._notify_tasks.add(task)
        task.add_done_callback(self._notify_tasks.discard)

    def fail_session(self, session: str) -> None:
        """Fail all pending requests of a session that has ended."""
        for response in self._pending.pop(session, {}).values():
            if not response.done():
                response.set_exception(ClientCannot("The client's session ended before it answered."))

    def _remove(self, session: str, id: str) -> None:
        pending = self._pending.get(session)
        if pending is not None:
            pending.pop(id, None)
            if not pending:
                del self._pending[session]


async def _notify(connection: Connection, method: str, params: Mapping[str, Any]) -> None:
    with anyio.move_on_after(DELIVERY_SECONDS):
        await connection.notify(method, params)
