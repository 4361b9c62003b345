"""The MCP dispatcher: answers a request of any revision, whatever transport it came over.

Validation of tools, resources and prompts belongs to the application, and access decisions to the policies.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from refdesk.calls import CONSOLE, SILENT, Call, Caller, Client, InputRequired
from refdesk.errors import (
    ClientCannot,
    InvalidArguments,
    InvalidCall,
    InvalidRequest,
    MethodNotFound,
    Problem,
    RefdeskError,
)
from refdesk.inbound.desk_interface import Services
from refdesk.inbound.jsonrpc import (
    RpcNotification,
    RpcRequest,
    RpcResponse,
    encode_error,
    encode_result,
    log_unexpected,
    to_rpc_error,
)
from refdesk.inbound.mcp.clients import ROOTS_SECONDS, ModernClient, SessionClient, StreamingClient
from refdesk.inbound.mcp.revisions import (
    CLIENT_INFO_META,
    HANDSHAKE_REVISIONS,
    METHODS,
    MODERN_REVISION,
    PROTOCOL_VERSION_META,
    SERVER_INFO,
    STATUSES,
    SUBSCRIPTION_ID_META,
    HandshakeParams,
    ListenParams,
    SetLevelParams,
    SubscribeParams,
    add_result_metadata,
    build_capabilities,
    check_modern_params,
    is_consistent,
)
from refdesk.inbound.mcp.sessions import MAX_SUBSCRIPTIONS, MAX_URI_LENGTH, ChangeListener, NotificationHub, Session
from refdesk.inbound.mcp.streams import Channel
from refdesk.inbound.requests import Headers, RequestContext, enter_caller_trace
from refdesk.support.tasks import TaskSet
from refdesk.validation import validate

if TYPE_CHECKING:
    from refdesk.inbound.mcp.sdk_rules import SdkRules

logger = logging.getLogger(__name__)

INSTRUCTIONS = (
    "Refdesk is the reference desk for this team's technical documentation. Before answering from memory, search it, "
    "and name the source of what you use. Search documentation sets with search_documentation; the project's own "
    "documents, or everything with filters, with r2r_search. Read on from a hit's id with get_document or "
    "read_chunk_window, and long documents by section with read_doc_metadata and read_doc_section. r2r_rag_query "
    "writes an answer with citations if a model is configured, else it quotes sentences from the passages. For files "
    "and web pages that aren't indexed, convert_pdf, convert_docx, convert_xlsx, convert_pptx and convert_url return a "
    "handle for read_doc_metadata, read_doc_section, read_doc_pages and doc_local_search."
)

MAX_INSTRUCTIONS = 8000
"""Maximum number of characters of downstream instructions. A model has them in its context all the time."""

STREAMING_METHODS = frozenset(
    {"tools/call", "prompts/get", "resources/read", "completion/complete", "subscriptions/listen"}
)
"""Methods that may take long enough to send messages before their result."""

_OWN_METHODS = frozenset({"initialize", "ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Methods of the handshake revisions that the dispatcher answers itself."""

_SESSION_METHODS = METHODS | {"logging/setLevel", "resources/subscribe", "resources/unsubscribe"}
"""Methods that need `initialize` first."""

_OTHER_INTERFACES = (CONSOLE, "internal/")
"""Prefixes of methods that have endpoints of their own."""

Result = dict[str, Any]


