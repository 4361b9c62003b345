"""Adapter that serves MCP through the SDK's server: requests become calls, answers and errors go back.

Validation belongs to the dispatcher, and access decisions to the policies.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Any, cast

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.connection import Connection
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError
from starlette.requests import Request as HttpRequest

from refdesk.calls import LOCAL, Call, Caller, InputRequired, new_trace_id
from refdesk.errors import MethodNotFound, RefdeskError
from refdesk.inbound.envelope import Request
from refdesk.inbound.error_mapping import log_unforeseen, to_wire
from refdesk.inbound.interfaces import Services, beyond
from refdesk.inbound.notifications import LONGEST_URI, MAX_SUBSCRIPTIONS, Audience
from refdesk.inbound.request_context import VISITOR, Visitor
from refdesk.inbound.sdk_client import SdkClient, connection_of
from refdesk.inbound.server_requests import Questions, cannot_end
from refdesk.inbound.traces import in_trace
from refdesk.validation import invalid_arguments
from refdesk.version import __version__

logger = logging.getLogger(__name__)

NAME = "refdesk"
TITLE = "Refdesk"
INSTRUCTIONS = (
    "Refdesk is the reference desk for this team's technical documentation. Before answering from memory, search it "
    "with search_documentation and read on with get_document; name the source of what you use. Files and web pages "
    "that are not in it: convert_pdf, convert_docx, convert_xlsx, convert_pptx or convert_url give a handle, which "
    "read_doc_metadata, read_doc_section, read_doc_pages and doc_local_search read in parts."
)

CACHE = CacheHint(ttl_ms=60_000, scope="private")
"""How long a client may cache results. Listeners are notified of changes, other clients ask again after a minute."""

MAX_INSTRUCTIONS = 8000
"""Maximum number of characters of downstream instructions. A model has them in its context all the time."""

SUBSCRIPTIONS = "refdesk.subscriptions"
"""Key of a connection's subscriptions in its SDK state."""

_ARRIVALS = frozenset({"initialize", "server/discover"})

Context = ServerRequestContext[Any, Any]

METHODS: Mapping[str, type[BaseModel]] = {
    "tools/list": types.PaginatedRequestParams,
    "tools/call": types.CallToolRequestParams,
    "resources/list": types.PaginatedRequestParams,
    "resources/templates/list": types.PaginatedRequestParams,
    "resources/read": types.ReadResourceRequestParams,
    "prompts/list": types.PaginatedRequestParams,
    "prompts/get": types.GetPromptRequestParams,
    "completion/complete": types.CompleteRequestParams,
}


