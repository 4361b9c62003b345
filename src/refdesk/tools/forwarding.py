"""A call is passed on to a server whichever revision each side speaks.

Older and newer revisions differ in how a server asks its client something: in the middle of the call, or by ending it
with what it wants to know, for the client to call again. All four combinations work:

    client  server
    older   older    the question is passed on while the call is open
    newest  newest   the ending is passed on, with the server's state in our own wrapping
    older   newest   the client is asked here, and the server called again
    newest  older    the request goes on in a task while the client is away (`conversations`)
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from functools import partial
from typing import Any

from refdesk.calls import SILENT, Call, Client, InputRequired
from refdesk.downstream.connection.connection import Connection
from refdesk.downstream.envelopes import CLIENT_CAPABILITIES
from refdesk.downstream.jsonrpc import Voice
from refdesk.errors import (
    ClientCannot,
    InvalidArguments,
    InvalidCall,
    MissingCapability,
    Problem,
    ServerTalksNonsense,
)
from refdesk.tools.client_callbacks import SILENCE, CallVoice, NotOffered
from refdesk.tools.suspended_calls import Conversation, Conversations

MAX_ROUNDS = 10
"""How often a server may end a call to ask something before it has to have an answer."""

MARGIN_SECONDS = 5.0
"""What a call may take here beyond what its server has for it: the server's own time-out says more than ours."""

QUESTIONS = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
"""What a client can be asked, and the capability by which it says so."""

_OURS, _THEIRS = "waiting:", "server:"
"""What a state begins with that a client carries: a handle of ours, or what a server gave it to carry."""

Result = dict[str, Any]


