"""How much of one document may be read: so many calls and tokens a minute, and no blocked word."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from html import unescape
from typing import Literal

from refdesk.errors import RateLimited, ToolFailure
from refdesk.resilience.limits import Charge, Limit, Limits, Metered, Refusal

REDACTED = "[redacted]"

_MARKUP = re.compile(r"[*`\\]")
"""What Markdown puts inside a word."""


class TextBlocked(ToolFailure):
    """The text holds a word that this desk does not hand out."""


class ReadingRate:
    """So many calls and tokens a minute on each document of each tenant."""

    def __init__(
        self, calls: int, tokens: int, limits: Limits, refused: Callable[[str], None] = lambda kind: None
    ) -> None:
        """`refused` is told of every refusal, as one of a `document`."""
        self._refused = refused
        self._calls = Limit(calls)
        self._tokens = Limit(tokens)
        self._limits = limits

    async def admit(self, tenant: str, document: str, expected_tokens: int) -> Metered:
        """Let a call in that may hand out so many tokens, or refuse it until there is room."""
        # Users have buckets in the same Redis, and may be called as a document is.
        of_document = tenant, "document", document
        tokens = Charge((*of_document, "tokens"), self._tokens, min(expected_tokens, self._tokens.units))
        refusal = await self._limits.take([Charge((*of_document, "calls"), self._calls), tokens])
        if refusal is not None:
            self._refused("document")
            raise RateLimited(self._sentence(refusal), retry_after=refusal.retry_after)
        return Metered(self._limits, tokens)

    def _sentence(self, refusal: Refusal) -> str:
        wait = f"{refusal.retry_after:g} s"
        if refusal.charge is None:
            return f"Too many documents are being read at once; try again in {wait}."
        return (
            f"This document is read too often or too much (at most {self._calls.units} calls and "
            f"{self._tokens.units} tokens a minute); wait {wait}, or read another."
        )


class Blocklist:
    """Words that are not handed out, whole words in any case."""

    def __init__(self, keywords: Sequence[str], action: Literal["refuse", "redact"]) -> None:
        words = [_folded(word) for word in keywords if word.strip()]
        pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE) if words else None
        self._redacts = action == "redact"

    @property
    def is_empty(self) -> bool:
        """Whether every text may be handed out."""
        return self._pattern is None

    def blocks(self, text: str) -> bool:
        """Whether a text holds such a word, also where hyphens stand between its words."""
        return self._pattern is not None and bool(self._pattern.search(_folded(text.replace("-", " "))))

    def shown(self, text: str) -> str:
        """The text, or a few words in its place where it may not be handed out."""
        try:
            return self.screened(text)
        except TextBlocked:
            return "(not shown: it holds a word that this desk does not hand out)"

    def screened(self, text: str) -> str:
        """The text as it may be handed out."""
        if self._pattern is None:
            return text
        if self._redacts:
            text = self._pattern.sub(REDACTED, text)
            # Not to be found in what stands for it.
            if not self._pattern.search(_folded(text.replace(REDACTED, " "))):
                return text
        # What only looks different (full-width letters, invisible characters between them) cannot be cut out exactly.
        if self._pattern.search(_folded(text)):
            raise TextBlocked("This text holds a word that this desk does not hand out; read another part.")
        return text


def _folded(text: str) -> str:
    """Text as a reader hears it: without case, accents, invisible characters and markup."""
    decomposed = unicodedata.normalize("NFKD", _MARKUP.sub("", unescape(text)))
    return (
        "".join(c for c in decomposed if c.isascii() or unicodedata.category(c) not in ("Mn", "Cf")).casefold().strip()
    )
