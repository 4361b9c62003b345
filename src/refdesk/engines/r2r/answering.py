"""Answers by R2R's own model, returned only if they are based solely on passages the caller may see."""

from __future__ import annotations

import re
from collections.abc import Sequence

from refdesk.calls import TenantId
from refdesk.engines.base import EngineAnswer, Search
from refdesk.engines.r2r.client import Generation, R2RClient, RemoteAnswer, RemoteSearchSettings
from refdesk.engines.r2r.mirror import Mirror
from refdesk.engines.r2r.naming import format_position, strip_unsafe
from refdesk.engines.r2r.read import decode_remote_chunk
from refdesk.engines.r2r.schemas import RemoteChunk
from refdesk.engines.r2r.search import R2RSearcher
from refdesk.errors import BreakerOpen, EngineError, R2RLeaked, WriterFailed
from refdesk.resilience.dependency import Dependency

_CHUNK_CITATION = re.compile(r"\[([0-9a-f]{7,8}(?:\s*[,;]\s*[0-9a-f]{7,8})*)\]", re.IGNORECASE)
"""Citation by R2R's model: the first digits of a chunk's id."""

_NUMBER_CITATION = re.compile(r"\[(\^?\d{1,6}(?:\s*[-–—,;]\s*\d{1,6})*)\]")
"""Citation format of Refdesk's answers. In the output of R2R's model it has no meaning."""


class R2RWriter:
    """R2R's model; see `engines.base.EngineWriter`."""

    def __init__(self, client: R2RClient, mirror: Mirror, searcher: R2RSearcher, model: Dependency) -> None:
        self._client = client
        self._mirror = mirror
        self._searcher = searcher
        self._model = model

    async def answer(
        self,
        tenant: TenantId,
        question: str,
        search: Search,
        *,
        model: str | None = None,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> EngineAnswer:
        """Return an answer, or an empty one if there is no passage to write it from."""
        local_db = await self._mirror.get_local_db(tenant)
        if local_db is None or not await self._searcher.search(local_db, search):
            return EngineAnswer("", (), "")
        scope = await self._searcher.resolve_scope(local_db, search)
        settings = scope.to_settings(search, search.limit)
        answer = await self._generate(strip_unsafe(question), settings, Generation(model, max_tokens, temperature))
        own = self._searcher.drop_foreign(local_db, scope, answer.chunks)
        if len(own) < len(answer.chunks) or answer.others:
            raise R2RLeaked(
                "R2R's answer used content outside the requested collections, so it is withheld. "
                "Use r2r_search, and tell R2R's administrator."
            )
        hits = await self._searcher.to_hits(own, scope, search)
        if len(hits) < len(own) or any(chunk.document in local_db.tombstones for chunk in own):
            raise WriterFailed("A document was replaced while R2R used it for the answer. Try again.")
        text = number_citations(_strip_position_lines(answer.text, own), [chunk.id for chunk in own])
        return EngineAnswer(text, tuple(hits), answer.model)

    async def _generate(self, question: str, settings: RemoteSearchSettings, generation: Generation) -> RemoteAnswer:
        """Request an answer, and raise failures as WriterFailed: R2R itself is up and can search.

        A model named by the caller bypasses the breaker, so that its failures don't affect others.
        """

        async def request() -> RemoteAnswer:
            try:
                answer = await self._client.answer(question, settings, generation)
            except BreakerOpen:
                raise
            except EngineError as error:
                if not error.retryable:
                    raise
                detail = f"R2R's model did not respond. {error.detail}"
                raise WriterFailed(detail, retry_after=error.retry_after) from error
            if not answer.text.strip():
                raise WriterFailed("R2R's model returned an empty answer. Try again, or use another model.")
            return answer

        return await (request() if generation.model else self._model.run(request))


def _strip_position_lines(text: str, chunks: Sequence[RemoteChunk]) -> str:
    """Remove position lines of chunks that the model has copied into its answer."""
    for line in {format_position(decode_remote_chunk(0, chunk)) for chunk in chunks if chunk.own is not None}:
        text = re.sub(rf"^(?:Document Title: .*\n\s*)?(?:Text: )?{re.escape(line)}\n?", "", text, flags=re.MULTILINE)
    return text.strip()


def number_citations(text: str, ids: Sequence[str]) -> str:
    """Replace chunk ids in citations by their numbers from 1. Raises WriterFailed for unknown ids."""

    def format_numbers(match: re.Match[str]) -> str:
        found = [find_number(short.lower()) for short in re.split(r"\s*[,;]\s*", match[1])]
        return "".join(f"[{number}]" for number in dict.fromkeys(found))

    def find_number(short: str) -> int:
        for number, id in enumerate(ids, 1):
            if id.replace("-", "").startswith(short):
                return number
        raise WriterFailed("R2R's model cited an unknown passage, so its answer is withheld. Try again.")

    return _CHUNK_CITATION.sub(format_numbers, _NUMBER_CITATION.sub(r"(\1)", text))
