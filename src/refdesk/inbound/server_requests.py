"""What a client can be asked while its call is open, and the way of its answer back to whoever asked."""

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
"""The capability by which a client says that it can be asked this."""


def capabilities_of(connection: Connection) -> Mapping[str, Any]:
    """What the client of a connection has declared, in the shape that it has on the wire."""
    declared = connection.client_capabilities
    return {} if declared is None else declared.model_dump(by_alias=True, mode="json", exclude_none=True)


def declares(capabilities: Mapping[str, Any], method: str) -> bool:
    """Whether a client can be asked this in one form or another."""
    return isinstance(capabilities.get(CAPABILITIES.get(method, "")), Mapping)


def require_form(capabilities: Mapping[str, Any], method: str, params: Mapping[str, Any]) -> None:
    """Raise ClientCannot where a client that can be asked this cannot be asked it in this form."""
    declared = capabilities.get(CAPABILITIES[method], {})
    if method == "elicitation/create":
        # To name no mode is to offer forms, which is all there was at first.
        form = params.get("mode", "form")
        lacks = form not in declared and not (form == "form" and "url" not in declared)
    else:
        form = "tools"
        lacks = method == "sampling/createMessage" and bool(params.get("tools")) and form not in declared
    if lacks:
        raise ClientCannot(f"This needs {method} with {form!r} from the client, which has not declared that.")


def cannot_be_asked(method: str) -> ClientCannot:
    """Of a client that has not said it could."""
    return ClientCannot(f"This needs {method} from the client, which has not declared that it offers it.")


def cannot_end(asked: InputRequired) -> ClientCannot:
    """Of a client that would not call again."""
    methods = ", ".join(sorted({str(request.get("method")) for request in asked.requests.values()}))
    return ClientCannot(
        f"This needs {methods or 'to be called again'} from the client, which cannot be asked that way."
    )


def answer_in(reply: Reply, method: str, revision: str) -> Mapping[str, Any]:
    """The answer that a client gave; raises ClientRefused with its error, ClientCannot for what is no answer."""
    if isinstance(reply.error, Mapping):
        raise ClientRefused(method, reply.error)
    return checked_answer(reply.result, method, revision)


def checked_answer(answer: Any, method: str, revision: str) -> Mapping[str, Any]:
    """The answer as it came, if it is one to this question."""
    try:
        with suppress(KeyError):  # asked of a client whose revision does not know the question
            validate_client_result(method, revision, answer)
    except ValidationError as error:
        raise ClientCannot(f"The client gave no usable answer to {method}.") from error
    if not isinstance(answer, Mapping):
        raise ClientCannot(f"The client gave no usable answer to {method}.")
    return answer


class Questions:
    """What the clients of sessions were asked on the plain lane and have not answered yet.

    Kept by session: nobody else can answer, and a session that ends takes its questions with it.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, asyncio.Future[Reply]]] = {}
        self._last = 0
        self._telling: set[asyncio.Task[None]] = set()

    @contextmanager
    def asked(self, session: str) -> Iterator[tuple[str, asyncio.Future[Reply]]]:
        """An id for a question, and where the client's reply to it arrives while the block lasts."""
        self._last += 1
        # Never one of the SDK's, which are numbers.
        id = f"refdesk-{self._last}"
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(session, {})[id] = reply
        try:
            yield id, reply
        finally:
            self._drop(session, id)

    def settle(self, session: str, reply: Reply) -> bool:
        """Hand a reply to whoever waits for it; False when nobody here does."""
        waiting = self._waiting.get(session, {}).get(str(reply.id))
        if waiting is None or waiting.done():
            return False
        waiting.set_result(reply)
        return True

    def tell(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """Tell a client what has no call's stream to go out on any more; never waits."""
        telling = asyncio.ensure_future(_tell(connection, method, params))
        self._telling.add(telling)
        telling.add_done_callback(self._telling.discard)

    def forget(self, session: str) -> None:
        """Its client can answer no more."""
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