class SdkServer(Server[Any]):
    """The SDK's server with Refdesk's methods."""

    def __init__(self, services: Services, audience: Audience, state_key: bytes | None = None) -> None:
        """Initialize the server.

        `state_key` seals the state that clients carry from one request to the next. Processes that serve the same
        clients share it.
        """
        self._beyond = beyond(services)
        self.questions = Questions()
        self.connections: dict[str, Connection] = {}
        """Open sessions of the handshake revisions, by session id."""
        self.listeners = ListenHandler(audience.bus)
        super().__init__(
            NAME,
            version=__version__,
            title=TITLE,
            instructions=INSTRUCTIONS,
            cache_hints=dict.fromkeys(
                ("tools/list", "resources/list", "resources/templates/list", "resources/read", "prompts/list"), CACHE
            ),
            # Without it the SDK lists all tools on every call to check headers.
            get_tool_input_schema=services.input_schema,
            on_subscriptions_listen=self._listen,
        )
        self._handle = services.handle
        self._audience = audience
        services.listen(audience.notice)
        sealed = RequestStateSecurity(keys=[state_key or secrets.token_bytes(32)], bind_principal=_bound_to)
        self._boundary = RequestStateBoundary(sealed, default_audience=NAME)
        # Replaces the SDK's tracing: we create the spans ourselves, and it costs a tenth of a call.
        self.middleware = [_in_our_words, self._remember, self._instruct, self._boundary]
        for method, params in METHODS.items():
            self.add_request_handler(method, params, self._serve)
        self.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        self.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, self._initialized)

    def instructions_for(self, caller: Caller) -> str:
        """Return Refdesk's instructions, followed by those of the downstream servers available to the caller."""
        others = self._beyond.instructions(caller)[:MAX_INSTRUCTIONS]
        return f"{INSTRUCTIONS}\n\n{others}" if others else INSTRUCTIONS

    async def ask_by_ending(self, request: Request, visitor: Visitor, asked: InputRequired) -> dict[str, Any]:
        """Return an `input_required` result whose state is sealed for the SDK to open in the next request."""
        ctx = ServerRequestContext(
            session=None,  # type: ignore[arg-type]  # not looked at where there is nothing to be sent
            lifespan_context=None,
            protocol_version=LATEST_MODERN_VERSION,
            method=request.method,
            params=request.params,
            request=HttpRequest({"type": "http", VISITOR: visitor}),
        )

        async def end(_: Context) -> HandlerResult:
            return _asking(asked)

        # The boundary returns the result of `end` with its state sealed.
        return cast("dict[str, Any]", await self._boundary(ctx, end))

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Return the SDK's options, with list change notifications enabled."""
        changes = notification_options or NotificationOptions(True, True, True)
        return super().create_initialization_options(changes, experimental_capabilities, extensions)

    async def _serve(self, ctx: Context, _: BaseModel) -> HandlerResult:
        visitor = in_trace(_visitor(ctx), ctx.params or {})
        call = Call(
            method=ctx.method,
            params=ctx.params or {},
            caller=visitor.caller,
            client=SdkClient(ctx),
            trace_id=visitor.trace_id,
            toolsets=visitor.toolsets,
            credential=visitor.credential,
        )
        try:
            answer = await self._handle(call)
        except InputRequired as asked:
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise cannot_end(asked) from None
            return _asking(asked)
        except (RefdeskError, MCPError, ValidationError):
            raise
        except Exception as error:
            log_unforeseen(error, call.trace_id)
            raise _sdk_error(error, call.trace_id) from error
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return {"resultType": "complete", **answer.result}
        return answer.result

    async def _remember(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Register a session with its first request, so that the fast path can answer requests in it."""
        if ctx.method == "initialize":
            connection = connection_of(ctx)
            if connection.session_id is not None and connection.session_id not in self.connections:
                self.connections[connection.session_id] = connection
                connection.exit_stack.callback(self._forget, connection.session_id)
        return await call_next(ctx)

    async def _instruct(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Add the instructions for the caller to a handshake. The SDK has the same ones for everyone."""
        result = await call_next(ctx)
        if ctx.method not in _ARRIVALS:
            return result
        instructions = self.instructions_for(_visitor(ctx).caller)
        if isinstance(result, BaseModel):
            return result.model_copy(update={"instructions": instructions})
        return {**(result or {}), "instructions": instructions}

    def _forget(self, session: str) -> None:
        self.connections.pop(session, None)
        self.questions.forget(session)

    async def _initialized(self, ctx: Context, _: types.NotificationParams) -> None:
        self._audience.join(connection_of(ctx), _visitor(ctx).caller)

    async def _listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        caller, uris = _visitor(ctx).caller, params.notifications.resource_subscriptions or ()
        kept = [uri for uri in dict.fromkeys(uris) if len(uri) <= LONGEST_URI][:MAX_SUBSCRIPTIONS]
        following = [asyncio.ensure_future(self._follow(uri, caller)) for uri in kept]
        try:
            with self._audience.bus.listening(caller):
                return await self.listeners(ctx, params)
        finally:
            for task in following:
                task.cancel()

    async def _follow(self, uri: str, caller: Caller) -> None:
        """Keep a resource subscription while this task runs. A rejected subscription is only logged."""
        try:
            await self._beyond.subscribe(uri, caller)
        except RefdeskError as error:
            logger.info("subscription refused", extra={"fields": {"uri": uri[:200], "why": error.detail}})
            return
        try:
            await asyncio.Event().wait()
        finally:
            self._beyond.unsubscribe(uri, caller)

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        connection, caller, uri = connection_of(ctx), _visitor(ctx).caller, str(params.uri)
        kept = self._subscriptions(connection)
        if self._audience.subscribe(connection, caller, uri):
            try:
                await self._beyond.subscribe(uri, caller)
            except BaseException:
                self._audience.unsubscribe(connection, uri)
                raise
            if self._audience.is_subscribed(connection, uri) and uri not in kept:
                kept[uri] = caller
            else:  # it was closed or unsubscribed meanwhile
                self._beyond.unsubscribe(uri, caller)
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        connection, uri = connection_of(ctx), str(params.uri)
        self._audience.unsubscribe(connection, uri)
        caller = self._subscriptions(connection).pop(uri, None)
        if caller is not None:
            self._beyond.unsubscribe(uri, caller)
        return types.EmptyResult()

    def _subscriptions(self, connection: Connection) -> dict[str, Caller]:
        """Return the subscriptions of a connection by URI. They are cancelled when it closes."""
        kept: dict[str, Caller] | None = connection.state.get(SUBSCRIPTIONS)
        if kept is None:
            kept = connection.state[SUBSCRIPTIONS] = {}
            connection.exit_stack.callback(self._give_up, kept)
        return kept

    def _give_up(self, subscriptions: dict[str, Caller]) -> None:
        for uri, caller in subscriptions.items():
            self._beyond.unsubscribe(uri, caller)
        subscriptions.clear()

    async def _set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        connection_of(ctx).state["log_level"] = params.level
        self._beyond.set_level(params.level)
        return types.EmptyResult()


def _asking(asked: InputRequired) -> dict[str, Any]:
    """Build an `input_required` result."""
    result: dict[str, Any] = {"resultType": "input_required"}
    if asked.requests:
        result["inputRequests"] = dict(asked.requests)
    if asked.state is not None:
        result["requestState"] = asked.state
    return result


def log_arrival(method: str, params: Any, visitor: Visitor) -> None:
    """Log the client's name, version and protocol revision as it declares them, unverified."""
    meta = _member(params, "_meta")
    about = _member(params, "clientInfo") or _member(meta, types.CLIENT_INFO_META_KEY)
    fields = {
        "method": method,
        "client": _member(about, "name"),
        "version": _member(about, "version"),
        "revision": _member(params, "protocolVersion") or _member(meta, types.PROTOCOL_VERSION_META_KEY),
    }
    told = {name: str(value)[:100] for name, value in fields.items() if value is not None}
    who = {"user": visitor.caller.user, "tenant": visitor.caller.tenant, "trace_id": visitor.trace_id}
    logger.info("client", extra={"fields": {**told, **who}})


def _member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


async def _in_our_words(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Convert Refdesk's errors to the SDK's type, and give the SDK's own errors the same data."""
    if ctx.method in _ARRIVALS:
        log_arrival(ctx.method, ctx.params, _visitor(ctx))
    try:
        return await call_next(ctx)
    except RefdeskError as error:
        raise _sdk_error(error) from error
    except ValidationError as error:
        raise _sdk_error(invalid_arguments(error, below="params")) from error
    except MCPError as error:
        if error.error.code == types.METHOD_NOT_FOUND:
            raise _sdk_error(MethodNotFound(ctx.method)) from error
        raise
    except Exception as error:
        trace_id = _visitor(ctx).trace_id
        log_unforeseen(error, trace_id)
        raise _sdk_error(error, trace_id) from error


def _sdk_error(error: Exception, trace_id: str = "") -> MCPError:
    wire = to_wire(error, trace_id)
    return MCPError(code=wire.code, message=wire.message, data=wire.data)


def _visitor(ctx: Context) -> Visitor:
    """Return the context of an HTTP request, or that of the local user on stdio."""
    if ctx.request is None:
        return Visitor(LOCAL, new_trace_id(), None)
    visitor: Visitor = ctx.request.scope[VISITOR]
    return visitor


def _bound_to(ctx: Context) -> str:
    """Return the principal that a request's state is bound to. Nobody else can send it back."""
    caller = _visitor(ctx).caller
    return f"{caller.tenant!r} {caller.user!r}"
