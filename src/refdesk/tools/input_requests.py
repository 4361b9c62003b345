"""Notifications and input requests that servers send to the client of a call.

Protocol revisions differ in how a server asks its client for input: during the call, or by ending it with an input
request, for the client to call again. All four combinations work:

    client  server
    older   older    requests are forwarded while the call is open
    newest  newest   the input request is forwarded, with the server's state wrapped
    older   newest   the client is asked here, and the server called again
    newest  older    the request continues in a task while the client is away (`SuspendedCall`)

Only its caller can resume a suspended call, by a handle, within the timeout of the call.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from refdesk.calls import SILENT, Call, Client, ClientRefused, InputRequired, LogLevel
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.request_meta import CLIENT_CAPABILITIES
from refdesk.errors import (
    METHOD_NOT_FOUND,
    ClientCannot,
    InvalidArguments,
    InvalidCall,
    MissingCapability,
    Overloaded,
    Problem,
    RefdeskError,
    ServerTalksNonsense,
)

MAX_ROUNDS = 10
"""Input requests per call before the server has to answer."""

MARGIN_SECONDS = 5.0
"""Added to the server's timeout, so that its own timeout error is the one reported."""

MAX_SUSPENDED = 1000
"""Suspended calls of all callers: each holds a task and a slot at its server."""

MAX_SUSPENDED_PER_CALLER = 32
"""The same for one caller."""

HANDLE_BYTES = 18

CAPABILITY_BY_METHOD = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""Requests a client can answer, and the capability that declares each."""

_SUSPENDED_PREFIX, _SERVER_PREFIX = "waiting:", "server:"
"""Prefixes of the request state held by a client: our own handle, or the server's state."""

_LEVELS: frozenset[str] = frozenset(get_args(LogLevel))

Result = dict[str, Any]


class NotOffered(RefdeskError):
    """The server asked the client for something that it does not support."""

    code = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(f"The client of this call doesn't support {method[:100]}")


class Declined(RefdeskError):
    """The client's error response to a server's request."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(str(error.get("message") or "The client's response is invalid"))
        code = error.get("code")
        if isinstance(code, int):
            self.code = code
        self._data = error.get("data")

    @property
    def data(self) -> dict[str, Any]:
        return self._data if isinstance(self._data, dict) else {}


class ClientCallbacks:
    """Callbacks of a server to a client while its call is open."""

    __slots__ = ("_client", "_server")

    def __init__(self, client: Client, server: str) -> None:
        self._client = client
        self._server = server

    @property
    def key(self) -> object:
        """Equal for all calls of one client."""
        return self._client.key

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward progress or a log message; malformed ones are dropped."""
        if method == "notifications/progress":
            done, total, message = params.get("progress"), params.get("total"), params.get("message")
            if isinstance(done, (int, float)):
                total = total if isinstance(total, (int, float)) else None
                await self._client.progress(done, total, message if isinstance(message, str) else None)
        elif method == "notifications/message":
            level, logger = params.get("level"), params.get("logger")
            known_level: LogLevel = level if level in _LEVELS else "info"
            await self._client.log(known_level, params.get("data"), logger if isinstance(logger, str) else None)

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Forward a server's request and return the client's response."""
        if (fixed := check_capability(self._client, method)) is not None:
            return fixed
        if self._client.uses_input_required:
            # The server speaks the newest revision too, and has to ask by ending the call.
            raise NotOffered(method)
        try:
            return await self._client.ask(id, method, screen_request(self._server, method, params))
        except ClientRefused as refused:
            raise Declined(refused.error) from refused


class _NoCallbacks(ClientCallbacks):
    """Callbacks of a caller that can neither be notified nor asked.

    It still counts as a caller: what a server sends during its call must not reach other callers.
    """

    __slots__ = ()

    key: object = "nobody"
    """The same for all, as nothing is delivered."""


NO_CALLBACKS = _NoCallbacks(SILENT, "")


def check_capability(client: Client, method: str) -> Mapping[str, Any] | None:
    """Raise NotOffered if the client does not support a method; return the response if it is fixed.

    A client without roots gets an empty list, so that the server does not fail.
    """
    if client.can(method):
        return None
    if method == "roots/list":
        return {"roots": []}
    raise NotOffered(method)


def screen_request(server: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a server's request for the client: under the server's name, and without other contexts.

    Raises ServerTalksNonsense for an address that isn't https: clients open it in a browser.
    """
    params = {name: value for name, value in params.items() if name != "includeContext"}
    url = params.get("url")
    if url is not None and not (isinstance(url, str) and url.lower().startswith("https://")):
        raise ServerTalksNonsense(f"The server {server!r} asked to open an address that isn't https")
    if method == "elicitation/create":
        params["message"] = f"{server} asks: {params.get('message', '')}"
    elif method == "sampling/createMessage":
        prompt = params.get("systemPrompt")
        params["systemPrompt"] = f"Request of the MCP server {server!r}." + (f"\n\n{prompt}" if prompt else "")
    return params


