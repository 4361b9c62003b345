"""One MCP server for one program: what `async with refdesk.connect(target) as client` gives.

The connection below it reconnects, bounds and breaks; here are the words that a program uses, and its functions that a
server may ask.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal

from refdesk.config.servers import McpServerConfig
from refdesk.downstream.client.handlers import HandlerCallbacks, Handlers, OnProgress
from refdesk.downstream.client.known_tools import Definition, ToolCache
from refdesk.downstream.client.results import ToolResult
from refdesk.downstream.client.rounds import resolve_input_requests
from refdesk.downstream.connection.connection import Connection, Status
from refdesk.downstream.session import Greeting, SessionOptions
from refdesk.errors import (
    DependencyError,
    ServerAway,
    ServerLacks,
    ServerRefused,
    ServerTalksNonsense,
    UnknownTool,
)
from refdesk.resilience.retries import pause_before

if TYPE_CHECKING:
    from refdesk.downstream.client.converting import Form, RemoteDocument

logger = logging.getLogger(__name__)

MAX_NOTIFICATIONS = 1000
"""What a server may say outside of calls before its program has taken any of it; more is dropped."""


class Client:
    """A server that is connected to, and stays so as long as the block around it lasts."""

    def __init__(
        self,
        name: str,
        settings: McpServerConfig,
        handlers: Handlers,
        *,
        protocol_version: str | None,
        tool_cache_seconds: float,
        require_tools: bool,
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
        self._voice = HandlerCallbacks(handlers) if handlers.has_call_handlers else None
        self._connection = Connection(
            name,
            settings,
            protocol_version=protocol_version,
            heard=self,
            changed=self._handle_status,
            options=SessionOptions(handlers.capabilities, self._check, self._voice),
        )
        self._tools = ToolCache(self._list_tools, tool_cache_seconds)

    # What it is connected to.

    @property
    def status(self) -> Status:
        """`Starting`, `Running`, `Error` with why, or `Stopped`; `status.text` is that in a word."""
        return self._connection.status

    @property
    def breaker(self) -> str:
        """`closed`, `open` while the server is left alone after failures, `half_open` while one call may try it."""
        return self._connection.dependency.state

    @property
    def server(self) -> Mapping[str, Any]:
        """What the server calls itself: `name`, `version`, and so on."""
        return self._profile.info

    @property
    def protocol_version(self) -> str:
        """The revision of MCP that is spoken."""
        return self._profile.version

    @property
    def instructions(self) -> str | None:
        """How the server says that it wants to be used."""
        return self._profile.instructions

    def has_capability(self, capability: str) -> bool:
        """Whether the server declared a capability, or a part of one: `tools`, `tools.listChanged`."""
        return self._profile.has(capability)

    def describe(self) -> dict[str, Any]:
        """All that is known of the connection, for a health check; without secrets."""
        return self._connection.describe()

    def set_timeouts(self, call: float | None = None, lists: float | None = None, connect: float | None = None) -> None:
        """Give calls, lists or connecting another time, from the next one on."""
        connection = self._connection
        connection.call_seconds = connection.call_seconds if call is None else call
        connection.capabilities_seconds = connection.capabilities_seconds if lists is None else lists
        connection.connect_seconds = connection.connect_seconds if connect is None else connect

    # What it offers.

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  the server is told when it is over
        progress: OnProgress | None = None,
    ) -> ToolResult:
        """The result of a tool, which may be that it failed: `is_error`.

        `progress` hears of this call's steps, before `on_progress`. Raises ServerRefused with the server's own error,
        ServerTooSlow, ServerGone, ServerAway, ServerTalksNonsense or BreakerOpen; `map_error` makes one thing of all.
        """
        params: dict[str, Any] = {"name": tool, "arguments": dict(arguments or {})}
        if progress is not None or self._handlers.progress is not None:
            params["_meta"] = {"progressToken": "1"}
        return ToolResult.of(self.name, await self._request("tools/call", params, timeout, progress))

    async def tools(self) -> tuple[Definition, ...]:
        """The definitions of all tools, no older than the time that they are kept for."""
        return tuple((await self._tools.all()).values())

    async def tool(self, name: str) -> Definition:
        """The definition of a tool; UnknownTool when the server, asked once more, still has none of that name."""
        found = await self._tools.find(name)
        if found is None:
            raise UnknownTool(f"The server {self.name!r} has no tool {name[:100]!r}")
        return found

    async def tool_schema(self, name: str) -> Mapping[str, Any]:
        """What the arguments of a tool have to be."""
        schema: Mapping[str, Any] = (await self.tool(name)).get("inputSchema") or {"type": "object"}
        return schema

    def invalidate(self) -> None:
        """Forget the tools: whoever wants them next has the server asked."""
        self._tools.clear()

    async def prompts(self) -> list[dict[str, Any]]:
        """The prompts; none for a server that does not declare any."""
        return await self._list("prompts/list", "prompts", "prompts")

    async def prompt(self, name: str, arguments: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """A prompt filled in: its `messages`."""
        return await self._request("prompts/get", {"name": name, "arguments": dict(arguments or {})})

    async def resources(self) -> list[dict[str, Any]]:
        """The resources; none for a server that does not declare any."""
        return await self._list("resources/list", "resources", "resources")

    async def resource_templates(self) -> list[dict[str, Any]]:
        """The templates of resources; none for a server that does not declare resources."""
        return await self._list("resources/templates/list", "resourceTemplates", "resources")

    async def read(self, uri: str) -> list[dict[str, Any]]:
        """The contents of a resource."""
        contents = (await self._request("resources/read", {"uri": uri})).get("contents")
        if not isinstance(contents, list):
            raise ServerTalksNonsense(f"The server {self.name!r} gave a resource without contents")
        return contents

    async def subscribe(self, uri: str) -> None:
        """Have `on_change` told when a resource is another, also by the sessions after this one."""
        await self._connection.request("resources/subscribe", {"uri": uri})

    async def unsubscribe(self, uri: str) -> None:
        """Have it told no more."""
        await self._connection.request("resources/unsubscribe", {"uri": uri})

    async def complete(
        self,
        ref: Mapping[str, Any],
        argument: str,
        value: str,
        context: Mapping[str, str] | None = None,
    ) -> list[str]:
        """How the value of an argument could go on. `ref` is `{"type": "ref/prompt", "name": …}` or
        `{"type": "ref/resource", "uri": …}`; `context` are the arguments that are there already."""
        params: dict[str, Any] = {"ref": dict(ref), "argument": {"name": argument, "value": value}}
        if context:
            params["context"] = {"arguments": dict(context)}
        completion = (await self._request("completion/complete", params)).get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        return [value for value in values or () if isinstance(value, str)]

    async def ping(self) -> float:
        """The seconds that the server takes to say that it is there."""
        started = time.monotonic()
        await self._connection.request("server/discover" if self._profile.is_modern else "ping")
        return time.monotonic() - started

    async def set_log_level(self, level: str) -> None:
        """From which level on the server is to tell `on_log`; it is told anew in every session."""
        await self._connection.request("logging/setLevel", {"level": level})

    async def restart(self) -> None:
        """Close the connection and open another."""
        await self._connection.restart()

    # Documents, by a server that converts them.

    async def convert(
        self,
        source: str | os.PathLike[str],
        *,
        send: Literal["path", "bytes"] | None = None,
        progress: OnProgress | None = None,
    ) -> RemoteDocument:
        """Have a file or an address converted by the tool that is for it, in the time that it has by its size.

        A file is sent as `bytes` where the server takes them and it is small enough, and named by its `path` otherwise.
        Raises CannotOpen, CannotFetch or CannotConvert for what cannot be routed, UnknownTool when the server converts
        no such thing, ServerRefused with -32002 when it tried.
        """
        from refdesk.downstream.client import converting

        return await converting.convert(self, source, send, progress)

    async def export(self, document: str | RemoteDocument | Mapping[str, Any], form: Form = "markdown") -> str:
        """The whole of a converted document as Markdown, HTML or JSON: by its handle, or a DoclingDocument itself."""
        from refdesk.downstream.client import converting

        return await converting.export(self, document, form)

    # What the connection calls.

    def noticed(self, connection: Connection, method: str, params: Mapping[str, Any]) -> None:
        """What belongs to no call."""
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
                self._tools.invalidate()  # it may be another version of itself
            if not self._is_ready.done():
                self._is_ready.set_result(None)
        elif status.state == "Error" and not self._is_ready.done():
            self._failures += 1
            if self._missing_tools is not None or self._failures >= connection.settings.connect_tries:
                self._is_ready.set_exception(self._missing_tools or ServerAway(status.message))
                self._is_ready.exception()  # whoever waited for it may have gone meanwhile

    def _check(self, profile: Greeting) -> None:
        """Before the handshake is completed: whether this server will do at all."""
        if self._requires_tools and not profile.has("tools"):
            self._missing_tools = ServerLacks(f"The server {self.name!r} does not declare that it has tools")
            raise self._missing_tools

    # How it is done.

    @asynccontextmanager
    async def run(self, log_level: str) -> AsyncIterator[Client]:
        """Connected, and all there is for that; leaving it leaves nothing behind."""
        connection = asyncio.create_task(self._connection.run(), name=f"client {self.name}")
        dispatcher = asyncio.create_task(self._dispatch_notifications(), name=f"client {self.name} news")
        try:
            await self._wait_until_ready(connection, log_level)
            yield self
        finally:
            dispatcher.cancel()
            await _cancel_and_wait(connection, dispatcher)

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
        """Find a server that is connected to anew for each operation."""
        tries = self._connection.settings.connect_tries
        for attempt in range(1, tries + 1):
            try:
                await self._connection.request("ping")
            except ServerRefused:
                return
            except DependencyError as error:
                if attempt == tries or not error.retryable:
                    raise
                await asyncio.sleep(pause_before(attempt, None, 30.0, random.random()) or 0.0)
            else:
                return

    async def _dispatch_notifications(self) -> None:
        while True:
            await self._handlers.notify(*await self._notifications.get())

    @property
    def _profile(self) -> Greeting:
        profile = self._connection.greeting
        if profile is None:
            raise ServerAway(f"The server {self.name!r} has not been connected to yet")
        return profile

    async def _list_tools(self) -> list[dict[str, Any]]:
        return await self._list("tools/list", "tools", "tools")

    async def _list(self, method: str, member: str, capability: str) -> list[dict[str, Any]]:
        if not self.has_capability(capability):
            return []
        return await self._connection.list_all(method, member)

    async def _request(
        self,
        method: str,
        params: Mapping[str, Any],
        seconds: float | None = None,
        progress: OnProgress | None = None,
    ) -> Mapping[str, Any]:
        voice = self._voice if progress is None else HandlerCallbacks(self._handlers, progress)
        result = await self._connection.request(method, params, voice=voice, seconds=seconds)
        if result.get("resultType") != "input_required":
            return result
        limit = self._connection.call_seconds if seconds is None else seconds
        return await resolve_input_requests(
            self._connection, method, params, result, voice or HandlerCallbacks(self._handlers), limit
        )


async def _cancel_and_wait(*tasks: asyncio.Task[None]) -> None:
    """Cancel tasks and wait for their end; told to hurry, they do."""
    for task in tasks:
        task.cancel()
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
