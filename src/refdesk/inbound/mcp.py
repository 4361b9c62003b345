"""The SDK's server as one more way in: its requests become calls, our answers and errors go back through it.

It validates nothing that the catalogue validates and decides nothing that a policy decides.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import mcp_types as types
from mcp.server.caching import CacheHint
from mcp.server.connection import Connection, allowed_log_levels
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ValidationError

from refdesk.calls import LOCAL, Call, InputRequired, LogLevel, new_trace_id
from refdesk.errors import ClientCannot, MethodNotFound, MissingCapability, RefdeskError
from refdesk.inbound.audience import Audience
from refdesk.inbound.services import Services
from refdesk.inbound.traces import in_trace
from refdesk.inbound.visitor import VISITOR, Visitor
from refdesk.inbound.wire import log_unforeseen, to_wire
from refdesk.problems import invalid_arguments
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
"""How long a client may reuse what it has: changes are announced to those who listen, others ask again in a minute."""

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
    """The SDK's server with our methods on it."""

    def __init__(self, services: Services, audience: Audience, state_key: bytes | None = None) -> None:
        """`state_key` seals what a client carries for us from one request to the next; processes that serve the same
        clients share it."""
        self.listeners = ListenHandler(audience.bus)
        super().__init__(
            NAME,
            version=__version__,
            title=TITLE,
            instructions=INSTRUCTIONS,
            cache_hints=dict.fromkeys(
                ("tools/list", "resources/list", "resources/templates/list", "resources/read", "prompts/list"), CACHE
            ),
            # Without it the SDK lists all tools on every call, to check headers.
            get_tool_input_schema=services.input_schema,
            on_subscriptions_listen=self._listen,
        )
        self._handle = services.handle
        self._audience = audience
        services.listen(audience.notice)
        sealed = RequestStateSecurity(keys=[state_key or secrets.token_bytes(32)], bind_principal=_bound_to)
        # In place of the SDK's tracing: spans are ours to make, and it costs a tenth of a call.
        self.middleware = [
            _in_our_words,
            RequestStateBoundary(sealed, default_audience=NAME),
        ]
        for method, params in METHODS.items():
            self.add_request_handler(method, params, self._serve)
        self.add_request_handler("resources/subscribe", types.SubscribeRequestParams, self._subscribe)
        self.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, self._unsubscribe)
        self.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self._set_level)
        self.add_notification_handler("notifications/initialized", types.NotificationParams, self._initialized)

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """As the SDK's, and announcing that lists may change."""
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
        )
        try:
            answer = await self._handle(call)
        except InputRequired as asked:
            return {"resultType": "input_required", "inputRequests": dict(asked.requests)}
        except (RefdeskError, MCPError, ValidationError):
            raise
        except Exception as error:
            log_unforeseen(error, call.trace_id)
            raise _sdk_error(error, call.trace_id) from error
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return {"resultType": "complete", **answer.result}
        return answer.result

    async def _initialized(self, ctx: Context, _: types.NotificationParams) -> None:
        self._audience.join(_connection(ctx), _visitor(ctx).caller.tenant)

    async def _listen(
        self, ctx: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        with self._audience.bus.listening(_visitor(ctx).caller.tenant):
            return await self.listeners(ctx, params)

    async def _subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        self._audience.subscribe(_connection(ctx), _visitor(ctx).caller.tenant, str(params.uri))
        return types.EmptyResult()

    async def _unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._audience.unsubscribe(_connection(ctx), str(params.uri))
        return types.EmptyResult()

    async def _set_level(self, ctx: Context, params: types.SetLevelRequestParams) -> types.EmptyResult:
        _connection(ctx).state["log_level"] = params.level
        return types.EmptyResult()


class SdkClient:
    """The way back to a client that is connected through the SDK."""

    def __init__(self, ctx: Context) -> None:
        self.context = ctx

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        await self.context.session.report_progress(done, total, message)

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        if level in self._wanted_levels():
            params = types.LoggingMessageNotificationParams(level=level, data=data, logger=logger)
            await self.context.session.send_notification(
                types.LoggingMessageNotification(params=params), related_request_id=self.context.request_id
            )

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if self.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return self._ask_by_ending(name, method, params)
        if not self.context.session.can_send_request:
            raise ClientCannot(f"This needs {method} from the client, over a session; connect with one.")
        if not self._declares(method):
            raise ClientCannot(f"This needs {method} from the client, which has not declared that it offers it.")
        question = _QUESTIONS[method]
        try:
            answer = await self.context.session.send_request(
                question.request.model_validate({"method": method, "params": params}, by_name=False),
                question.result,
                metadata=ServerMessageMetadata(related_request_id=self.context.request_id),
            )
        except (MCPError, ValidationError) as error:
            raise ClientCannot(f"The client gave no usable answer to {method}.") from error
        return answer.model_dump(by_alias=True, mode="json", exclude_none=True)

    def _ask_by_ending(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        given = (self.context.params or {}).get("inputResponses") or {}
        if name in given:
            answer: Mapping[str, Any] = given[name]
            return answer
        if not self._declares(method):
            raise MissingCapability(_QUESTIONS[method].capability)
        raise InputRequired({name: {"method": method, "params": params}})

    def _declares(self, method: str) -> bool:
        capabilities = self.context.session.client_capabilities
        return getattr(capabilities, _QUESTIONS[method].capability, None) is not None

    def _wanted_levels(self) -> frozenset[LogLevel]:
        allowed = allowed_log_levels(self.context.protocol_version, self.context.meta)
        if self.context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return allowed
        threshold = _connection(self.context).state.get("log_level", "debug")
        return frozenset(_LEVELS[_LEVELS.index(threshold) :])


_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the most severe."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What a client can be asked, and the capability by which it says so."""

    request: type[Any]
    result: type[BaseModel]
    capability: str


_QUESTIONS: Mapping[str, _Question] = {
    "elicitation/create": _Question(types.ElicitRequest, types.ElicitResult, "elicitation"),
    "sampling/createMessage": _Question(types.CreateMessageRequest, types.CreateMessageResult, "sampling"),
    "roots/list": _Question(types.ListRootsRequest, types.ListRootsResult, "roots"),
}


def log_arrival(method: str, params: Any, visitor: Visitor) -> None:
    """A client's first words, which tell what it is; nobody has checked them yet."""
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
    """Errors of ours in the SDK's type, and the SDK's own with the data that all of ours carry."""
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
    """Who asked: what the HTTP door left for us, or the owner of this process on standard input."""
    if ctx.request is None:
        return Visitor(LOCAL, new_trace_id(), None)
    visitor: Visitor = ctx.request.scope[VISITOR]
    return visitor


def _bound_to(ctx: Context) -> str:
    """Whom a request's state belongs to: nobody else can bring it back."""
    caller = _visitor(ctx).caller
    return f"{caller.tenant!r} {caller.user!r}"


def _connection(ctx: Context) -> Connection:
    # The SDK keeps it private until its context is reworked; pinned below 2.4 for this among other things.
    return ctx.session._connection
