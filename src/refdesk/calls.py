"""Core types of every layer: callers, calls, answers and events.

A call goes through each `Policy` to the `Handler` that answers it. Everything a client can request (a tool, a list, a
resource, a prompt) is a `Call`, so the same policies apply to all of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from random import getrandbits
from typing import Any, Literal, NewType, Protocol, get_args

from refdesk.errors import ClientCannot

TenantId = NewType("TenantId", str)
UserId = NewType("UserId", str)

DEFAULT_TENANT = TenantId("default")

WINDOW_METHOD = "internal/chunks/window"
"""Method that other services call for the chunks around a chunk. Not part of MCP."""

UPLOAD_METHOD = "internal/uploads"
"""Method that authorizes an upload. Not part of MCP."""

CONSOLE = "console/"
"""Prefix of the web console's methods. `policy.policies` defines who may call which."""

READER, WRITER, SERVICE, ADMIN = "reader", "writer", "service", "admin"
ROLES = (READER, WRITER, SERVICE, ADMIN)
"""Known roles. `policy.policies` defines them."""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""In order of increasing severity."""


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated or anonymous caller. Without authentication everyone is `anonymous`."""

    user: UserId = UserId("anonymous")
    tenant: TenantId = DEFAULT_TENANT
    roles: frozenset[str] = frozenset()
    authenticated: bool = False
    local: bool = False
    """Whether it's the user who runs this process, who may read every file that the process can."""
    toolsets: frozenset[str] | None = None
    """Toolsets that the key grants. None means all enabled ones."""
    servers: frozenset[str] | None = None
    """Downstream servers, or single tools (`server__tool`), that the key grants. None means all."""
    at_console: bool = False
    """Whether the console's own endpoint took the request, and no proxy forwarded it: only such a caller can administer
    a desk without keys."""


ANONYMOUS = Caller()
LOCAL = Caller(user=UserId("local"), authenticated=True, local=True)
"""The user who runs this process: stdio, the CLI, or a program that uses the library."""


class InputRequired(Exception):
    """Ends a call with `input_required`: the client calls again with the requested input."""

    def __init__(self, requests: Mapping[str, Mapping[str, Any]], state: str | None = None) -> None:
        """Initialize the exception.

        `state` is sealed before it's sent, and returned as `requestState` in the params of the next call.
        """
        super().__init__(", ".join(requests))
        self.requests = requests
        self.state = state


class ClientRefused(ClientCannot):
    """The client returned an error to a server's request. `error` has it."""

    def __init__(self, method: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"The client gave no usable answer to {method}.")
        self.error = error


class Client:
    """The client of a call, with callbacks while the call is open.

    This one has no callbacks: it's a plain HTTP request, the library or the CLI.
    """

    __slots__ = ()

    uses_input_required = False
    """Whether `ask` ends the call with InputRequired, and the client calls again with the answer."""

    @property
    def key(self) -> object:
        """Equal for all calls of one client connection. None if the call has no connection."""
        return None

    def can(self, method: str) -> bool:
        """Return whether the client supports `sampling/createMessage`, `elicitation/create` or `roots/list`."""
        return False

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress, if the caller has requested it."""

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        """Send a log message to the client."""

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to the client (elicitation, sampling, roots) and return its result.

        `name` identifies the request within the call. A client of the stateless revision calls again with the answer,
        so the handler runs from the start and must use the same name.
        """
        raise ClientCannot(
            f"This needs {method} from the client, which a plain request cannot answer. "
            "Connect with an MCP client that offers it."
        )


SILENT = Client()


def new_trace_id() -> str:
    """Return a random W3C trace id of 32 hexadecimal digits. Unique, not secret."""
    return f"{getrandbits(128):032x}"


@dataclass(frozen=True, slots=True)
class Annotations:
    """A tool's behaviour hints for clients."""

    read_only: bool = True
    destructive: bool = False
    idempotent: bool = True
    open_world: bool = False

    def wire(self) -> dict[str, bool]:
        """Return the hints in their wire shape, without the protocol's defaults and those implied by another."""
        if self.read_only:
            hints = {"readOnlyHint": True}
        else:
            hints = {"destructiveHint": False} if not self.destructive else {}
            hints |= {"idempotentHint": True} if self.idempotent else {}
        return hints if self.open_world else {**hints, "openWorldHint": False}


class RegistryEntry(ABC):
    """A tool or prompt in the registry. By default, it exists for every caller, and has the default timeout."""

    name: str
    toolset: str

    def seconds_for(self, call: Call) -> float | None:
        """Return the timeout of a call, if it differs from the default."""
        return None

    def is_open_to(self, caller: Caller) -> bool:
        """Return whether it exists for this caller. Toolsets and roles are checked elsewhere."""
        return True


class ToolEntry(RegistryEntry):
    """A tool in the registry."""

    title: str
    description: str
    annotations: Annotations
    is_listed = True
    """Whether it is in `tools/list`; unlisted tools can still be called."""

    @property
    @abstractmethod
    def input_schema(self) -> Mapping[str, Any]:
        """The whole schema of its arguments, without dynamic choices."""

    @property
    def is_live(self) -> bool:
        """Whether its entry depends on the caller and the time of the call."""
        return False

    @abstractmethod
    def listing(self, call: Call) -> dict[str, Any]:
        """Return its entry in `tools/list` for this caller."""

    @abstractmethod
    async def __call__(self, arguments: dict[str, Any], call: Call) -> dict[str, Any]:
        """Call the tool and return the result in its wire shape."""


