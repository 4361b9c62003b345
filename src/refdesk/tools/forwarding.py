"""Forwards calls to downstream servers across protocol revisions.

Revisions differ in how a server asks its client for input: during the call, or by ending it with an input request, for
the client to call again. All four combinations work:

    client  server
    older   older    requests are forwarded while the call is open
    newest  newest   the input request is forwarded, with the server's state wrapped
    older   newest   the client is asked here, and the server called again
    newest  older    the request continues in a task while the client is away (`suspended_calls`)
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from refdesk.calls import SILENT, Call, Client, InputRequired
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.envelopes import CLIENT_CAPABILITIES
from refdesk.downstream.jsonrpc import Callbacks
from refdesk.errors import (
    ClientCannot,
    InvalidArguments,
    InvalidCall,
    MissingCapability,
    Problem,
    ServerTalksNonsense,
)
from refdesk.tools.client_callbacks import NO_CALLBACKS, ClientCallbacks, NotOffered
from refdesk.tools.suspended_calls import SuspendedCall, SuspendedCalls

MAX_ROUNDS = 10
"""Input requests per call before the server has to answer."""

MARGIN_SECONDS = 5.0
"""Added to the server's timeout, so that its own timeout error is the one reported."""

CAPABILITY_BY_METHOD = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""Requests a client can answer, and the capability that declares each."""

_SUSPENDED_PREFIX, _SERVER_PREFIX = "waiting:", "server:"
"""Prefixes of the request state held by a client: our own handle, or the server's state."""

Result = dict[str, Any]