class Passing:
    """Passes calls on; holds those whose clients are away."""

    def __init__(self) -> None:
        self._conversations = Conversations()

    async def __call__(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        """The server's result for these params, which are this function's own from now on.

        It is checked for no more than what is looked at on its way to the client.
        """
        if "_meta" in params and not isinstance(params["_meta"], dict):
            raise InvalidArguments([Problem("_meta", "must be an object")])
        result = await self._pass_on(call, server, method, params)
        if not _is_sound(result):
            raise ServerTalksNonsense(
                f"The server {server.name!r} gave a result that is none: its content is malformed"
            )
        return result

    async def _pass_on(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        client = call.client
        if client.asks_by_ending:
            return await self._for_newest(call, server, method, params)
        voice: Voice = SILENCE
        if client is SILENT:
            _drop_progress_token(params)
        else:
            voice = CallVoice(client)
        greeting = server.greeting
        offered = _capabilities(client) if greeting is not None and greeting.is_modern else None
        result = await server.request(method, params, voice=voice, token=call.credential, capabilities=offered)
        if "resultType" in result:
            return await _completed(call, server, method, params, result)
        return result

    async def close(self) -> None:
        """Give up what nobody has come back for."""
        await self._conversations.close()

    async def _for_newest(self, call: Call, server: Connection, method: str, params: dict[str, Any]) -> Result:
        client, state, answers = call.client, params.pop("requestState", None), params.pop("inputResponses", None)
        if isinstance(state, str) and state.startswith(_OURS):
            conversation = self._conversations.take(state.removeprefix(_OURS), _owner(call), _about(call))
            return await self._followed(call, server, conversation, conversation.go_on(client, answers))
        may_be_newest, may_be_older = _revisions(server)
        request = partial(server.request, method, params, token=call.credential, capabilities=_capabilities(client))
        if may_be_newest:
            _bring_back(params, server.name, state, answers)
        if may_be_older and any(map(client.can, QUESTIONS)):
            conversation = Conversation(client)
            result = await self._followed(call, server, conversation, conversation.begin(request))
        else:
            result = await request(voice=CallVoice(client))
        return _ended(client, server, result)

    async def _followed(
        self, call: Call, server: Connection, conversation: Conversation, going: Awaitable[Result]
    ) -> Result:
        try:
            return await going
        except InputRequired as asked:
            seconds = server.call_seconds + MARGIN_SECONDS
            handle = self._conversations.keep(conversation, _owner(call), _about(call), seconds)
            raise InputRequired(asked.requests, _OURS + handle) from None


def _revisions(server: Connection) -> tuple[bool, bool]:
    """Whether a server may speak the newest revision, and whether an older one: both, until it is greeted."""
    greeting = server.greeting
    return (True, True) if greeting is None else (greeting.is_modern, not greeting.is_modern)


def _is_sound(result: Result) -> bool:
    """Whether content is a list of objects, text is text, and `_meta` an object, where they are there."""
    content, meta = result.get("content", ()), result.get("_meta")
    if not isinstance(content, (list, tuple)) or not (meta is None or isinstance(meta, dict)):
        return False
    return all(
        isinstance(item, dict)
        and isinstance(item.get("text", ""), str)
        and (item.get("type") != "text" or "text" in item)
        for item in content
    )


def _capabilities(client: Client) -> dict[str, Any]:
    """What the client can be asked, for a server that is told with every request."""
    return {name: CLIENT_CAPABILITIES[name] for method, name in QUESTIONS.items() if client.can(method)}


def _owner(call: Call) -> tuple[str, str]:
    return call.caller.tenant, call.caller.user


def _about(call: Call) -> tuple[str, str]:
    return call.method, call.target


def _drop_progress_token(params: dict[str, Any]) -> None:
    """Nobody hears progress, and the token is one that another client may have as well."""
    meta = params.get("_meta")
    if isinstance(meta, Mapping) and "progressToken" in meta:
        params["_meta"] = {name: value for name, value in meta.items() if name != "progressToken"}


def _bring_back(params: dict[str, Any], server: str, state: object, answers: object) -> None:
    """Give a server what its client comes back with; a state of another server is none."""
    if answers is not None:
        params["inputResponses"] = answers
    if isinstance(state, str):
        prefix = f"{_THEIRS}{server}:"
        if not state.startswith(prefix):
            raise InvalidCall("The requestState is not one that this call was given")
        params["requestState"] = state.removeprefix(prefix)


def _ended(client: Client, server: Connection, result: Result) -> Result:
    """The result for a client of the newest revision."""
    if result.get("resultType") != "input_required":
        return result
    requests = _requests(server, result)
    for request in requests.values():
        if not client.can(request["method"]):
            raise MissingCapability(QUESTIONS.get(request["method"], request["method"]))
    state = result.get("requestState")
    raise InputRequired(requests, f"{_THEIRS}{server.name}:{state}" if isinstance(state, str) else None)


async def _completed(call: Call, server: Connection, method: str, params: Mapping[str, Any], result: Result) -> Result:
    """The result for a client of an older revision, which is asked what its server wants to know."""
    voice = CallVoice(call.client)
    for _ in range(MAX_ROUNDS):
        if result.get("resultType") != "input_required":
            # Of no meaning to this client; anything but `complete` might be.
            return {name: value for name, value in result.items() if (name, value) != ("resultType", "complete")}
        answers = {name: await _answered(voice, name, asked) for name, asked in _requests(server, result).items()}
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        again = {**params, "inputResponses": answers, **state}
        offered = _capabilities(call.client)
        result = await server.request(method, again, voice=voice, token=call.credential, capabilities=offered)
    raise ServerTalksNonsense(
        f"The server {server.name!r} asked again and again, {MAX_ROUNDS} times, without an answer"
    )


async def _answered(voice: CallVoice, name: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return await voice.ask(name, asked["method"], asked.get("params") or {})
    except NotOffered as error:
        raise ClientCannot(f"This needs {asked['method']} from the client, which does not offer it.") from error


def _requests(server: Connection, result: Result) -> dict[str, Mapping[str, Any]]:
    requests = result.get("inputRequests")
    if isinstance(requests, dict) and all(
        isinstance(asked, Mapping) and isinstance(asked.get("method"), str) for asked in requests.values()
    ):
        return requests
    raise ServerTalksNonsense(f"The server {server.name!r} asks for input without saying what")