def build_capabilities(client: Client) -> dict[str, Any]:
    """Return the client's capabilities, for servers that receive them with every request."""
    return {name: CLIENT_CAPABILITIES[name] for method, name in CAPABILITY_BY_METHOD.items() if client.can(method)}


def _restore_state(params: dict[str, Any], server: str, state: object, answers: object) -> None:
    """Pass the client's responses and the server's own state to the server."""
    if answers is not None:
        params["inputResponses"] = answers
    if isinstance(state, str):
        prefix = f"{_SERVER_PREFIX}{server}:"
        if not state.startswith(prefix):
            raise InvalidCall("The requestState doesn't belong to this call")
        params["requestState"] = state.removeprefix(prefix)


def _check_input_required(client: Client, server: Connection, result: Result) -> Result:
    """Return the result for a client of the newest revision; raise InputRequired if input is needed."""
    if result.get("resultType") != "input_required":
        return result
    requests = {}
    for name, request in _parse_input_requests(server, result).items():
        method, params = request["method"], request.get("params")
        if not client.can(method):
            raise MissingCapability(CAPABILITY_BY_METHOD.get(method, method))
        screened = screen_request(server.name, method, params if isinstance(params, Mapping) else {})
        requests[name] = {**request, "params": screened}
    state = result.get("requestState")
    raise InputRequired(requests, f"{_SERVER_PREFIX}{server.name}:{state}" if isinstance(state, str) else None)


async def answer_input_requests(
    call: Call, server: Connection, method: str, params: Mapping[str, Any], result: Result
) -> Result:
    """Return the result for a client of an older revision, asking it for the required input."""
    callbacks, rounds = ClientCallbacks(call.client, server.name), 0
    while result.get("resultType") == "input_required":
        if rounds == MAX_ROUNDS:
            raise ServerTalksNonsense(f"The server {server.name!r} asked for input {MAX_ROUNDS} times without a result")
        rounds += 1
        answers = {}
        for name, input_request in _parse_input_requests(server, result).items():
            asked = input_request["method"]
            try:
                answers[name] = await callbacks.ask(name, asked, input_request.get("params") or {})
            except NotOffered as error:
                raise ClientCannot(f"This needs {asked} from the client, which can't do it.") from error
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        next_params = {**params, "inputResponses": answers, **state}
        capabilities = build_capabilities(call.client)
        result = await server.request(
            method, next_params, callbacks=callbacks, token=call.credential, capabilities=capabilities
        )
    # `complete` means nothing to a legacy client; other values might.
    return {name: value for name, value in result.items() if (name, value) != ("resultType", "complete")}


def _parse_input_requests(server: Connection, result: Result) -> dict[str, Mapping[str, Any]]:
    requests = result.get("inputRequests")
    if isinstance(requests, dict) and all(
        isinstance(input_request, Mapping) and isinstance(input_request.get("method"), str)
        for input_request in requests.values()
    ):
        return requests
    raise ServerTalksNonsense(f"The server {server.name!r} requested input without saying which")


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    method: str
    params: Mapping[str, Any]
    answer: asyncio.Future[Mapping[str, Any]]


