"""Client of one MCP server, as returned by `refdesk.connect`.

The connection below it reconnects, applies timeouts and has the circuit breaker.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from refdesk.config.server_model import McpServerConfig
from refdesk.downstream.client.handlers import Handlers, OnProgress
from refdesk.downstream.client.messages import ServerCapabilities, ServerInfo, ToolDefinition
from refdesk.downstream.connection.connection import Connection, Status
from refdesk.downstream.jsonrpc import Message
from refdesk.downstream.session import LISTS, ListName, ServerProfile, SessionOptions
from refdesk.errors import (
    DependencyError,
    ServerAway,
    ServerLacks,
    ServerRefused,
    ServerTalksNonsense,
    ServerTooSlow,
    UnknownTool,
)
from refdesk.resilience.dependency import BreakerLog, compute_pause
from refdesk.support.tasks import wait_all

if TYPE_CHECKING:
    from refdesk.downstream.client.conversion_routing import Form, ServerDocument

logger = logging.getLogger(__name__)

MAX_NOTIFICATIONS = 1000
"""Notifications outside of calls that are queued for the handlers. More are dropped."""

MAX_ROUNDS = 10
"""How often a server may request input before it has to return a result."""

Definition = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call. `raw` is the whole object."""

    raw: Mapping[str, Any]

    @classmethod
    def of(cls, server: str, raw: Mapping[str, Any]) -> ToolResult:
        """Validate a raw result: its content is a list of objects, and text items have text."""
        content = raw.get("content", [])
        if isinstance(content, list) and all(
            isinstance(item, dict) and (item.get("type") != "text" or isinstance(item.get("text"), str))
            for item in content
        ):
            return cls(raw)
        raise ServerTalksNonsense(f"The server {server!r} returned a result with malformed content")

    @property
    def content(self) -> Sequence[Mapping[str, Any]]:
        """Content items: text, images, audio, links, resources."""
        items: Sequence[Mapping[str, Any]] = self.raw.get("content", ())
        return items

    @property
    def structured(self) -> Any:
        """The structured content, if any."""
        return self.raw.get("structuredContent")

    @property
    def text(self) -> str:
        """The text of all text items, separated by blank lines."""
        return "\n\n".join(item["text"] for item in self.content if item.get("type") == "text")

    @property
    def is_error(self) -> bool:
        """Whether the tool failed. The text says why."""
        return self.raw.get("isError") is True


@dataclass(eq=False, repr=False)
class ToolCache:
    """Tool definitions with a time to live. Concurrent refreshes are coalesced."""

    _fetch: Callable[[], Awaitable[Sequence[Definition]]]
    _ttl_seconds: float
    _now: Callable[[], float] = time.monotonic
    _tools: Mapping[str, Definition] | None = field(default=None, init=False)
    _expires_at: float = field(default=0.0, init=False)
    _generation: int = field(default=0, init=False)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def invalidate(self) -> None:
        """Expire the cache: the tools are fetched before they are used again."""
        self._generation += 1
        self._expires_at = 0.0

    def clear(self) -> None:
        """Clear the cache, so that no stale tools are returned even if the server is unavailable."""
        self.invalidate()
        self._tools = None

    async def all(self) -> Mapping[str, Definition]:
        """Return the tools by name. Stale ones are returned if the server is unavailable."""
        async with self._lock:
            if self._tools is not None and self._now() < self._expires_at:
                return self._tools
            return await self._refresh()

    async def find(self, name: str) -> Definition | None:
        """Return one tool. An unknown name causes one refresh, because the tool may be new."""
        known = self._tools
        tools = await self.all()
        if name not in tools and tools is known:
            self.invalidate()
            tools = await self.all()
        return tools.get(name)

    async def _refresh(self) -> Mapping[str, Definition]:
        generation = self._generation
        try:
            tools = {tool["name"]: tool for tool in await self._fetch()}
        except DependencyError as error:
            if self._tools is None:
                raise
            logger.warning("client.tools_are_old", extra={"fields": {"why": error.detail[:200]}})
            return self._tools
        self._tools = tools
        if generation == self._generation:
            self._expires_at = self._now() + self._ttl_seconds
        return tools


