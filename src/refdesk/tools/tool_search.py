"""The tools `search_tools` and `call_tool`, in place of listing hundreds of downstream tools.

Models read all listed definitions on every turn; here they read only those they search for. The search is lexical and
semantic, over names, titles, descriptions and arguments. The index is small, in memory, and rebuilt when the tools
change. Vectors of unchanged tools are reused.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson
from anyio import to_thread
from numpy.typing import NDArray
from pydantic import Field

from refdesk.calls import Annotations, Call, Handler, ToolEntry
from refdesk.engines.analyzer import extract_index_terms, is_stop_word, weigh_query_terms
from refdesk.engines.ranking import Scores, fuse, select_top
from refdesk.errors import DependencyError, InvalidArguments, Problem
from refdesk.support.tasks import cancel_all
from refdesk.tools.json_schema import Arguments, Result
from refdesk.tools.proxied import ProxiedTool
from refdesk.tools.registry import DOWNSTREAM_TOOLSET, Registry, Tool, add_tools, tool
from refdesk.validation import nearest_name, shorten

logger = logging.getLogger(__name__)

SEARCH, CALL = "search_tools", "call_tool"

DESCRIPTION_CHARACTERS = 600
"""Length of a description: models choose by its first sentences, and some servers write pages."""

BM25_K1, BM25_B = 1.2, 0.5
"""BM25's k1 and b; long descriptions are not penalized much, as each tool has only one."""

NAME_WEIGHT, TITLE_WEIGHT, DESCRIPTION_WEIGHT, ARGUMENT_WEIGHT = 3, 2, 2, 1
"""Term weights by field."""

LEXICAL_WEIGHT = 0.2
"""Share of the lexical score; the rest is semantic, as callers rarely know the terms a tool uses."""

EMBEDDED_CHARACTERS = 500
"""Length of the embedded description, which says first what a tool does."""

OpenTools = Callable[[Call], Iterable[ToolEntry]]
Embed = Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]]
"""Returns a unit vector for each text."""


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