class Forwarder:
    """Forwards calls; holds suspended ones."""

    def __init__(self) -> None:
        self._suspended = SuspendedCalls()

    async def __call__(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        """Return the server's result; takes ownership of `params`.

        Only the parts of the result that Refdesk reads itself are validated.
        """
        if "_meta" in params and not isinstance(params["_meta"], dict):
            raise InvalidArguments([Problem("_meta", "must be an object")])
        result = await self._forward(call, server, method, params)
        if not _is_well_formed(result):
            raise ServerTalksNonsense(
                f"The server {server.name!r} gave a result that is none: its content is malformed"
            )
        return result

    async def _forward(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        client = call.client
        if client.uses_input_required:
            return await self._forward_for_modern_client(call, server, method, params)
        callbacks: Callbacks = NO_CALLBACKS
        if client is SILENT:
            _drop_progress_token(params)
        else:
            callbacks = ClientCallbacks(client)
        greeting = server.server_profile
        capabilities = _build_capabilities(client) if greeting is not None and greeting.is_modern else None
        result = await server.request(
            method, params, callbacks=callbacks, token=call.credential, capabilities=capabilities
        )
        if "resultType" in result:
            return await _answer_input_requests(call, server, method, params, result)
        return result

    async def close(self) -> None:
        """Cancel suspended calls."""
        await self._suspended.close()

    async def _forward_for_modern_client(
        self, call: Call, server: Connection, method: str, params: dict[str, Any]
    ) -> Result:
        client, state, answers = call.client, params.pop("requestState", None), params.pop("inputResponses", None)
        if isinstance(state, str) and state.startswith(_SUSPENDED_PREFIX):
            suspended = self._suspended.take(
                state.removeprefix(_SUSPENDED_PREFIX), _get_owner(call), _get_subject(call)
            )
            return await self._run_or_suspend(call, server, suspended, suspended.resume(client, answers))
        may_be_modern, may_be_legacy = _get_possible_revisions(server)
        request = partial(
            server.request, method, params, token=call.credential, capabilities=_build_capabilities(client)
        )
        if may_be_modern:
            _restore_state(params, server.name, state, answers)
        if may_be_legacy and any(map(client.can, CAPABILITY_BY_METHOD)):
            suspended = SuspendedCall(client)
            result = await self._run_or_suspend(call, server, suspended, suspended.start(request))
        else:
            result = await request(callbacks=ClientCallbacks(client))
        return _check_input_required(client, server, result)

    async def _run_or_suspend(
        self, call: Call, server: Connection, suspended: SuspendedCall, running: Awaitable[Result]
    ) -> Result:
        try:
            return await running
        except InputRequired as error:
            seconds = server.call_seconds + MARGIN_SECONDS
            handle = self._suspended.add(suspended, _get_owner(call), _get_subject(call), seconds)
            raise InputRequired(error.requests, _SUSPENDED_PREFIX + handle) from None


def _get_possible_revisions(server: Connection) -> tuple[bool, bool]:
    """Return whether a server may speak the newest revision, and an older one; both before the handshake."""
    greeting = server.server_profile
    return (True, True) if greeting is None else (greeting.is_modern, not greeting.is_modern)


def _is_well_formed(result: Result) -> bool:
    """Return whether content is a list of objects, text is a string and `_meta` an object, if present."""
    content, meta = result.get("content", ()), result.get("_meta")
    if not isinstance(content, (list, tuple)) or not (meta is None or isinstance(meta, dict)):
        return False
    return all(
        isinstance(item, dict)
        and isinstance(item.get("text", ""), str)
        and (item.get("type") != "text" or "text" in item)
        for item in content
    )


def _build_capabilities(client: Client) -> dict[str, Any]:
    """Return the client's capabilities, for servers that receive them with every request."""
    return {name: CLIENT_CAPABILITIES[name] for method, name in CAPABILITY_BY_METHOD.items() if client.can(method)}


def _get_owner(call: Call) -> tuple[str, str]:
    return call.caller.tenant, call.caller.user


def _get_subject(call: Call) -> tuple[str, str]:
    return call.method, call.target


def _drop_progress_token(params: dict[str, Any]) -> None:
    """Remove the progress token: nobody receives progress, and the token may collide with another."""
    meta = params.get("_meta")
    if isinstance(meta, Mapping) and "progressToken" in meta:
        params["_meta"] = {name: value for name, value in meta.items() if name != "progressToken"}


def _restore_state(params: dict[str, Any], server: str, state: object, answers: object) -> None:
    """Pass the client's responses and the server's own state to the server."""
    if answers is not None:
        params["inputResponses"] = answers
    if isinstance(state, str):
        prefix = f"{_SERVER_PREFIX}{server}:"
        if not state.startswith(prefix):
            raise InvalidCall("The requestState is not one that this call was given")
        params["requestState"] = state.removeprefix(prefix)


def _check_input_required(client: Client, server: Connection, result: Result) -> Result:
    """Return the result for a client of the newest revision; raise InputRequired if input is needed."""
    if result.get("resultType") != "input_required":
        return result
    requests = _parse_input_requests(server, result)
    for request in requests.values():
        if not client.can(request["method"]):
            raise MissingCapability(CAPABILITY_BY_METHOD.get(request["method"], request["method"]))
    state = result.get("requestState")
    raise InputRequired(requests, f"{_SERVER_PREFIX}{server.name}:{state}" if isinstance(state, str) else None)


async def _answer_input_requests(
    call: Call, server: Connection, method: str, params: Mapping[str, Any], result: Result
) -> Result:
    """Return the result for a client of an older revision, asking it for the required input."""
    callbacks = ClientCallbacks(call.client)
    for _ in range(MAX_ROUNDS):
        if result.get("resultType") != "input_required":
            # `complete` means nothing to a legacy client; other values might.
            return {name: value for name, value in result.items() if (name, value) != ("resultType", "complete")}
        answers = {
            name: await _ask_client(callbacks, name, input_request)
            for name, input_request in _parse_input_requests(server, result).items()
        }
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        next_params = {**params, "inputResponses": answers, **state}
        capabilities = _build_capabilities(call.client)
        result = await server.request(
            method, next_params, callbacks=callbacks, token=call.credential, capabilities=capabilities
        )
    raise ServerTalksNonsense(
        f"The server {server.name!r} asked again and again, {MAX_ROUNDS} times, without an answer"
    )


async def _ask_client(callbacks: ClientCallbacks, name: str, input_request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return await callbacks.ask(name, input_request["method"], input_request.get("params") or {})
    except NotOffered as error:
        raise ClientCannot(f"This needs {input_request['method']} from the client, which does not offer it.") from error


def _parse_input_requests(server: Connection, result: Result) -> dict[str, Mapping[str, Any]]:
    requests = result.get("inputRequests")
    if isinstance(requests, dict) and all(
        isinstance(input_request, Mapping) and isinstance(input_request.get("method"), str)
        for input_request in requests.values()
    ):
        return requests
    raise ServerTalksNonsense(f"The server {server.name!r} asks for input without saying what")
