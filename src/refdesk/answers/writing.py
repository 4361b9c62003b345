"""Choice of the answer writer, and validation of its answers.

The configured endpoint, else the client's own model, else extractive quotes. A model's answer is accepted only if every
citation refers to a retrieved passage; it gets a second attempt, then extractive quotes are the fallback.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from refdesk.answers.chat import Chat, open_chat
from refdesk.answers.citations import check_grounding
from refdesk.answers.extractive import Embed, build_not_found, extract
from refdesk.answers.prompt import build_prompt, limit_passages
from refdesk.answers.question import Question, WrittenAnswer
from refdesk.answers.sampling import build_request, build_request_name, sample, sample_if_answered
from refdesk.calls import Client, InputRequired
from refdesk.config import AnswersConfig
from refdesk.engines.base import Hit
from refdesk.errors import ClientCannot, MissingCapability

logger = logging.getLogger(__name__)

Draft = tuple[str, str]
"""A model's text and name."""


@asynccontextmanager
async def open_answers(settings: AnswersConfig, embed: Embed | None = None) -> AsyncIterator[Answers]:
    """Open the writers that the settings allow; `embed` enables semantic scoring of quotes."""
    async with open_chat(settings) as chat:
        yield Answers(chat, settings.sampling, embed)


class Answers:
    """Writes answers from hits; created by `open_answers`."""

    def __init__(self, chat: Chat | None, can_sample: bool, embed: Embed | None) -> None:
        self._chat = chat
        self.dependency = chat.dependency if chat else None
        self._can_sample = can_sample
        self._embed = embed

    @property
    def uses_sampling(self) -> bool:
        """Whether the client's own model is used."""
        return self._chat is None and self._can_sample

    async def write(self, question: Question, hits: Sequence[Hit], client: Client) -> WrittenAnswer:
        """Write an answer that cites only the hits; raises the errors of the endpoint."""
        if not hits:
            return build_not_found(hits)
        passages = limit_passages(hits)
        if self._chat is not None:
            written = await self._write_with_endpoint(self._chat, question, passages)
        elif self._can_sample:
            written = await self._write_with_client(client, question, passages)
        else:
            written = None
        return written or await extract(question, hits, self._embed)

    async def _write_with_endpoint(self, chat: Chat, question: Question, hits: Sequence[Hit]) -> WrittenAnswer | None:
        async def draft(is_retry: bool) -> Draft:
            return await chat.write(question, build_prompt(question, hits, is_retry=is_retry))

        return _accept(await draft(False), hits) or _accept(await draft(True), hits)

    async def _write_with_client(self, client: Client, question: Question, hits: Sequence[Hit]) -> WrittenAnswer | None:
        name = build_request_name(question, hits)
        first, second = (
            build_request(question, build_prompt(question, hits, is_retry=is_retry)) for is_retry in (False, True)
        )
        try:
            try:
                draft = await sample(client, name, first)
            except InputRequired:
                second_draft = await sample_if_answered(client, f"{name}-again", second)
                if second_draft is None:
                    raise
                return _accept(second_draft, hits)
            return _accept(draft, hits) or _accept(await sample(client, f"{name}-again", second), hits)
        except (ClientCannot, MissingCapability):
            return None


def _accept(draft: Draft, hits: Sequence[Hit]) -> WrittenAnswer | None:
    """Return the answer if its citations are valid."""
    text, model = draft
    grounding = check_grounding(text, len(hits))
    if grounding.is_valid:
        return WrittenAnswer(text, grounding.cited, model, found=not grounding.is_denial)
    logger.info("answer.refused", extra={"fields": {"model": model, "unknown_citations": len(grounding.unknown)}})
    return None
