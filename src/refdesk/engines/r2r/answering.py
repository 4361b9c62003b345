"""Answers by R2R's own model: given only when they rest on nothing but passages that the asker may see."""

from __future__ import annotations

import re
from collections.abc import Sequence

from refdesk.engines.base import EngineAnswer, Search
from refdesk.engines.r2r.client import Generation, R2RClient, RemoteAnswer, SearchSettings
from refdesk.engines.r2r.local_db import Record
from refdesk.engines.r2r.naming import without_unsafe
from refdesk.engines.r2r.read import piece_of
from refdesk.engines.r2r.schemas import RemoteChunk
from refdesk.engines.r2r.search import Searcher
from refdesk.errors import BreakerOpen, EngineError, R2RLeaked, WriterFailed
from refdesk.resilience.dependency import Dependency

_CITED = re.compile(r"\[([0-9a-f]{7,8}(?:\s*[,;]\s*[0-9a-f]{7,8})*)\]", re.IGNORECASE)
"""How R2R's model cites: by the first digits of a chunk's id."""

_NUMBERED = re.compile(r"\[(\^?\d{1,6}(?:\s*[-–—,;]\s*\d{1,6})*)\]")
"""How answers cite here; what of it R2R's model writes by itself means nothing."""


class Answerer:
    """Has R2R write answers."""

    def __init__(self, client: R2RClient, searcher: Searcher, model: Dependency) -> None:
        self._client = client
        self._searcher = searcher
        self._model = model

    async def answer(self, record: Record, question: str, search: Search, generation: Generation) -> EngineAnswer:
        """An answer; without a passage to write it from, none is asked for."""
        if not await self._searcher.search(record, search):
            return EngineAnswer("", (), "")
        scope = await self._searcher.scope(record, search)
        settings = scope.settings(search, search.limit)
        written = await self._asked(without_unsafe(question), settings, generation)
        own = self._searcher.own(record, scope, written.chunks)
        if len(own) < len(written.chunks) or written.others:
            raise R2RLeaked(
                "R2R wrote its answer from something besides the documents that were asked about; it is withheld. "
                "Use r2r_search, and have R2R's administrator look into it."
            )
        hits = await self._searcher.hits(own, scope, search)
        if len(hits) < len(own) or any(chunk.document in record.given_up for chunk in own):
            raise WriterFailed("A document was replaced while R2R answered from it. Ask again.")
        text = numbered(_without_labels(written.text, own), [chunk.id for chunk in own])
        return EngineAnswer(text, tuple(hits), written.model)

    async def _asked(self, question: str, settings: SearchSettings, generation: Generation) -> RemoteAnswer:
        """What the model writes; a model that a caller has named is not to cost all others theirs when it fails."""
        if generation.model:
            return await self._written(question, settings, generation)
        return await self._model.run(lambda: self._written(question, settings, generation))

    async def _written(self, question: str, settings: SearchSettings, generation: Generation) -> RemoteAnswer:
        """What R2R's model writes. When that fails, it is the model's failure: R2R itself is up, and can search."""
        try:
            written = await self._client.answer(question, settings, generation)
        except BreakerOpen:
            raise
        except EngineError as error:
            if not error.retryable:
                raise
            raise WriterFailed(f"R2R's model does not answer. {error.detail}", retry_after=error.retry_after) from error
        if not written.text.strip():
            raise WriterFailed("R2R's model gave an empty answer. Ask again, or ask for another model.")
        return written


def _without_labels(text: str, chunks: Sequence[RemoteChunk]) -> str:
    """An answer without the lines that say of a chunk where it stands, should the model have copied one."""
    for line in {piece_of(chunk).spot.line() for chunk in chunks if chunk.own is not None}:
        text = re.sub(rf"^(?:Document Title: .*\n\s*)?(?:Text: )?{re.escape(line)}\n?", "", text, flags=re.MULTILINE)
    return text.strip()


def numbered(text: str, ids: Sequence[str]) -> str:
    """An answer that cites its chunks, given by their ids, by their numbers from 1; refused when it cites others."""
    text = _NUMBERED.sub(r"(\1)", text)
    return _CITED.sub(lambda match: _numbers(match[1], ids), text)


def _numbers(cited: str, ids: Sequence[str]) -> str:
    found = [_number(short.lower(), ids) for short in re.split(r"\s*[,;]\s*", cited)]
    return "".join(f"[{number}]" for number in dict.fromkeys(found))


def _number(short: str, ids: Sequence[str]) -> int:
    for number, id in enumerate(ids, 1):
        if id.replace("-", "").startswith(short):
            return number
    raise WriterFailed("R2R's model cited a passage that was not found; its answer is withheld. Ask again.")
