"""Who writes an answer, and whether it may be given.

The endpoint that is set, else the client's own model, else the documents' own sentences. What a model writes is given
only when every citation resolves to a passage that was retrieved; it has a second try, and then the documents speak.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from refdesk.answers.chat import Chat, open_chat
from refdesk.answers.citations import grounding
from refdesk.answers.extractive import Embed, extract, not_found
from refdesk.answers.prompt import prompt_for, within_bounds
from refdesk.answers.question import Question, Written
from refdesk.answers.sampling import name_of, request, sample, was_asked_again
from refdesk.calls import Client, InputRequired
from refdesk.config import AnswersConfig
from refdesk.engines.base import Hit
from refdesk.errors import ClientCannot, MissingCapability

logger = logging.getLogger(__name__)

Draft = tuple[str, str]
"""What a model wrote, and its name."""


@asynccontextmanager
async def open_answers(settings: AnswersConfig, embed: Embed | None = None) -> AsyncIterator[Answers]:
    """The writers that the settings allow; `embed` lets quoted sentences be chosen by meaning as well."""
    async with open_chat(settings) as chat:
        yield Answers(chat, settings.sampling, embed)


class Answers:
    """Writes answers from hits; made by `open_answers`."""

    def __init__(self, chat: Chat | None, may_sample: bool, embed: Embed | None) -> None:
        self._chat = chat
        self.dependency = chat.dependency if chat else None
        self._may_sample = may_sample
        self._embed = embed

    @property
    def asks_client(self) -> bool:
        """Whether the client's own model is asked."""
        return self._chat is None and self._may_sample

    async def write(self, question: Question, hits: Sequence[Hit], client: Client) -> Written:
        """An answer whose every citation is one of the hits; raises what the endpoint's failure is told by."""
        if not hits:
            return not_found(hits)
        given = within_bounds(hits)
        if self._chat is not None:
            written = await self._by_endpoint(self._chat, question, given)
        elif self._may_sample:
            written = await self._by_client(client, question, given)
        else:
            written = None
        return written or await extract(question, hits, self._embed)

    async def _by_endpoint(self, chat: Chat, question: Question, hits: Sequence[Hit]) -> Written | None:
        async def draft(again: bool) -> Draft:
            return await chat.write(question, prompt_for(question, hits, again=again))

        return _sound(await draft(False), hits) or _sound(await draft(True), hits)

    async def _by_client(self, client: Client, question: Question, hits: Sequence[Hit]) -> Written | None:
        name = name_of(question, hits)
        first, second = (request(question, prompt_for(question, hits, again=again)) for again in (False, True))
        try:
            try:
                draft = await sample(client, name, first)
            except InputRequired:
                later = await was_asked_again(client, f"{name}-again", second)
                if later is None:
                    raise
                return _sound(later, hits)
            return _sound(draft, hits) or _sound(await sample(client, f"{name}-again", second), hits)
        except (ClientCannot, MissingCapability):
            return None


def _sound(draft: Draft, hits: Sequence[Hit]) -> Written | None:
    """The answer, if it may be given."""
    text, model = draft
    rests_on = grounding(text, len(hits))
    if rests_on.is_sound:
        return Written(text, rests_on.cited, model, found=not rests_on.denies)
    logger.info("answer.refused", extra={"fields": {"model": model, "unknown_citations": len(rests_on.unknown)}})
    return None