class McpDispatcher:
    """Answers requests, and takes notifications and responses of sessions."""

    def __init__(self, services: Services, state_key: bytes | None = None, title: str = SERVER_INFO["title"]) -> None:
        """Initialize the dispatcher.

        `title` is the name that clients display. `state_key` seals the state that clients carry from one request to the
        next. Processes that serve the same clients share it.
        """
        self._services = services
        self._handle = services.handle
        self._server_info = {**SERVER_INFO, "title": title}
        self._state_key = state_key or secrets.token_bytes(32)
        self._sdk_rules: SdkRules | None = None
        self._notifications = NotificationHub()
        self._tasks = TaskSet()
        services.registry.listen(self._notifications.publish)

    async def answer(
        self,
        request: RpcRequest,
        context: RequestContext,
        channel: Channel | None = None,
        session: Session | None = None,
    ) -> bytes:
        """Answer a request of a handshake revision. Without a `channel`, the call can't send messages."""
        context = enter_caller_trace(context, request.params)
        try:
            if session is not None and session.revision is None and request.method in _SESSION_METHODS:
                raise InvalidCall("The session isn't open yet; send initialize first")
            if request.method in _OWN_METHODS:
                return encode_result(request.id, await self._answer_own(request, context, session))
            client: Client
            if channel is None:
                client = SILENT
            elif session is None:
                client = StreamingClient(request, channel)
            else:
                client = SessionClient(request, channel, session)
            try:
                result = await self._call(request.method, request.params, context, client)
            except InputRequired as required:
                # A client of these revisions can't continue the call.
                methods = ", ".join(sorted({str(asked.get("method")) for asked in required.requests.values()}))
                needed = methods or "to be called again"
                raise ClientCannot(f"This needs {needed} from the client, which cannot be asked that way.") from None
            return encode_result(request.id, result)
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            log_unexpected(error, context.trace_id)
            return encode_error(request.id, error, context.trace_id)

    async def answer_modern(
        self, request: RpcRequest, context: RequestContext, channel: Channel | None, headers: Headers | None = None
    ) -> tuple[int, bytes]:
        """Answer a request of the stateless revision, and return the HTTP status, too.

        Over HTTP, `headers` have to repeat parts of the request.
        """
        context = enter_caller_trace(context, request.params)
        try:
            if not is_consistent(request, headers):
                (await self._load_sdk_rules()).check_request(request, headers)
            check_modern_params(request.params)
            if request.method == "tools/call" and headers is not None:
                await self._check_param_headers(request.params, headers)
            if request.method == "server/discover":
                result = self._discover(request.params, context)
            elif request.method == "subscriptions/listen":
                result = await self._listen(request, context, channel)
            else:
                result = await self._call_modern(request, context, channel)
            return 200, encode_result(request.id, add_result_metadata(request.method, result, self._server_info))
        except Exception as error:  # noqa: BLE001 - the last stop before the wire
            log_unexpected(error, context.trace_id)
            status = STATUSES.get(to_rpc_error(error)["code"], 200)
            return status, encode_error(request.id, error, context.trace_id)

    def take(self, message: RpcNotification | RpcResponse, session: Session) -> None:
        """Take a notification or a response of a session's client."""
        if isinstance(message, RpcResponse):
            session.resolve(message)
        elif message.method == "notifications/cancelled":
            session.cancel(message.params.get("requestId"))
        elif message.method == "notifications/initialized":
            self._notifications.sessions.add(session)
            self.request_roots(session)
        elif message.method == "notifications/roots/list_changed":
            session.forget_roots()
            self.request_roots(session)

    def request_roots(self, session: Session) -> None:
        """Request the client's roots for downstream servers, once it can be asked outside of calls."""
        if not self._services.gateway.uses_roots:
            return
        if session.can_be_asked and "roots" in session.capabilities and not session.is_closed:
            self._tasks.spawn(self._request_roots(session))

    async def _request_roots(self, session: Session) -> None:
        try:
            async with asyncio.timeout(ROOTS_SECONDS):
                answer = await session.ask("roots/list")
        except (ClientCannot, TimeoutError) as error:
            logger.info("client.roots_unknown", extra={"fields": {"why": str(error) or "the client didn't answer"}})
            return
        roots = answer.get("roots")
        if isinstance(roots, list) and not session.is_closed:
            valid = [root for root in roots if isinstance(root, Mapping) and isinstance(root.get("uri"), str)]
            self._services.gateway.set_roots(session.key, session.caller, valid)

    def close_session(self, session: Session) -> None:
        """Cancel the subscriptions of a session that has ended."""
        self._notifications.sessions.discard(session)
        for uri, caller in session.subscriptions.items():
            if caller is not None:
                self._services.gateway.unsubscribe(uri, caller)
        session.subscriptions.clear()
        self._services.gateway.set_roots(session.key, session.caller, ())

    def close(self) -> None:
        """End `subscriptions/listen` requests and stop notifying."""
        self._notifications.close()

    async def _call(self, method: str, params: Mapping[str, Any], context: RequestContext, client: Client) -> Result:
        if method not in METHODS and method.startswith(_OTHER_INTERFACES):
            raise MethodNotFound(method)
        call = Call(
            method, params, context.caller, client,
            context.trace_id, context.toolsets, context.credential, context.project,
        )  # fmt: skip
        return (await self._handle(call)).result

    async def _call_modern(self, request: RpcRequest, context: RequestContext, channel: Channel | None) -> Result:
        async def run(params: Mapping[str, Any]) -> Result:
            opened = request if params is request.params else request._replace(params=params)
            client = SILENT if channel is None else ModernClient(opened, channel)
            try:
                return await self._call(request.method, params, context, client)
            except InputRequired as required:
                result: Result = {"resultType": "input_required"}
                if required.requests:
                    result["inputRequests"] = dict(required.requests)
                if required.state is not None:
                    result["requestState"] = required.state
                return result

        if request.params.get("requestState") is not None:
            return await (await self._load_sdk_rules()).run_with_state(request, context.caller, run)
        result = await run(request.params)
        if "requestState" not in result:
            return result

        async def return_result(_: Mapping[str, Any]) -> Result:
            return result

        return await (await self._load_sdk_rules()).run_with_state(request, context.caller, return_result)

    async def _check_param_headers(self, params: Mapping[str, Any], headers: Headers) -> None:
        name, arguments = params.get("name"), params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return
        tools = self._services.dispatcher
        if tools.has_header_params(name) or any(header.startswith(b"mcp-param-") for header in headers):
            schema = tools.input_schema(name)
            if schema is not None:
                (await self._load_sdk_rules()).check_param_headers(schema, arguments, headers)

    async def _load_sdk_rules(self) -> SdkRules:
        if self._sdk_rules is None:
            # In a thread, so that other requests don't wait for the import.
            module = await asyncio.to_thread(import_module, "refdesk.inbound.mcp.sdk_rules")
            self._sdk_rules = module.SdkRules(self._state_key)
        return self._sdk_rules

    def _build_instructions(self, caller: Caller) -> str:
        """Return Refdesk's instructions, followed by those of the downstream servers available to the caller."""
        others = self._services.gateway.instructions(caller)[:MAX_INSTRUCTIONS]
        return f"{INSTRUCTIONS}\n\n{others}" if others else INSTRUCTIONS

    async def _answer_own(self, request: RpcRequest, context: RequestContext, session: Session | None) -> Result:
        """Answer a method about the connection itself. Those without a result of their own return `{}`, as `ping`."""
        match request.method:
            case "initialize":
                return self._initialize(request.params, context, session)
            case "logging/setLevel":
                level = validate(SetLevelParams, request.params).level
                if session is not None:
                    session.log_level = level
                self._services.gateway.set_level(level)
            case "resources/subscribe":
                uri = validate(SubscribeParams, request.params).uri
                # Without a session, nothing could be delivered.
                if session is not None and uri not in session.subscriptions:
                    await self._subscribe(uri, context.caller, session)
            case "resources/unsubscribe":
                uri = validate(SubscribeParams, request.params).uri
                caller = None if session is None else session.subscriptions.pop(uri, None)
                if caller is not None:
                    self._services.gateway.unsubscribe(uri, caller)
        return {}

    def _initialize(self, params: Mapping[str, Any], context: RequestContext, session: Session | None) -> Result:
        log_client_info("initialize", params, context)
        declared = validate(HandshakeParams, params)
        requested = declared.protocol_version
        revision = requested if requested in HANDSHAKE_REVISIONS else HANDSHAKE_REVISIONS[-1]
        if session is not None:
            session.revision, session.capabilities = revision, declared.capabilities
        return {
            "protocolVersion": revision,
            "capabilities": build_capabilities(notifications=session is not None),
            "serverInfo": self._server_info,
            "instructions": self._build_instructions(context.caller),
        }

    def _discover(self, params: Mapping[str, Any], context: RequestContext) -> Result:
        log_client_info("server/discover", params, context)
        return {
            "supportedVersions": [MODERN_REVISION],
            "capabilities": build_capabilities(notifications=True),
            "instructions": self._build_instructions(context.caller),
            # Never cached: instructions change with the downstream servers, and nobody is notified.
            "ttlMs": 0,
            "cacheScope": "private",
        }

    async def _subscribe(self, uri: str, caller: Caller, session: Session) -> None:
        if len(uri) > MAX_URI_LENGTH or len(session.subscriptions) >= MAX_SUBSCRIPTIONS:
            rule = f"must have at most {MAX_URI_LENGTH} characters, and be one of at most {MAX_SUBSCRIPTIONS}"
            raise InvalidArguments([Problem("uri", rule)])
        self._notifications.sessions.add(session)
        session.subscriptions[uri] = None
        try:
            await self._services.gateway.subscribe(uri, caller)
        except BaseException:
            session.subscriptions.pop(uri, None)
            raise
        if uri in session.subscriptions and session.subscriptions[uri] is None:
            session.subscriptions[uri] = caller
        else:  # it was unsubscribed or the session closed meanwhile
            self._services.gateway.unsubscribe(uri, caller)

    async def _listen(self, request: RpcRequest, context: RequestContext, channel: Channel | None) -> Result:
        """Send notifications until the client leaves or the server stops."""
        wanted = validate(ListenParams, request.params).notifications
        stream = None if channel is None else channel.open()
        if stream is None:
            raise InvalidRequest("subscriptions/listen is answered with an event stream only")
        accepted = {name: value for name, value in wanted.model_dump(by_alias=True).items() if value}
        kinds = frozenset(kind for kind in ("tools", "prompts", "resources") if f"{kind}ListChanged" in accepted)
        uris = accepted.get("resourceSubscriptions", [])
        listener = ChangeListener(request.id, context.caller, kinds, frozenset(uris), stream)
        self._notifications.add_listener(listener)
        listener.send("notifications/subscriptions/acknowledged", {"notifications": accepted})
        held = [uri for uri in dict.fromkeys(uris) if len(uri) <= MAX_URI_LENGTH][:MAX_SUBSCRIPTIONS]
        tasks = [asyncio.ensure_future(self._hold_subscription(uri, context.caller)) for uri in held]
        try:
            await listener.ended.wait()
        finally:
            self._notifications.listeners.discard(listener)
            for task in tasks:
                task.cancel()
        return {"_meta": {SUBSCRIPTION_ID_META: request.id}}

    async def _hold_subscription(self, uri: str, caller: Caller) -> None:
        """Keep a resource subscription while this task runs. A rejected subscription is only logged."""
        try:
            await self._services.gateway.subscribe(uri, caller)
        except RefdeskError as error:
            logger.info("subscription refused", extra={"fields": {"uri": uri[:200], "why": error.detail}})
            return
        try:
            await asyncio.Event().wait()
        finally:
            self._services.gateway.unsubscribe(uri, caller)


def log_client_info(method: str, params: Mapping[str, Any], context: RequestContext) -> None:
    """Log the client's name, version and protocol revision as it declares them, unverified."""
    meta = _get_member(params, "_meta")
    client_info = _get_member(params, "clientInfo") or _get_member(meta, CLIENT_INFO_META)
    fields = {
        "method": method,
        "client": _get_member(client_info, "name"),
        "version": _get_member(client_info, "version"),
        "revision": _get_member(params, "protocolVersion") or _get_member(meta, PROTOCOL_VERSION_META),
    }
    declared = {name: str(value)[:100] for name, value in fields.items() if value is not None}
    caller_fields = {"user": context.caller.user, "tenant": context.caller.tenant, "trace_id": context.trace_id}
    logger.info("client", extra={"fields": {**declared, **caller_fields}})


def _get_member(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else None