class SuspendedCall(ClientCallbacks):
    """A call that can be suspended and resumed; also the callbacks of its server."""

    def __init__(self, client: Client, server: str) -> None:
        super().__init__(client, server)
        self._is_suspended = False
        self._pending: dict[str, _PendingRequest] = {}
        self._request_count = 0
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[Result] | None = None

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Forward a server's notification; dropped while suspended."""
        if not self._is_suspended:
            await super().tell(method, params)

    async def ask(self, id: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Wait until the client has returned with the response."""
        if (fixed := check_capability(self._client, method)) is not None:
            return fixed
        params = screen_request(self._server, method, params)
        self._request_count += 1
        name = f"question-{self._request_count}"
        pending = self._pending[name] = _PendingRequest(method, params, asyncio.get_running_loop().create_future())
        self._wakeup.set()
        try:
            return await pending.answer
        finally:
            del self._pending[name]

    async def start(self, request: Callable[..., Coroutine[Any, Any, Result]]) -> Result:
        """Send the request with this as its `callbacks`; run until it is answered or input is required."""
        self._task = asyncio.create_task(request(callbacks=self))
        self._task.add_done_callback(self._on_done)
        return await self._run_until_asked(self._task)

    async def resume(self, client: Client, answers: object) -> Result:
        """Pass the client's responses to the server, and continue as in `start`."""
        self._client, self._is_suspended = client, False
        for name, answer in answers.items() if isinstance(answers, Mapping) else ():
            pending = self._pending.get(name)
            if pending is None or pending.answer.done():
                continue
            if isinstance(answer, Mapping):
                pending.answer.set_result(answer)
            else:
                pending.answer.set_exception(InvalidArguments([Problem(name, "must be an object")]))
        assert self._task is not None
        return await self._run_until_asked(self._task)

    def cancel_request(self) -> asyncio.Task[Result] | None:
        """Cancel the request to the server."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    async def _run_until_asked(self, task: asyncio.Task[Result]) -> Result:
        try:
            while not task.done():
                open_requests = {
                    name: {"method": pending.method, "params": pending.params}
                    for name, pending in self._pending.items()
                    if not pending.answer.done()
                }
                if open_requests:
                    self._is_suspended = True
                    raise InputRequired(open_requests)
                self._wakeup.clear()
                await self._wakeup.wait()
        except asyncio.CancelledError:
            task.cancel()
            raise
        return task.result()

    def _on_done(self, task: asyncio.Task[Result]) -> None:
        self._wakeup.set()
        if not task.cancelled():
            task.exception()  # retrieved here in case the client never comes back


@dataclass(frozen=True, slots=True)
class _Entry:
    suspended: SuspendedCall
    owner: Hashable
    subject: Hashable
    expiry: asyncio.TimerHandle


class SuspendedCalls:
    """The table of suspended calls."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    async def forward(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        """Forward a call of a client of the newest revision, or continue a suspended one."""
        client, state, answers = call.client, params.pop("requestState", None), params.pop("inputResponses", None)
        if isinstance(state, str) and state.startswith(_SUSPENDED_PREFIX):
            suspended = self.take(state.removeprefix(_SUSPENDED_PREFIX), *_identify(call))
            return await self._run_or_suspend(call, server, suspended, suspended.resume(client, answers))
        # Before the handshake, the server may speak any revision.
        profile = server.server_profile
        may_be_modern, may_be_legacy = profile is None or profile.is_modern, profile is None or not profile.is_modern
        request = partial(
            server.request, method, params, token=call.credential, capabilities=build_capabilities(client)
        )
        if may_be_modern:
            _restore_state(params, server.name, state, answers)
        if may_be_legacy and any(map(client.can, CAPABILITY_BY_METHOD)):
            suspended = SuspendedCall(client, server.name)
            result = await self._run_or_suspend(call, server, suspended, suspended.start(request))
        else:
            result = await request(callbacks=ClientCallbacks(client, server.name))
        return _check_input_required(client, server, result)

    async def _run_or_suspend(
        self, call: Call, server: Connection, suspended: SuspendedCall, running: Awaitable[Result]
    ) -> Result:
        try:
            return await running
        except InputRequired as error:
            handle = self.add(suspended, *_identify(call), server.settings.call_timeout_seconds + MARGIN_SECONDS)
            raise InputRequired(error.requests, _SUSPENDED_PREFIX + handle) from None

    def add(self, suspended: SuspendedCall, owner: Hashable, subject: Hashable, seconds: float) -> str:
        """Store a suspended call and return its handle; it is cancelled after `seconds`."""
        count = sum(entry.owner == owner for entry in self._entries.values())
        if len(self._entries) >= MAX_SUSPENDED or count >= MAX_SUSPENDED_PER_CALLER:
            suspended.cancel_request()
            raise Overloaded("Too many calls are waiting for their clients. Try again later", retry_after=seconds)
        handle = secrets.token_urlsafe(HANDLE_BYTES)
        expiry = asyncio.get_running_loop().call_later(seconds, self._expire, handle)
        self._entries[handle] = _Entry(suspended, owner, subject, expiry)
        return handle

    def take(self, handle: str, owner: Hashable, subject: Hashable) -> SuspendedCall:
        """Remove and return the call of a handle, for its owner and the same subject only."""
        entry = self._entries.get(handle)
        if entry is None or entry.owner != owner or entry.subject != subject:
            raise InvalidCall("The suspended call has expired, or was another one. Call again")
        entry.expiry.cancel()
        del self._entries[handle]
        return entry.suspended

    async def close(self) -> None:
        """Cancel all suspended calls."""
        entries, self._entries = self._entries, {}
        for entry in entries.values():
            entry.expiry.cancel()
        tasks = [task for entry in entries.values() if (task := entry.suspended.cancel_request()) is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _expire(self, handle: str) -> None:
        self._entries.pop(handle).suspended.cancel_request()


def _identify(call: Call) -> tuple[Hashable, Hashable]:
    """Return the owner and the subject of a suspended call, which have to be the same when it's resumed."""
    return (call.caller.tenant, call.caller.user), (call.method, call.target)
