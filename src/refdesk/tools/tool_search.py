"""The tools `search_tools` and `call_tool`, in place of listing hundreds of downstream tools.

Models read all listed definitions on every turn; here they read only those they search for.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import orjson
from anyio import to_thread
from pydantic import Field

from refdesk.calls import Call, Handler, ToolEntry
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.json_schema import Arguments, Result
from refdesk.tools.proxied import TOOLSET, ProxiedTool
from refdesk.tools.registry import Annotations, Registry, Tool
from refdesk.tools.tool_index import Embed, ToolDescription, ToolIndex, ToolVectors, describe_tool
from refdesk.validation import nearest_name, shorten

SEARCH, CALL = "search_tools", "call_tool"

DESCRIPTION_CHARACTERS = 600
"""Length of a description: models choose by its first sentences, and some servers write pages."""


class SearchTools(Arguments):
    query: str = Field(min_length=1, max_length=1000, description="What the tool should do, in a few words.")
    limit: int = Field(5, ge=1, le=20, description="How many tools to show.")
    server: str | None = Field(None, description="Only tools of this server.")


class CallTool(Arguments):
    name: str = Field(min_length=1, description="The tool's name, as search_tools gave it.")
    arguments: dict[str, Any] = Field(default_factory=dict, description="Its arguments, by its inputSchema.")


class FoundTools(Result):
    """The best tools, with their input schemas."""

    tools: list[dict[str, Any]]
    searched: int

    def readable(self) -> str:
        if not self.tools:
            return f"None of {self.searched} tools matches. Try other words."
        shown = (f"{orjson.dumps(tool).decode()}" for tool in self.tools)
        return "\n".join((f"The best of {self.searched} tools; call one with {CALL}:", *shown))


@dataclass(frozen=True, slots=True)
class _WorstCaseAnnotations(Annotations):
    """Hints for clients of a tool that can call any other; policies check the called tool itself."""

    def wire(self) -> dict[str, bool]:
        return {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True}


@dataclass(frozen=True)
class _CallTool(Tool[CallTool]):
    """`call_tool`, with the timeout of the tool that it calls."""

    inner_seconds: Callable[[Call], float | None] = lambda call: None

    def seconds_for(self, call: Call) -> float | None:
        return self.inner_seconds(call)


@asynccontextmanager
async def open_tool_search(
    open_tools: Callable[[Call], Iterable[ToolEntry]], handle: Handler, registry: Registry, embed: Embed | None = None
) -> AsyncIterator[ToolSearch]:
    """Register both tools; see `ToolSearch`."""
    search = ToolSearch(open_tools, handle, registry, embed)
    search.register()
    try:
        yield search
    finally:
        await search.close()


class ToolSearch:
    """Searches tools and calls them like a direct call."""

    def __init__(
        self,
        open_tools: Callable[[Call], Iterable[ToolEntry]],
        handle: Handler,
        registry: Registry,
        embed: Embed | None = None,
    ) -> None:
        """`open_tools` returns the tools a caller may use, listed or not.

        `handle` answers a call for one of them, under the same policies as a direct call.
        """
        self._open_tools = open_tools
        self._handle = handle
        self._registry = registry
        self._vectors = ToolVectors(embed)
        self._pending: Sequence[ToolDescription] = ()
        self._index: ToolIndex | None = None
        self._is_indexed = asyncio.Event()
        self._indexing: asyncio.Task[None] | None = None

    def register(self) -> None:
        """Register both tools."""
        self._registry.add_tool(
            Tool(
                name=SEARCH,
                title="Search tools",
                description=(
                    "Find tools of the connected servers by what they do. Answers with the name, description and "
                    f"inputSchema of the best; call one with {CALL}."
                ),
                toolset=TOOLSET,
                arguments=SearchTools,
                handler=self.search,
                result=FoundTools,
                meta={"anthropic/alwaysLoad": True},
            )
        )
        self._registry.add_tool(
            _CallTool(
                name=CALL,
                title="Call a tool",
                description=f"Call a tool that {SEARCH} found, with arguments that fit its inputSchema.",
                toolset=TOOLSET,
                arguments=CallTool,
                handler=self.call,
                annotations=_WorstCaseAnnotations(),
                meta={"anthropic/alwaysLoad": True},
                inner_seconds=self._find_timeout,
            )
        )

    def index(self, tools: Iterable[ProxiedTool]) -> None:
        """Replace the indexed tools, in the background."""
        self._pending = [describe_tool(tool.name, tool.server.name, tool.definition) for tool in tools]
        self._start_indexing()

    async def close(self) -> None:
        """Stop indexing."""
        if self._indexing is not None:
            self._indexing.cancel()
            await asyncio.wait([self._indexing])

    async def search(self, arguments: SearchTools, call: Call) -> FoundTools:
        # Decided before waiting, since the tools may change meanwhile.
        usable = {tool.name: tool for tool in self._open_tools(call) if isinstance(tool, ProxiedTool)}
        if arguments.server is not None:
            usable = _filter_by_server(arguments.server, usable)
        if usable:
            await self._is_indexed.wait()
        vector = await self._vectors.embed_query(arguments.query) if usable else None
        index = self._index
        if index is None:
            return FoundTools(tools=[], searched=0)
        if vector is not None and index.vectors is None:
            self._start_indexing()  # the embedder is available again
        allowed = [number for number, tool in enumerate(index.tools) if tool.name in usable]
        best = index.search(arguments.query, vector, allowed, arguments.limit)
        return FoundTools(
            tools=[_format_tool(usable[index.tools[number].name]) for number in best], searched=len(allowed)
        )

    async def call(self, arguments: CallTool, call: Call) -> dict[str, Any]:
        if arguments.name in (SEARCH, CALL):
            raise InvalidArguments([Problem("name", f"must be a tool that {SEARCH} found")])
        params = {**call.params, "name": arguments.name, "arguments": arguments.arguments}
        return (await self._handle(replace(call, params=params))).result

    def _find_timeout(self, call: Call) -> float | None:
        arguments = call.params.get("arguments")
        tool = self._registry.find_tool(str(arguments.get("name"))) if isinstance(arguments, Mapping) else None
        return tool.seconds_for(call) if isinstance(tool, ProxiedTool) else None

    def _start_indexing(self) -> None:
        if self._indexing is None or self._indexing.done():
            self._indexing = asyncio.create_task(self._update_index())

    async def _update_index(self) -> None:
        """Index until the index is up to date, as tools may change meanwhile.

        The lexical index comes first, in a moment; vectors are added when available.
        """
        indexed: Sequence[ToolDescription] = ()
        while indexed is not self._pending and self._pending:
            indexed = self._pending
            index = self._index = await to_thread.run_sync(ToolIndex, indexed)
            self._is_indexed.set()
            vectors = await self._vectors.embed_tools(indexed)
            if vectors is not None and indexed is self._pending:
                self._index = index.with_vectors(vectors)


def _filter_by_server(server: str, tools: Mapping[str, ProxiedTool]) -> dict[str, ProxiedTool]:
    found = {name: tool for name, tool in tools.items() if tool.server.name == server}
    if not found:
        servers = sorted({tool.server.name for tool in tools.values()})
        nearest = nearest_name(server, servers)
        hint = f"did you mean {nearest!r}?" if nearest else f"servers are {shorten(', '.join(servers), 1000) or 'none'}"
        raise InvalidArguments([Problem("server", f"there is no server {shorten(server)!r}; {hint}")])
    return found


def _format_tool(tool: ProxiedTool) -> dict[str, Any]:
    description = shorten(tool.description, DESCRIPTION_CHARACTERS)
    return {"name": tool.name, "description": description, "inputSchema": tool.input_schema}
