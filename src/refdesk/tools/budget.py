"""Rate limit and blocklist for reading documents."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from html import unescape
from typing import Any, Literal

from refdesk.engines.base import Hit
from refdesk.errors import RateLimited, ToolFailure
from refdesk.resilience.limits import Charge, Limit, Metered, RateLimiter

REDACTED = "[redacted]"
HIDDEN = "(hidden: it contains a blocked word)"

_MARKUP = re.compile(r"[*`\\]")
"""Markdown characters that can occur inside a word."""


class TextBlocked(ToolFailure):
    """The text contains a blocked keyword."""


class DocumentRateLimiter:
    """Limits calls and tokens per minute for each document of each tenant."""

    def __init__(
        self, calls: int, tokens: int, limits: RateLimiter, on_refusal: Callable[[str], None] = lambda kind: None
    ) -> None:
        """`on_refusal` is called with `document` for every rejected call."""
        self._on_refusal = on_refusal
        self._calls = Limit(calls)
        self._tokens = Limit(tokens)
        self._limits = limits

    async def admit(self, tenant: str, document: str, expected_tokens: int) -> Metered:
        """Admit a call that may return so many tokens, or raise RateLimited."""
        # Users have buckets in the same Redis, and a user may have the name of a document.
        bucket = tenant, "document", document
        tokens = Charge((*bucket, "tokens"), self._tokens, min(expected_tokens, self._tokens.units))
        refusal = await self._limits.take([Charge((*bucket, "calls"), self._calls), tokens])
        if refusal is not None:
            self._on_refusal("document")
            delay = f"{refusal.retry_after:g} s"
            reached = f"{self._calls.units} calls and {self._tokens.units} tokens per minute"
            detail = (
                f"Rate limit of this document reached: {reached}. Try again in {delay}, or read another document."
                if refusal.charge is not None
                else f"Too many documents are being read at once. Try again in {delay}."
            )
            raise RateLimited(detail, retry_after=refusal.retry_after)
        return Metered(self._limits, tokens)


class Blocklist:
    """Keywords that must not be returned; matched as whole words, ignoring case."""

    def __init__(self, keywords: Sequence[str], action: Literal["refuse", "redact"]) -> None:
        words = [_fold(word) for word in keywords if word.strip()]
        pattern = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
        self._pattern = re.compile(rf"(?<!\w)(?:{pattern})(?!\w)", re.IGNORECASE) if words else None
        self._is_redacting = action == "redact"

    @property
    def is_empty(self) -> bool:
        return self._pattern is None

    def is_blocked(self, text: str) -> bool:
        """Return whether a text contains a blocked keyword, also with hyphens between its words."""
        return self._pattern is not None and bool(self._pattern.search(_fold(text.replace("-", " "))))

    def mask(self, text: str) -> str:
        """Return the text, or a placeholder if it is blocked."""
        try:
            return self.screen(text)
        except TextBlocked:
            return HIDDEN

    def mask_values(self, value: Any) -> Any:
        """Return a JSON value with every text masked. Of names such as ids, the parts count as words."""
        match value:
            case str():
                is_name = "-" in value and not any(map(str.isspace, value))
                return HIDDEN if is_name and self.mask(value) == value and self.is_blocked(value) else self.mask(value)
            case Mapping():
                return {name: self.mask_values(item) for name, item in value.items()}
            case list() | tuple():
                return [self.mask_values(item) for item in value]
        return value

    def screen_hits(self, hits: Sequence[Hit]) -> list[Hit]:
        """Return the hits redacted, or without those that contain a blocked keyword, for a model that reads them."""
        screened: list[Hit] = []
        for hit in hits:
            with suppress(TextBlocked):
                document = replace(hit.document, title=self.screen(hit.document.title))
                path = tuple(map(self.screen, hit.path))
                screened.append(replace(hit, document=document, path=path, text=self.screen(hit.text), context=()))
        return screened

    def screen(self, text: str) -> str:
        """Return the text, redacted if so configured; raise TextBlocked if it is blocked."""
        if self._pattern is None:
            return text
        if self._is_redacting:
            text = self._pattern.sub(REDACTED, text)
        # Look-alikes (full-width letters, invisible characters) cannot be redacted exactly. Placeholders are no match.
        if self._pattern.search(_fold(text.replace(REDACTED, " ").replace(HIDDEN, " "))):
            raise TextBlocked("This text contains a blocked word. Read another part.")
        return text


def _fold(text: str) -> str:
    """Remove case, accents, invisible characters and markup."""
    decomposed = unicodedata.normalize("NFKD", _MARKUP.sub("", unescape(text)))
    return (
        "".join(c for c in decomposed if c.isascii() or unicodedata.category(c) not in ("Mn", "Cf")).casefold().strip()
    )