@dataclass(slots=True)
class Call:
    """An authenticated request on its way to the handler.

    Immutable by convention, because freezing it would double the cost of creating one. Policies that change a call use
    `replace`.
    """

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    caller: Caller = ANONYMOUS
    client: Client = SILENT
    trace_id: str = field(default_factory=new_trace_id)
    toolsets: frozenset[str] | None = None
    """Toolsets that the connection requested. None means all enabled ones."""
    credential: str | None = field(default=None, repr=False)
    """The caller's credential, only for downstream servers that are configured to receive it."""
    project: str | None = None
    """Name or path of the current project, if the request gives it."""
    tool: ToolEntry | None = field(default=None, compare=False, repr=False)
    """The tool of `tools/call`, which `policy.policies` looks up once. None if it doesn't exist."""

    @property
    def target(self) -> str:
        """The name of the tool or prompt, the URI of the resource, or an empty string."""
        target = self.params.get("uri" if self.method.startswith("resources/") else "name")
        return target if isinstance(target, str) else ""


@dataclass(slots=True)
class Answer:
    """A result in wire format. Immutable by convention."""

    result: dict[str, Any]

    @property
    def is_error(self) -> bool:
        """Whether the tool reported a failure."""
        return self.result.get("isError") is True

    @property
    def structured(self) -> Any:
        """The structured content of a tool's answer, if any."""
        return self.result.get("structuredContent")

    @property
    def text(self) -> str:
        """The text of a tool's answer, its items separated by blank lines."""
        items = self.result.get("content", ())
        return "\n\n".join(item["text"] for item in items if item.get("type") == "text")


@dataclass(slots=True)
class Shortfalls:
    """Number of parts of a result that were skipped so far, because their work failed.

    An incomplete result is returned, but not cached. The code that skips a part marks it, and the cache asks. Code in
    between isn't involved.
    """

    count: int = 0


_shortfalls: ContextVar[Shortfalls | None] = ContextVar("refdesk.shortfalls", default=None)


@contextmanager
def track_shortfalls() -> Iterator[Shortfalls]:
    """Track the shortfalls in the block, and in the tasks started in it."""
    shortfalls = Shortfalls()
    token = _shortfalls.set(shortfalls)
    try:
        yield shortfalls
    finally:
        _shortfalls.reset(token)


def mark_partial_result() -> None:
    """Mark the current result as incomplete."""
    shortfalls = _shortfalls.get()
    if shortfalls is not None:
        shortfalls.count += 1


Handler = Callable[[Call], Awaitable[Answer]]


class Policy(Protocol):
    """Passes on a call, changes it, answers it or rejects it."""

    async def __call__(self, call: Call, proceed: Handler) -> Answer: ...


def chain(policies: Sequence[Policy], handler: Handler) -> Handler:
    """Return a handler that passes a call through every policy, the first one outermost."""
    for policy in reversed(policies):
        handler = partial(policy.__call__, proceed=handler)
    return handler


@dataclass(frozen=True, slots=True)
class ListChanged:
    """The result of `kind/list` has changed."""

    kind: str
    """`tools`, `resources` or `prompts`."""
    tenant: TenantId | None = None
    """The tenant whose list has changed. None means all."""

    def is_for(self, caller: Caller) -> bool:
        """Return whether a caller may be notified."""
        return self.tenant in (None, caller.tenant)


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    """A resource's content has changed."""

    uri: str
    tenant: TenantId | None = None
    """The tenant that the resource belongs to. None means all."""
    is_open_to: Callable[[Caller], bool] | None = field(default=None, compare=False, repr=False)
    """Further restricts who may be notified. None means no restriction."""

    def is_for(self, caller: Caller) -> bool:
        """Return whether a caller may be notified."""
        return self.tenant in (None, caller.tenant) and (self.is_open_to is None or self.is_open_to(caller))


Event = ListChanged | ResourceUpdated
Listener = Callable[[Event], None]


def text_content(text: str, **meta: Any) -> dict[str, Any]:
    """Return a text content item. Keyword arguments become its `_meta`."""
    return {"type": "text", "text": text, "_meta": meta} if meta else {"type": "text", "text": text}


def tool_answer(
    content: Sequence[Mapping[str, Any]], *, structured: Any = None, is_error: bool = False
) -> dict[str, Any]:
    """Return the result of `tools/call` in wire format."""
    result: dict[str, Any] = {"content": list(content)}
    if structured is not None:
        result["structuredContent"] = structured
    if is_error:
        result["isError"] = True
    return result


def resource_entry(name: str, title: str, description: str, media_type: str = "", **address: str) -> dict[str, Any]:
    """Return a list entry of a resource, whose address is `uri`, or of a template, whose address is `uriTemplate`."""
    entry = {**address, "name": name, "title": title, "description": description}
    return {**entry, "mimeType": media_type} if media_type else entry
