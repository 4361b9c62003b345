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
from refdesk.inbound.desk_interface import Services, downstream_hooks
from refdesk.inbound.envelope import RpcRequest
from refdesk.inbound.error_mapping import log_unexpected, to_rpc_error
from refdesk.inbound.notifications import MAX_SUBSCRIPTIONS, MAX_URI_LENGTH, NotificationHub
from refdesk.inbound.request_context import CONTEXT_KEY, RequestContext
from refdesk.inbound.sdk_client import SdkClient, get_connection
from refdesk.inbound.server_requests import PendingRequests, build_input_error
from refdesk.inbound.trace_headers import enter_caller_trace
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

_HANDSHAKE_METHODS = frozenset({"initialize", "server/discover"})

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

    def __init__(self, services: Services, notifications: NotificationHub, state_key: bytes | None = None) -> None:
        """Initialize the server.

        `state_key` seals the state that clients carry from one request to the next. Processes that serve the same
        clients share it.
        """
        self._downstream = downstream_hooks(services)
        self.pending_requests = PendingRequests()
        self.connections: dict[str, Connection] = {}
        """Open sessions of the handshake revisions, by session id."""
        self.listeners = ListenHandler(notifications.bus)
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
        self._notifications = notifications
        services.listen(notifications.publish)
        sealed = RequestStateSecurity(keys=[state_key or secrets.token_bytes(32)], bind_principal=_principal_of)
        self._boundary = RequestStateBoundary(sealed, default_audience=NAME)
        # Replaces the SDK's tracing: we create the spans ourselves, and it costs a tenth of a call.
        self.middleware = [_map_errors, self._track_connection, self._add_instructions, self._boundary]
        for method, params in METHODS.items():
            self.add_request_handler(method, params, self._serve)
        self.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        self.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, self._on_initialized)

    def build_instructions(self, caller: Caller) -> str:
        """Return Refdesk's instructions, followed by those of the downstream servers available to the caller."""
        others = self._downstream.instructions(caller)[:MAX_INSTRUCTIONS]
        return f"{INSTRUCTIONS}\n\n{others}" if others else INSTRUCTIONS

    async def seal_state(self, request: RpcRequest, context: RequestContext, result: dict[str, Any]) -> dict[str, Any]:
        """Return an `input_required` result with its state sealed, for the SDK to open in the next request."""
        ctx = ServerRequestContext(
            session=None,  # type: ignore[arg-type]  # not looked at where there is nothing to be sent
            lifespan_context=None,
            protocol_version=LATEST_MODERN_VERSION,
            method=request.method,
            params=request.params,
            request=HttpRequest({"type": "http", CONTEXT_KEY: context}),
        )

        async def end(_: Context) -> HandlerResult:
            return result

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
        context = enter_caller_trace(_get_request_context(ctx), ctx.params or {})
        call = Call(
            method=ctx.method,
            params=ctx.params or {},
            caller=context.caller,
            client=SdkClient(ctx),
            trace_id=context.trace_id,
            toolsets=context.toolsets,
            credential=context.credential,
        )
        try:
            answer = await self._handle(call)
        except InputRequired as input_required:
            if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise build_input_error(input_required) from None
            return build_input_required(input_required)
        except (RefdeskError, MCPError, ValidationError):
            raise
        except Exception as error:
            log_unexpected(error, call.trace_id)
            raise _to_sdk_error(error, call.trace_id) from error
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return {"resultType": "complete", **answer.result}
        return answer.result

    async def _track_connection(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Register a session with its first request, so that the fast path can answer requests in it."""
        if ctx.method == "initialize":
            connection = get_connection(ctx)
            if connection.session_id is not None and connection.session_id not in self.connections:
                self.connections[connection.session_id] = connection
                connection.exit_stack.callback(self._forget_session, connection.session_id)
        return await call_next(ctx)

    async def _add_instructions(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Add the instructions for the caller to a handshake. The SDK has the same ones for everyone."""
        result = await call_next(ctx)
        if ctx.method not in _HANDSHAKE_METHODS:
            return result
        instructions = self.build_instructions(_get_request_context(ctx).caller)
        if isinstance(result, BaseModel):
            return result.model_copy(update={"instructions": instructions})
        return {**(result or {}), "instructions": instructions}

    def _forget_session(self, session: str) -> None:
        self.connections.pop(session, None)
        self.pending_requests.fail_session(session)

    async def _on_initialized(self, ctx: Context, _: types.NotificationParams) -> None:
        self._notifications.add_connection(get_connection(ctx), _get_request_context(ctx).caller)

    async def _listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        caller, uris = _get_request_context(ctx).caller, params.notifications.resource_subscriptions or ()
        subscriptions = [uri for uri in dict.fromkeys(uris) if len(uri) <= MAX_URI_LENGTH][:MAX_SUBSCRIPTIONS]
        tasks = [asyncio.ensure_future(self._hold_subscription(uri, caller)) for uri in subscriptions]
        try:
            with self._notifications.bus.listen_as(caller):
                return await self.listeners(ctx, params)
        finally:
            for task in tasks:
                task.cancel()

    async def _hold_subscription(self, uri: str, caller: Caller) -> None:
        """Keep a resource subscription while this task runs. A rejected subscription is only logged."""
        try:
            await self._downstream.subscribe(uri, caller)
        except RefdeskError as error:
            logger.info("subscription refused", extra={"fields": {"uri": uri[:200], "why": error.detail}})
            return
        try:
            await asyncio.Event().wait()
        finally:
            self._downstream.unsubscribe(uri, caller)

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        connection, caller, uri = get_connection(ctx), _get_request_context(ctx).caller, str(params.uri)
        subscriptions = self._get_subscriptions(connection)
        if self._notifications.subscribe(connection, caller, uri):
            try:
                await self._downstream.subscribe(uri, caller)
            except BaseException:
                self._notifications.unsubscribe(connection, uri)
                raise
            if self._notifications.is_subscribed(connection, uri) and uri not in subscriptions:
                subscriptions[uri] = caller
            else:  # it was closed or unsubscribed meanwhile
                self._downstream.unsubscribe(uri, caller)
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        connection, uri = get_connection(ctx), str(params.uri)
        self._notifications.unsubscribe(connection, uri)
        caller = self._get_subscriptions(connection).pop(uri, None)
        if caller is not None:
            self._downstream.unsubscribe(uri, caller)
        return types.EmptyResult()

    def _get_subscriptions(self, connection: Connection) -> dict[str, Caller]:
        """Return the subscriptions of a connection by URI. They are cancelled when it closes."""
        subscriptions: dict[str, Caller] | None = connection.state.get(SUBSCRIPTIONS)
        if subscriptions is None:
            subscriptions = connection.state[SUBSCRIPTIONS] = {}
            connection.exit_stack.callback(self._unsubscribe_all, subscriptions)
        return subscriptions

    def _unsubscribe_all(self, subscriptions: dict[str, Caller]) -> None:
        for uri, caller in subscriptions.items():
            self._downstream.unsubscribe(uri, caller)
        subscriptions.clear()

    async def _set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        get_connection(ctx).state["log_level"] = params.level
        self._downstream.set_level(params.level)
        return types.EmptyResult()


def build_input_required(input_required: InputRequired) -> dict[str, Any]:
    """Build an `input_required` result."""
    result: dict[str, Any] = {"resultType": "input_required"}
    if input_required.requests:
        result["inputRequests"] = dict(input_required.requests)
    if input_required.state is not None:
        result["requestState"] = input_required.state
    return result


def log_client_info(method: str, params: Any, context: RequestContext) -> None:
    """Log the client's name, version and protocol revision as it declares them, unverified."""
    meta = _get_member(params, "_meta")
    client_info = _get_member(params, "clientInfo") or _get_member(meta, types.CLIENT_INFO_META_KEY)
    fields = {
        "method": method,
        "client": _get_member(client_info, "name"),
        "version": _get_member(client_info, "version"),
        "revision": _get_member(params, "protocolVersion") or _get_member(meta, types.PROTOCOL_VERSION_META_KEY),
    }
    declared = {name: str(value)[:100] for name, value in fields.items() if value is not None}
    caller_fields = {"user": context.caller.user, "tenant": context.caller.tenant, "trace_id": context.trace_id}
    logger.info("client", extra={"fields": {**declared, **caller_fields}})


def _get_member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None


async def _map_errors(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Convert Refdesk's errors to the SDK's type, and give the SDK's own errors the same data."""
    if ctx.method in _HANDSHAKE_METHODS:
        log_client_info(ctx.method, ctx.params, _get_request_context(ctx))
    try:
        return await call_next(ctx)
    except RefdeskError as error:
        raise _to_sdk_error(error) from error
    except ValidationError as error:
        raise _to_sdk_error(invalid_arguments(error, below="params")) from error
    except MCPError as error:
        if error.error.code == types.METHOD_NOT_FOUND:
            raise _to_sdk_error(MethodNotFound(ctx.method)) from error
        raise
    except Exception as error:
        trace_id = _get_request_context(ctx).trace_id
        log_unexpected(error, trace_id)
        raise _to_sdk_error(error, trace_id) from error


def _to_sdk_error(error: Exception, trace_id: str = "") -> MCPError:
    rpc_error = to_rpc_error(error, trace_id)
    return MCPError(code=rpc_error.code, message=rpc_error.message, data=rpc_error.data)


def _get_request_context(ctx: Context) -> RequestContext:
    """Return the context of an HTTP request, or that of the local user on stdio."""
    if ctx.request is None:
        return RequestContext(LOCAL, new_trace_id(), None)
    context: RequestContext = ctx.request.scope[CONTEXT_KEY]
    return context


def _principal_of(ctx: Context) -> str:
    """Return the principal that a request's state is bound to. Nobody else can send it back."""
    caller = _get_request_context(ctx).caller
    return f"{caller.tenant!r} {caller.user!r}"
