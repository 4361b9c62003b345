"""Rate limit policy: calls and tokens per minute for each user, and calls per minute in total.

Users are those that authentication found, never a header's. A rejected call takes nothing from the other limits, so one
caller's flood doesn't use up the shared limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from refdesk.calls import Answer, Call, Handler
from refdesk.config.models import RateLimitConfig
from refdesk.documents.tokens import measure_tokens
from refdesk.errors import RateLimited
from refdesk.resilience.limits import Charge, Key, Limit, Metered, RateLimiter, Refusal

EXPECTED_TOKENS = 1000
"""Tokens charged for a call in progress until the real number is known, so that many concurrent calls don't all pass on
the last token."""

TEXT_METHODS = frozenset({"tools/call", "resources/read", "prompts/get"})
"""Methods whose answers a model reads. Lists are small and only count as calls."""

BINARY_FIELDS = ("data", "blob")
"""Fields of content items that hold binary data, such as images."""

BINARY_CHARACTERS_PER_TOKEN = 10
"""Estimate for binary data in base64: models take images as far fewer tokens than their text has."""

CACHED_TEXTS = 256
MAX_CACHED_LENGTH = 32_768
"""Cache of token counts: number of texts, and characters of one. Cached answers aren't counted again each time."""

MAX_COUNTED_LENGTH = 200_000
"""Characters of a text to count, which takes 20 ms of the event loop. Longer texts are extrapolated."""

ALL_CALLERS: Key = ("all",)
"""Bucket key for all callers. Shorter than any caller's key, so they never collide."""


def has_limits(settings: RateLimitConfig) -> bool:
    """Return whether any limit is configured. Otherwise the policy isn't needed."""
    return bool(settings.calls or settings.tokens or settings.total_calls)


class RateLimit:
    """Rate limit policy. It runs after authentication."""

    def __init__(
        self,
        settings: RateLimitConfig,
        limits: RateLimiter,
        refused: Callable[[str], None] = lambda kind: None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initialize the policy. `refused` is called with `calls`, `tokens` or `total` for every rejection."""
        self._limits = limits
        self._refused = refused
        self._now = now
        self._calls = Limit(settings.calls) if settings.calls else None
        self._tokens = Limit(settings.tokens) if settings.tokens else None
        self._global_charges = (Charge(ALL_CALLERS, Limit(settings.total_calls)),) if settings.total_calls else ()

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        user = call.caller.tenant, call.caller.user
        charges, tokens = list(self._global_charges), None
        if self._calls:
            charges.append(Charge((*user, "calls"), self._calls))
        if self._tokens and call.method in TEXT_METHODS:
            tokens = Charge((*user, "tokens"), self._tokens, min(EXPECTED_TOKENS, self._tokens.units))
            charges.append(tokens)
        refusal = await self._limits.take(charges)
        if refusal is not None:
            charge = refusal.charge
            self._refused("total" if charge is None or charge.key == ALL_CALLERS else str(charge.key[-1]))
            raise RateLimited(_format_refusal(refusal), retry_after=refusal.retry_after)
        if tokens is None:
            return await proceed(call)
        async with Metered(self._limits, tokens, self._now) as metered:
            answer = await proceed(call)
            metered.spent = count_answer_tokens(answer)
        return answer


def count_answer_tokens(answer: Answer) -> int:
    """Count the tokens of an answer. Structured content repeats the text and isn't counted."""
    return sum(_count_value(answer.result.get(name)) for name in ("content", "contents", "messages"))


def _count_value(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_count_value, value))
    if not isinstance(value, dict):
        return 0
    text = value.get("text")
    own = _count_text(text) if isinstance(text, str) else 0
    own += sum(len(value.get(name) or "") for name in BINARY_FIELDS) // BINARY_CHARACTERS_PER_TOKEN
    return own + _count_value(value.get("content")) + _count_value(value.get("resource"))


def _count_text(text: str) -> int:
    if len(text) <= MAX_CACHED_LENGTH:
        return _count_cached(text)
    part = text[:MAX_COUNTED_LENGTH]
    return measure_tokens(part) * len(text) // len(part)


_count_cached = lru_cache(maxsize=CACHED_TEXTS)(measure_tokens)


def _format_refusal(refusal: Refusal) -> str:
    charge = refusal.charge
    if charge is None:
        return f"Too many callers at once. Try again in {refusal.retry_after:g} s."
    maximum = charge.limit.units
    if charge.key == ALL_CALLERS:
        return f"Rate limit of the server reached: {maximum} calls per minute. Try again in {refusal.retry_after:g} s."
    return f"Rate limit reached: {maximum} {charge.key[-1]} per minute. Try again in {refusal.retry_after:g} s."