class ToolSearch:
    """Searches tools and calls them like a direct call."""

    def __init__(self, open_tools: OpenTools, handle: Handler, registry: Registry, embed: Embed | None = None) -> None:
        """Register both tools. `open_tools` returns the tools a caller may use, listed or not.

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
        add_tools(registry, self, DOWNSTREAM_TOOLSET)
        registry.add_tool(
            Tool(
                name=CALL,
                title="Call a tool",
                description=f"Call a tool that {SEARCH} found, with arguments that fit its inputSchema.",
                toolset=DOWNSTREAM_TOOLSET,
                arguments=CallTool,
                handler=self.call,
                annotations=_WorstCaseAnnotations(),
                meta={"anthropic/alwaysLoad": True},
                seconds=self._find_timeout,
            )
        )

    def index(self, tools: Iterable[ProxiedTool]) -> None:
        """Replace the indexed tools, in the background."""
        self._pending = [describe_tool(tool.name, tool.definition) for tool in tools]
        self._start_indexing()

    async def aclose(self) -> None:
        """Stop indexing."""
        if self._indexing is not None:
            await cancel_all([self._indexing])

    @tool(
        "Search tools",
        "Find tools of the connected servers by what they do. Answers with the name, description and inputSchema of "
        f"the best; call one with {CALL}.",
        meta={"anthropic/alwaysLoad": True},
    )
    async def search_tools(self, arguments: SearchTools, call: Call) -> FoundTools:
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
                index.vectors = vectors


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


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """The searchable fields of a tool."""

    name: str
    title: str
    description: str
    arguments: str

    @property
    def text(self) -> str:
        """The text that is embedded."""
        name = self.name.replace("_", " ").replace("-", " ")
        return f"{self.title}\n{name}\n{self.description[:EMBEDDED_CHARACTERS]}"

    def count_terms(self) -> Counter[str]:
        """Return the weighted term frequencies."""
        fields = (
            (self.name, NAME_WEIGHT),
            (self.title, TITLE_WEIGHT),
            (self.description, DESCRIPTION_WEIGHT),
            (self.arguments, ARGUMENT_WEIGHT),
        )
        counts: Counter[str] = Counter()
        for text, weight in fields:
            for word in extract_index_terms(text):
                if not is_stop_word(word):
                    counts[word] += weight
        return counts


def describe_tool(name: str, definition: Mapping[str, Any]) -> ToolDescription:
    """Return the searchable fields of a tool definition."""
    properties = definition["inputSchema"].get("properties") or {}
    title = definition.get("title") or (definition.get("annotations") or {}).get("title")
    arguments = " ".join(_format_argument(argument, schema) for argument, schema in properties.items())
    return ToolDescription(name, str(title or ""), str(definition.get("description") or ""), arguments)


def _format_argument(name: str, schema: Any) -> str:
    description = schema.get("description") if isinstance(schema, Mapping) else None
    return f"{name} {description}" if isinstance(description, str) else str(name)


class ToolIndex:
    """Search index of tools."""

    def __init__(self, tools: Sequence[ToolDescription]) -> None:
        self.tools = tools
        self.vectors: NDArray[np.float32] | None = None
        """Set when the tools are embedded. Until then, the search is lexical only."""
        counts = [tool.count_terms() for tool in tools]
        lengths = np.array([count.total() for count in counts], dtype=np.float64)
        self._norms = BM25_K1 * (1 - BM25_B + BM25_B * lengths / max(lengths.sum() / len(tools), 1.0))
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for word, frequency in count.items():
                self._postings.setdefault(word, []).append((number, frequency))

    def search(self, query: str, vector: NDArray[np.float32] | None, allowed: Iterable[int], limit: int) -> list[int]:
        """Return the indexes of the best allowed tools, best first, without those that do not match."""
        candidates = np.fromiter(allowed, dtype=np.int64)
        if not len(candidates):
            return []
        lexical = self._score_lexical(query)[candidates]
        semantic = np.full(len(candidates), np.nan)
        if vector is not None and self.vectors is not None:
            semantic = (self.vectors[candidates] @ vector).astype(np.float64)
        scores = fuse(np.where(lexical > 0, lexical, np.nan), semantic, weight=LEXICAL_WEIGHT)
        best = select_top(candidates, scores, limit)
        return [int(candidates[index]) for index in best if scores[index] > 0]

    def _score_lexical(self, query: str) -> Scores:
        scores = np.zeros(len(self.tools))
        for word, weight in weigh_query_terms(query).items():
            postings = self._postings.get(word, ()) if not is_stop_word(word) else ()
            rarity = math.log1p((len(self.tools) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, count in postings:
                scores[number] += weight * rarity * count / (count + self._norms[number])
        return scores


class ToolVectors:
    """Embeds tools and queries, with a cache."""

    def __init__(self, embed: Embed | None) -> None:
        self._embed = embed
        self._vectors_by_text: dict[str, NDArray[np.float32]] = {}

    async def embed_query(self, query: str) -> NDArray[np.float32] | None:
        """Return the vector of a query."""
        vectors = await self._embed_texts([query])
        return vectors[0] if vectors is not None else None

    async def embed_tools(self, tools: Sequence[ToolDescription]) -> NDArray[np.float32] | None:
        """Return a vector per tool; only new ones are embedded."""
        texts = [tool.text for tool in tools]
        new = [text for text in dict.fromkeys(texts) if text not in self._vectors_by_text]
        vectors = await self._embed_texts(new) if new else ()
        if vectors is None:
            return None
        fresh = dict(zip(new, vectors, strict=True))
        self._vectors_by_text = {text: fresh[text] if text in fresh else self._vectors_by_text[text] for text in texts}
        return np.stack([self._vectors_by_text[text] for text in texts])

    async def _embed_texts(self, texts: Sequence[str]) -> NDArray[np.float32] | None:
        """Return vectors, or None without an embedder; search is then lexical only."""
        try:
            return await self._embed(texts) if self._embed is not None else None
        except DependencyError as error:
            logger.warning("tool_search.without_meaning", extra={"fields": {"why": error.detail[:200]}})
            return None
