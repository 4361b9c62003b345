"""Choice of the answer writer, and validation of its answers.

The configured endpoint, else the client's own model, else extractive quotes. A model's answer is accepted only if every
citation refers to a retrieved passage; it gets a second attempt, then extractive quotes are the fallback.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from refdesk.answers.chat import Chat, open_chat
from refdesk.answers.extractive import Embed, build_not_found, extract
from refdesk.answers.question import (
    MAX_NAME_CHARACTERS,
    Question,
    WrittenAnswer,
    build_prompt,
    limit_passages,
)
from refdesk.calls import Client, InputRequired
from refdesk.config.models import AnswersConfig
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
        for is_retry in (False, True):
            draft = await chat.write(question, build_prompt(question, hits, is_retry=is_retry))
            if (written := _accept(draft, hits)) is not None:
                return written
        return None

    async def _write_with_client(self, client: Client, question: Question, hits: Sequence[Hit]) -> WrittenAnswer | None:
        """Ask the client's own model, through MCP sampling.

        A client of the stateless revision is asked by ending its call, and calls again with the response. The handler
        then runs from the start, may find other hits, and sees only the latest response. So the request's name
        identifies the hits, and a response to the second attempt is looked up if there is none to the first.
        """
        about = (question.text, *(f"{hit.chunk_id} {hit.document.digest}" for hit in hits))
        name = f"answer-{hashlib.sha256(chr(0).join(about).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
        try:
            try:
                draft = await _sample(client, name, question, hits)
            except InputRequired as first_request:
                try:
                    return _accept(await _sample(client, f"{name}-again", question, hits, is_retry=True), hits)
                except InputRequired:
                    raise first_request from None
            return _accept(draft, hits) or _accept(
                await _sample(client, f"{name}-again", question, hits, is_retry=True), hits
            )
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


async def _sample(
    client: Client, name: str, question: Question, hits: Sequence[Hit], *, is_retry: bool = False
) -> Draft:
    """Return the client's answer and its model; raises ClientCannot, MissingCapability or InputRequired."""
    prompt = build_prompt(question, hits, is_retry=is_retry)
    params: dict[str, Any] = {
        "messages": [{"role": "user", "content": {"type": "text", "text": prompt.user}}],
        "systemPrompt": prompt.system,
        "maxTokens": question.max_tokens,
        "temperature": question.temperature,
        "includeContext": "none",
    }
    if question.model:
        params["modelPreferences"] = {"hints": [{"name": question.model}]}
    answer: object = await client.ask(name, "sampling/createMessage", params)
    message = answer if isinstance(answer, Mapping) else {}
    content, model = message.get("content"), message.get("model")
    items = content if isinstance(content, list) else [content]
    texts = [item.get("text") for item in items if isinstance(item, Mapping) and item.get("type") == "text"]
    text = "\n\n".join(text for text in texts if isinstance(text, str)).strip()
    return text, model[:MAX_NAME_CHARACTERS] if isinstance(model, str) and model else "sampling"


MAX_RANGE = 100
"""Longest range; there are never more hits than this."""

_CODE = re.compile(
    r"^ {0,3}(?P<fence>`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}(?P=fence)[`~]*[ \t]*$|\Z)"
    r"|(?P<ticks>(?<!`)`+(?!`)).+?(?<!`)(?P=ticks)(?!`)",
    re.DOTALL | re.MULTILINE,
)
_NUMBERS = r"\d{1,9}(?:\s*[-–—]\s*\d{1,9})?"
_CITATION = re.compile(rf"\[\^?({_NUMBERS}(?:\s*[,;]\s*{_NUMBERS})*)\]")
_DENIAL = re.compile(
    r"\W*(?:sorry,?\s+|unfortunately,?\s+|i'm sorry,?\s+(?:but\s+)?)?"
    r"(?:no\s+answer\s+(?:was\s+)?found\b|the\s+(?:\w+\s+){0,2}(?:documents|documentation|passages|sources|excerpts)"
    r"\s+(?:\w+\s+)?(?:do|does)(?:\s+not|n['’]t)\s+(?:\w+\s+)?"
    r"(?:hold|contain|include|provide|have|give|say|mention|answer|cover|describe|explain|specify|state)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Grounding:
    """The citations of an answer, checked against the hits."""

    cited: tuple[int, ...]
    """Indexes, from 0, of the cited hits, without duplicates, in order of appearance."""
    unknown: tuple[int, ...]
    """Cited numbers that no hit has."""
    is_denial: bool
    """Whether the answer says that the documents do not answer the question."""

    @property
    def is_valid(self) -> bool:
        """Whether the answer cites hits only, and at least one unless it is a denial."""
        return not self.unknown and bool(self.cited or self.is_denial)


def check_grounding(answer: str, hits: int) -> Grounding:
    """Check the citations of an answer that was written from `hits` hits."""
    numbers = tuple(dict.fromkeys(_parse_citations(answer)))
    return Grounding(
        cited=tuple(number - 1 for number in numbers if 1 <= number <= hits),
        unknown=tuple(number for number in numbers if not 1 <= number <= hits),
        is_denial=_DENIAL.match(answer) is not None,
    )


def _parse_citations(answer: str) -> Iterator[int]:
    for citation in _CITATION.finditer(_CODE.sub(" ", answer)):
        for part in re.split(r"[,;]", citation[1]):
            first, *last = map(int, re.split(r"[-–—]", part))
            end = last[0] if last else first
            # No hit has the number 0, which stands for a range that is reversed or too long.
            yield from range(first, end + 1) if first <= end < first + MAX_RANGE else (0,)