class Client:
    """A connected server, for the duration of the `async with` block."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        handlers: Handlers,
        *,
        protocol_version: str | None,
        tool_cache_seconds: float,
        require_tools: bool,
        client_info: Mapping[str, Any],
        on_status: Callable[[Status], None] | None = None,
    ) -> None:
        self.name = name
        self._handlers = handlers
        self._requires_tools = require_tools
        self._missing_tools: ServerLacks | None = None
        self._failures = 0
        self._on_status = on_status
        self._is_ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._notifications: asyncio.Queue[tuple[str, Mapping[str, Any]]] = asyncio.Queue(MAX_NOTIFICATIONS)
        has_call_handlers = handlers.capabilities or handlers.progress or handlers.log
        self._callbacks = handlers if has_call_handlers else None
        self._connection = Connection(
            name,
            settings,
            protocol_version=protocol_version,
            on_notification=self._on_notification,
            on_status=self._handle_status,
            options=SessionOptions(handlers.capabilities, self._check, self._callbacks, client_info),
        )
        self._connection.dependency.watch(BreakerLog())
        self._tools = ToolCache(partial(self._list, "tools"), tool_cache_seconds)

    # Connection

    @property
    def status(self) -> Status:
        """`Starting`, `Running`, `Error` with a message, or `Stopped`. `status.text` is the short form."""
        return self._connection.status

    @property
    def breaker(self) -> str:
        """`closed`, `open` while calls are blocked after failures, or `half_open` while one call may try."""
        return self._connection.dependency.state

    @property
    def server(self) -> ServerInfo:
        """The server's description of itself: `name`, `version` and so on."""
        return cast("ServerInfo", self._profile.info)

    @property
    def protocol_version(self) -> str:
        """The negotiated MCP version."""
        return self._profile.version

    @property
    def instructions(self) -> str | None:
        """The server's usage instructions."""
        return self._profile.instructions

    @property
    def capabilities(self) -> ServerCapabilities:
        """What the server declared to support."""
        return cast("ServerCapabilities", self._profile.capabilities)

    def has_capability(self, capability: str) -> bool:
        """Whether the server declared a capability, or part of one: `tools`, `tools.listChanged`."""
        return self._profile.has(capability)

    def describe(self) -> dict[str, Any]:
        """Return the state of the connection for a health check, without secrets."""
        return self._connection.describe()

    def set_timeouts(self, call: float | None = None, lists: float | None = None, connect: float | None = None) -> None:
        """Change the timeouts for calls, lists or connecting, from the next one on."""
        given = {"call": call, "capabilities": lists, "connect": connect}
        update = {f"{phase}_timeout_seconds": seconds for phase, seconds in given.items() if seconds is not None}
        self._connection.settings = self._connection.settings.model_copy(update=update)

    # Tools, prompts and resources

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  the server is notified when it expires
        progress: OnProgress | None = None,
    ) -> ToolResult:
        """Call a tool and return its result. A tool that failed has `is_error` set.

        `progress` receives the progress of this call, instead of `on_progress`. Raises ServerRefused with the server's
        own error, ServerTooSlow, ServerGone, ServerAway, ServerTalksNonsense or BreakerOpen. `map_error` maps them all.
        """
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments or {})}
        if progress is not None or self._handlers.progress is not None:
            params["_meta"] = {"progressToken": "1"}
        return ToolResult.of(self.name, await self._request("tools/call", params, timeout, progress))

    async def tools(self) -> tuple[ToolDefinition, ...]:
        """Return the definitions of all tools, at most as old as the cache allows."""
        return cast("tuple[ToolDefinition, ...]", tuple((await self._tools.all()).values()))

    async def tool(self, name: str) -> ToolDefinition:
        """Return the definition of a tool. Raises UnknownTool if a fresh list doesn't have it either."""
        found = await self._tools.find(name)
        if found is None:
            raise UnknownTool(f"The server {self.name!r} has no tool {name[:100]!r}")
        return cast("ToolDefinition", found)

    async def tool_schema(self, name: str) -> Mapping[str, Any]:
        """Return the input schema of a tool."""
        return (await self.tool(name)).get("inputSchema") or {"type": "object"}

    def invalidate(self) -> None:
        """Clear the tool cache."""
        self._tools.clear()

    async def prompts(self) -> list[dict[str, Any]]:
        """Return the prompts, or none if the server doesn't declare any."""
        return await self._list("prompts")

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """Render a prompt and return the result with its `messages`."""
        return await self._request("prompts/get", {"name": name, "arguments": dict(arguments or {})})

    async def resources(self) -> list[dict[str, Any]]:
        """Return the resources, or none if the server doesn't declare any."""
        return await self._list("resources")

    async def resource_templates(self) -> list[dict[str, Any]]:
        """Return the resource templates, or none if the server doesn't declare resources."""
        return await self._list("templates")

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """Return the contents of a resource."""
        contents = (await self._request("resources/read", {"uri": uri})).get("contents")
        if not isinstance(contents, list):
            raise ServerTalksNonsense(f"The server {self.name!r} returned a resource without contents")
        return contents

    async def subscribe(self, uri: str) -> None:
        """Subscribe to changes of a resource, reported to `on_change`. Reconnecting restores the subscription."""
        await self._connection.request("resources/subscribe", {"uri": uri})

    async def unsubscribe(self, uri: str) -> None:
        """Cancel a subscription."""
        await self._connection.request("resources/unsubscribe", {"uri": uri})

    async def complete(
        self, ref: Mapping[str, Any], argument: str, value: str, context: Mapping[str, str] | None = None
    ) -> list[str]:
        """Return completions for the value of an argument.

        `ref` is `{"type": "ref/prompt", "name": …}` or `{"type": "ref/resource", "uri": …}`. `context` has the
        arguments that are already set.
        """
        params: dict[str, Any] = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        completion = (await self._request("completion/complete", params)).get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [value for value in values or () if isinstance(value, str)]

    async def ping(self) -> float:
        """Ping the server and return the response time in seconds."""
        started = time.monotonic()
        await self._connection.request("server/discover" if self._profile.is_modern else "ping")
        return time.monotonic() - started

    async def set_log_level(self, level: str) -> None:
        """Set the minimum level for `on_log`. Reconnecting restores it."""
        await self._connection.request("logging/setLevel", {"level": level})

    async def restart(self) -> None:
        """Close the connection and open a new one."""
        await self._connection.restart()

    # Document conversion

    async def convert(
        self,
        source: str | os.PathLike[str],
        *,
        send: Literal["path", "bytes"] | None = None,
        progress: OnProgress | None = None,
    ) -> ServerDocument:
        """Convert a file or URL with the matching tool, with a timeout that depends on its size.

        A file is sent as `bytes` if the server accepts them and it's small enough, or else by its `path`. Raises
        CannotOpen, CannotFetch or CannotConvert if there is no route, UnknownTool if the server has no such tool, and
        ServerRefused with -32002 if the conversion failed.
        """
        from refdesk.downstream.client import conversion_routing

        return await conversion_routing.convert(self, source, send, progress)

    async def export(self, document: str | ServerDocument | Mapping[str, Any], form: Form = "markdown") -> str:
        """Export a whole document as Markdown, HTML or JSON, by its handle or from a DoclingDocument."""
        from refdesk.downstream.client import conversion_routing

        return await conversion_routing.export(self, document, form)

    # Connection events

    def _on_notification(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """Queue a notification that belongs to no call."""
        if method == "notifications/tools/list_changed":
            self._tools.invalidate()
        with suppress(asyncio.QueueFull):
            self._notifications.put_nowait((method, params))

    def _handle_status(self, connection: Connection) -> None:
        status = connection.status
        if self._on_status is not None:
            asyncio.get_running_loop().call_soon(self._on_status, status)
        if status.state == "Running":
            if connection.settings.session != "short":
                self._tools.invalidate()  # the server may have been updated
            if not self._is_ready.done():
                self._is_ready.set_result(None)
        elif status.state == "Error" and not self._is_ready.done():
            self._failures += 1
            if self._missing_tools is not None or self._failures >= connection.settings.connect_tries:
                self._is_ready.set_exception(
                    self._missing_tools or connection.connect_error or ServerAway(status.message)
                )
                self._is_ready.exception()  # retrieved here: the waiter may be cancelled

    def _check(self, profile: ServerProfile) -> None:
        """Reject a server without tools before the handshake completes, if tools are required."""
        if self._requires_tools and not profile.has("tools"):
            self._missing_tools = ServerLacks(f"The server {self.name!r} does not declare that it has tools")
            raise self._missing_tools

    # Internals

    @asynccontextmanager
    async def run(self, log_level: str) -> AsyncIterator[Client]:
        """Connect, yield the client, and release everything at the end."""

        async def dispatch_notifications() -> None:
            while True:
                await self._handlers.tell(*await self._notifications.get())

        connection = asyncio.create_task(self._connection.run(), name=f"client {self.name}")
        dispatcher = asyncio.create_task(dispatch_notifications(), name=f"client {self.name} news")
        try:
            await self._wait_until_ready(connection, log_level)
            yield self
        finally:
            for task in (connection, dispatcher):
                task.cancel()
            await wait_all((connection, dispatcher))

    async def _wait_until_ready(self, running: asyncio.Task[None], log_level: str) -> None:
        if self._connection.settings.session == "short":
            await self._connect_ephemeral()
        else:
            await asyncio.wait({self._is_ready, running}, return_when=asyncio.FIRST_COMPLETED)
            if not self._is_ready.done():
                await running
            self._is_ready.result()
        if self.has_capability("tools"):
            await self._tools.all()
        if self._handlers.log is not None and self.has_capability("logging"):
            try:
                await self.set_log_level(log_level)
            except ServerRefused as error:
                logger.info("client.log_level_refused", extra={"fields": {"server": self.name, "why": error.detail}})

    async def _connect_ephemeral(self) -> None:
        """Try to reach a server that is connected to for each operation."""
        tries = self._connection.settings.connect_tries
        for attempt in range(1, tries + 1):
            try:
                with suppress(ServerRefused):  # an error is an answer, too
                    await self._connection.request("ping")
                return
            except DependencyError as error:
                if attempt == tries or not error.retryable:
                    raise
            await asyncio.sleep(compute_pause(attempt, None, 30.0, random.random()) or 0.0)

    @property
    def _profile(self) -> ServerProfile:
        profile = self._connection.server_profile
        if profile is None:
            raise ServerAway(f"The server {self.name!r} has not been connected to yet")
        return profile

    async def _list(self, name: ListName) -> list[dict[str, Any]]:
        return await self._connection.list_all(name) if self.has_capability(LISTS[name].capability) else []

    async def _request(
        self, method: str, params: Mapping[str, Any], seconds: float | None = None, progress: OnProgress | None = None
    ) -> Mapping[str, Any]:
        """Send a request. While its result requires input, repeat it with the answers, within the timeout in total."""
        callbacks = self._callbacks if progress is None else replace(self._handlers, progress=progress)
        result = await self._connection.request(method, params, callbacks=callbacks, seconds=seconds)
        if result.get("resultType") != "input_required":
            return result
        limit = self._connection.settings.call_timeout_seconds if seconds is None else seconds
        callbacks = callbacks or self._handlers
        try:
            async with asyncio.timeout(limit):
                for _ in range(MAX_ROUNDS):
                    again = {**params, **await self._answer_input_requests(result, callbacks)}
                    result = await self._connection.request(method, again, callbacks=callbacks, seconds=limit)
                    if result.get("resultType") != "input_required":
                        return result
        except DependencyError:
            raise
        except TimeoutError:
            message = f"The server {self.name!r} had no answer within {limit:g} s of its questions"
            raise ServerTooSlow(message) from None
        raise ServerTalksNonsense(f"The server {self.name!r} asked {MAX_ROUNDS} times without an answer")

    async def _answer_input_requests(self, result: Message, callbacks: Handlers) -> dict[str, Any]:
        """Return the parameters to add to the repeated call."""
        requests = result.get("inputRequests")
        if not isinstance(requests, dict) or not all(
            isinstance(each, dict)
            and isinstance(each.get("method"), str)
            and isinstance(each.get("params", {}), (dict, type(None)))
            for each in requests.values()
        ):
            raise ServerTalksNonsense(f"The server {self.name!r} requires input but sent no valid requests")
        answers = {
            name: await callbacks.ask(name, each["method"], each.get("params") or {}) for name, each in requests.items()
        }
        state = {"requestState": result["requestState"]} if "requestState" in result else {}
        return {"inputResponses": answers, **state}
