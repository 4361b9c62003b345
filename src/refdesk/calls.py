"""The words that every layer speaks: who calls, what is asked, what is answered.

A call runs one way, through `Policy` after `Policy`, to the `Handler` that answers it. Whatever a client can ask for
(a tool, a list, a resource, a prompt) is a `Call`, so that one chain stands around all of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import getrandbits
from typing import Any, Literal, NewType, Protocol, get_args

from refdesk.errors import ClientCannot

TenantId = NewType("TenantId", str)
UserId = NewType("UserId", str)

DEFAULT_TENANT = TenantId("default")

WINDOW_METHOD = "internal/chunks/window"
"""Not one of MCP's: what other services call for the chunks around a chunk."""

UPLOAD_METHOD = "internal/uploads"
"""Not one of MCP's either: leave to send a file."""

CONSOLE = "console/"
"""What the methods of the web console begin with; `policy.permissions` says who may call which."""

READER, WRITER, SERVICE, ADMIN = "reader", "writer", "service", "admin"
ROLES = (READER, WRITER, SERVICE, ADMIN)
"""The roles that mean something here; `policy.permissions` says what."""

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
LOG_LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
"""From the least to the most severe."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `anonymous` is what a desk without authentication calls everybody."""

    user: UserId = UserId("anonymous")
    tenant: TenantId = DEFAULT_TENANT
    roles: frozenset[str] = frozenset()
    authenticated: bool = False
    local: bool = False
    """Whether it is the owner of this process, who may read here whatever the process can."""
    toolsets: frozenset[str] | None = None
    """The toolsets that its key opens; None means all that are switched on."""
    servers: frozenset[str] | None = None
    """The servers behind the desk, or single tools of theirs (`server__tool`), that its key opens; None means all."""
    proxied: bool = False
    """Whether something on the way says that it passes on what others ask, wherever they may be."""


ANONYMOUS = Caller()
LOCAL = Caller(user=UserId("local"), authenticated=True, local=True)
"""The owner of this process: standard input, the command line, a program that uses the library."""


class InputRequired(Exception):
    """A client without a way back is asked by ending its call: it calls again with what was asked for."""

    def __init__(self, requests: Mapping[str, Mapping[str, Any]], state: str | None = None) -> None:
        """`state` is sealed on its way out, and comes back as `requestState` in the params of the next call."""
        super().__init__(", ".join(requests))
        self.requests = requests
        self.state = state


class ClientRefused(ClientCannot):
    """The client answered a question with an error; `error` is that error, to be passed on to whoever asked."""

    def __init__(self, method: str, error: Mapping[str, Any]) -> None:
        super().__init__(f"The client gave no usable answer to {method}.")
        self.error = error


class Client(Protocol):
    """The way back to whoever asked, while their call is open."""

    @property
    def key(self) -> object:
        """Equal for the calls of one client connection; None where a call has none."""
        ...

    @property
    def asks_by_ending(self) -> bool:
        """Whether `ask` ends the call by InputRequired, and the client calls again with the answer."""
        ...

    def can(self, method: str) -> bool:
        """Whether it can be asked this: `sampling/createMessage`, `elicitation/create` or `roots/list`."""
        ...

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress; silent when the caller did not ask for it."""
        ...

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        """Send a log message to the client."""
        ...

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Have the client answer a request of ours (elicitation, sampling, roots).

        `name` identifies the question within the call: a client of the stateless revision is asked by ending the call
        and gets the answer in when it calls again, so the handler runs from the start and must ask under the same name.
        """
        ...


class SilentClient:
    """A caller that can be told nothing before the answer: plain HTTP, the library, the command line."""

    key: object = None
    asks_by_ending = False

    def can(self, method: str) -> bool:
        return False

    async def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        return

    async def log(self, level: LogLevel, data: Any, logger: str | None = None) -> None:
        return

    async def ask(self, name: str, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        raise ClientCannot(
            f"This needs {method} from the client, which a plain request cannot answer. "
            "Connect with an MCP client that offers it."
        )


SILENT = SilentClient()


def new_trace_id() -> str:
    """A fresh W3C trace id: 32 hexadecimal digits. Unique, not secret."""
    return f"{getrandbits(128):032x}"


@dataclass(slots=True)
class Call:
    """One request, after the door and before its answer.

    Not to be changed, though not frozen, which would double the cost of making one: a policy that wants another call
    makes it with `replace`.
    """

    method: str
    params: Mapping[str, Any] = field(default_factory=dict)
    caller: Caller = ANONYMOUS
    client: Client = SILENT
    trace_id: str = field(default_factory=new_trace_id)
    toolsets: frozenset[str] | None = None
    """The toolsets this connection asked for; None means all that are switched on."""
    credential: str | None = field(default=None, repr=False)
    """What the caller presented: only for a server behind the desk that is set to be given it."""

    @property
    def target(self) -> str:
        """What is called: the tool's or prompt's name, the resource's URI, or nothing."""
        target = self.params.get("uri" if self.method.startswith("resources/") else "name")
        return target if isinstance(target, str) else ""


@dataclass(slots=True)
class Answer:
    """A result, in the shape that it has on the wire. Not to be changed either."""

    result: dict[str, Any]

    @property
    def is_error(self) -> bool:
        """Whether a tool reported a failure of its own."""
        return self.result.get("isError") is True

    @property
    def structured(self) -> Any:
        """The structured content of a tool's answer, if it has any."""
        return self.result.get("structuredContent")

    @property
    def text(self) -> str:
        """The text of a tool's answer, its items set apart by a blank line."""
        items = self.result.get("content", ())
        return "\n\n".join(item["text"] for item in items if item.get("type") == "text")


Handler = Callable[[Call], Awaitable[Answer]]


class Policy(Protocol):
    """Let a call through, change it, answer it, or refuse it."""

    async def __call__(self, call: Call, proceed: Handler) -> Answer: ...


@dataclass(frozen=True, slots=True)
class ListChanged:
    """What `kind/list` answers is different now."""

    kind: str
    """`tools`, `resources` or `prompts`."""
    tenant: TenantId | None = None
    """Whose list it is; None means everybody's."""

    def is_for(self, caller: Caller) -> bool:
        """Whether a caller may hear of it."""
        return self.tenant in (None, caller.tenant)


@dataclass(frozen=True, slots=True)
class ResourceUpdated:
    """A resource that a client may have subscribed to has new content."""

    uri: str
    tenant: TenantId | None = None
    """Whose resource it is; None means everybody's."""
    is_open_to: Callable[[Caller], bool] | None = field(default=None, compare=False, repr=False)
    """Who of them may know of it; None means all."""

    def is_for(self, caller: Caller) -> bool:
        """Whether a caller may hear of it."""
        return self.tenant in (None, caller.tenant) and (self.is_open_to is None or self.is_open_to(caller))


Event = ListChanged | ResourceUpdated
Listener = Callable[[Event], None]


def text_content(text: str, **meta: Any) -> dict[str, Any]:
    """A text item; keyword arguments become its `_meta`."""
    return {"type": "text", "text": text, "_meta": meta} if meta else {"type": "text", "text": text}


def tool_answer(
    content: Sequence[Mapping[str, Any]], *, structured: Any = None, is_error: bool = False
) -> dict[str, Any]:
    """The result of `tools/call` in its wire shape."""
    result: dict[str, Any] = {"content": list(content)}
    if structured is not None:
        result["structuredContent"] = structured
    if is_error:
        result["isError"] = True
    return result
