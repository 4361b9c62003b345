"""Tools found by what they do: words and meaning over names, titles, descriptions and arguments.

Small enough to be in memory and made anew whenever the tools change. Vectors of tools that are still there are kept.
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

from refdesk.engines.embedded.analyzer import index_words, is_common, query_words
from refdesk.engines.embedded.ranking import Scores, best_of, fuse
from refdesk.errors import DependencyError

logger = logging.getLogger(__name__)

SATURATION, LENGTH_SHARE = 1.2, 0.5
"""BM25's k1 and b; a long description is no worse than a short one, as there is only one for each tool."""

NAME_WEIGHT, TITLE_WEIGHT, DESCRIPTION_WEIGHT, ARGUMENT_WEIGHT = 3, 2, 2, 1
"""How often a word counts by where it stands."""

WORDS_SHARE = 0.2
"""What words count, where meaning counts the rest: whoever looks for a tool seldom knows what it calls things."""

EMBEDDED_CHARACTERS = 500
"""Of a description: what a tool does is said first."""

Embed = Callable[[Sequence[str]], Awaitable[NDArray[np.float32]]]
"""Vectors of length one, one for each text."""


@dataclass(frozen=True, slots=True)
class Described:
    """A tool, as far as it is searched."""

    name: str
    server: str
    title: str
    description: str
    arguments: tuple[str, ...]

    @property
    def text(self) -> str:
        """What its meaning is taken from."""
        name = self.name.replace("_", " ").replace("-", " ")
        return f"{self.title}\n{name}\n{self.description[:EMBEDDED_CHARACTERS]}"

    def words(self) -> Counter[str]:
        """The words that it is found by, each as often as it counts."""
        counts: Counter[str] = Counter()
        for text, weight in self._fields():
            for word in index_words(text):
                if not is_common(word):
                    counts[word] += weight
        return counts

    def _fields(self) -> Iterable[tuple[str, int]]:
        yield self.name, NAME_WEIGHT
        yield self.title, TITLE_WEIGHT
        yield self.description, DESCRIPTION_WEIGHT
        yield " ".join(self.arguments), ARGUMENT_WEIGHT


def described(name: str, server: str, definition: Mapping[str, Any]) -> Described:
    """A tool by its definition."""
    properties = definition["inputSchema"].get("properties") or {}
    title = definition.get("title") or (definition.get("annotations") or {}).get("title")
    arguments = tuple(_argument(argument, schema) for argument, schema in properties.items())
    return Described(name, server, str(title or ""), str(definition.get("description") or ""), arguments)


def _argument(name: str, schema: Any) -> str:
    said = schema.get("description") if isinstance(schema, Mapping) else None
    return f"{name} {said}" if isinstance(said, str) else str(name)


class ToolIndex:
    """An index of one state of the tools; it is never changed."""

    def __init__(self, tools: Sequence[Described]) -> None:
        self.tools = tools
        self.vectors: NDArray[np.float32] | None = None
        counts = [tool.words() for tool in tools]
        lengths = np.array([count.total() for count in counts], dtype=np.float64)
        self._norms = SATURATION * (1 - LENGTH_SHARE + LENGTH_SHARE * lengths / max(lengths.sum() / len(tools), 1.0))
        self._postings: dict[str, list[tuple[int, int]]] = {}
        for number, count in enumerate(counts):
            for word, times in count.items():
                self._postings.setdefault(word, []).append((number, times))

    def with_vectors(self, vectors: NDArray[np.float32]) -> ToolIndex:
        """The same, by meaning too."""
        index = copy(self)
        index.vectors = vectors
        return index

    def search(self, query: str, vector: NDArray[np.float32] | None, allowed: Iterable[int], limit: int) -> list[int]:
        """The numbers of the best of the allowed tools, the best first; those that nothing speaks for are left out."""
        places = np.fromiter(allowed, dtype=np.int64)
        if not len(places):
            return []
        lexical = self._by_words(query)[places]
        semantic = np.full(len(places), np.nan)
        if vector is not None and self.vectors is not None:
            semantic = (self.vectors[places] @ vector).astype(np.float64)
        scores = fuse(np.where(lexical > 0, lexical, np.nan), semantic, weight=WORDS_SHARE)
        best = best_of(places, scores, limit)
        return [int(places[place]) for place in best if scores[place] > 0]

    def _by_words(self, query: str) -> Scores:
        scores = np.zeros(len(self.tools))
        for word, weight in query_words(query).items():
            postings = self._postings.get(word, ()) if not is_common(word) else ()
            rarity = math.log1p((len(self.tools) - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, times in postings:
                scores[number] += weight * rarity * times / (times + self._norms[number])
        return scores


class ToolVectors:
    """The meaning of tools and of queries, as far as it can be had."""

    def __init__(self, embed: Embed | None) -> None:
        self._embed = embed
        self._known: dict[str, NDArray[np.float32]] = {}

    async def of_query(self, query: str) -> NDArray[np.float32] | None:
        """The vector of a query."""
        found = await self._embedded([query])
        return found[0] if found is not None else None

    async def of_tools(self, tools: Sequence[Described]) -> NDArray[np.float32] | None:
        """A vector for each tool; only those that are new are embedded."""
        texts = [tool.text for tool in tools]
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        vectors = await self._embedded(new) if new else ()
        if vectors is None:
            return None
        fresh = dict(zip(new, vectors, strict=True))
        self._known = {text: fresh[text] if text in fresh else self._known[text] for text in texts}
        return np.stack([self._known[text] for text in texts])

    async def _embedded(self, texts: Sequence[str]) -> NDArray[np.float32] | None:
        """None where it cannot be had; then words alone find."""
        try:
            return await self._embed(texts) if self._embed is not None else None
        except DependencyError as error:
            logger.warning("tool_search.without_meaning", extra={"fields": {"why": error.detail[:200]}})
            return None
