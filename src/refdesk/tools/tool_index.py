"""Lexical and semantic search over tool names, titles, descriptions and arguments.

The index is small, in memory, and rebuilt when the tools change. Vectors of unchanged tools are reused.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refdesk.engines.analyzer import extract_index_terms, is_stop_word, weigh_query_terms
from refdesk.engines.ranking import Scores, fuse, select_top
from refdesk.errors import DependencyError

logger = logging.getLogger(__name__)

BM25_K1, BM25_B = 1.2, 0.5
"""BM25's k1 and b; long descriptions are not penalized much, as each tool has only one."""

NAME_WEIGHT, TITLE_WEIGHT, DESCRIPTION_WEIGHT, ARGUMENT_WEIGHT = 3, 2, 2, 1
"""Term weights by field."""

LEXICAL_WEIGHT = 0.2
"""Share of the lexical score; the rest is semantic, as callers rarely know the terms a tool uses."""

EMBEDDED_CHARACTERS = 500
"""Length of the embedded description, which says first what a tool does."""

Embed = Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]]
"""Returns a unit vector for each text."""


@dataclass(frozen=True, slots=True)
class ToolDescription:
    """The searchable fields of a tool."""

    name: str
    server: str
    title: str
    description: str
    arguments: tuple[str, ...]

    @property
    def text(self) -> str:
        """The text that is embedded."""
        name = self.name.replace("_", " ").replace("-", " ")
        return f"{self.title}\n{name}\n{self.description[:EMBEDDED_CHARACTERS]}"

    def count_terms(self) -> Counter[str]:
        """Return the weighted term frequencies."""
        counts: Counter[str] = Counter()
        for text, weight in self._iter_fields():
            for word in extract_index_terms(text):
                if not is_stop_word(word):
                    counts[word] += weight
        return counts

    def _iter_fields(self) -> Iterable[tuple[str, int]]:
        yield self.name, NAME_WEIGHT
        yield self.title, TITLE_WEIGHT
        yield self.description, DESCRIPTION_WEIGHT
        yield " ".join(self.arguments), ARGUMENT_WEIGHT


def describe_tool(name: str, server: str, definition: Mapping[str, Any]) -> ToolDescription:
    """Return the searchable fields of a tool definition."""
    properties = definition["inputSchema"].get("properties") or {}
    title = definition.get("title") or (definition.get("annotations") or {}).get("title")
    arguments = tuple(_format_argument(argument, schema) for argument, schema in properties.items())
    return ToolDescription(name, server, str(title or ""), str(definition.get("description") or ""), arguments)


def _format_argument(name: str, schema: Any) -> str:
    description = schema.get("description") if isinstance(schema, Mapping) else None
    return f"{name} {description}" if isinstance(description, str) else str(name)


class ToolIndex:
    """Immutable search index of tools."""

    def __init__(self, tools: Sequence[ToolDescription]) -> None:
        self.tools = tools
        self.vectors: NDArray[np.float32] | None = None
        counts = [tool.count_terms() for tool in tools]
        lengths = np.array([count.total() for count in counts], dtype=np.float64)
        self._norms = BM25_K1 * (1 - BM25_B + BM25_B * lengths / max(lengths.sum() / len(tools), 1.0))
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for word, frequency in count.items():
                self._postings.setdefault(word, []).append((number, frequency))

    def with_vectors(self, vectors: NDArray[np.float32]) -> ToolIndex:
        """Return a copy with vectors for semantic search."""
        index = copy(self)
        index.vectors = vectors
        return index

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
