"""So many calls and tokens a minute for each key or user, and so many calls for all of them together.

Who calls is what authentication found, never what a header says. What is over a limit is refused before anything is
done for it, and takes nothing from the other limits: one caller's flood does not use up what all share.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from refdesk.calls import Answer, Call, Caller, Handler
from refdesk.config import RateLimitConfig
from refdesk.documents.tokens import count_tokens
from refdesk.errors import RateLimited
from refdesk.resilience.limits import Charge, Key, Limit, Limits, Metered, Refusal

EXPECTED_TOKENS = 1000
"""What a call under way is taken to return until it is known, so that many at once are not all let in for the last
token that is left."""

TEXT_METHODS = frozenset({"tools/call", "resources/read", "prompts/get"})
"""The calls whose answers a model reads. Lists of what there is are small and counted as calls alone."""

BINARY_FIELDS = ("data", "blob")
"""Where the items of an answer carry what is no text, such as pictures."""

CHARACTERS_A_TOKEN = 10
"""Of what is no text, and of words without end, which the tokenizer takes for one token each."""

TEXTS_KEPT = 256
LONGEST_KEPT = 32_768
"""Texts, and characters of one, whose tokens are remembered: an answer from the cache is not counted anew each time."""

LONGEST_COUNTED = 200_000
"""Characters of a text that are counted, which takes a fiftieth of a second while nobody else is served; what is longer
has as many more as it is longer."""

ALL_CALLERS: Key = ("all",)
"""Shorter than the key of any caller, and so none of theirs."""


def is_limited(settings: RateLimitConfig) -> bool:
    """Whether any limit is set: if not, the policy need not stand in the chain."""
    return bool(settings.calls or settings.tokens or settings.total_calls)


class RateLimit:
    """The policy; it stands behind authentication."""

    def __init__(
        self,
        settings: RateLimitConfig,
        limits: Limits,
        refused: Callable[[str], None] = lambda kind: None,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """`refused` is told of every refusal whether it was for `calls`, `tokens` or the `total`."""
        self._limits = limits
        self._refused = refused
        self._now = now
        self._calls = Limit(settings.calls) if settings.calls else None
        self._tokens = Limit(settings.tokens) if settings.tokens else None
        self._of_all = (Charge(ALL_CALLERS, Limit(settings.total_calls)),) if settings.total_calls else ()

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        tokens = self._token_charge(call)
        refusal = await self._limits.take(self._charges(call.caller, tokens))
        if refusal is not None:
            self._refused(_kind(refusal))
            raise RateLimited(_sentence(refusal), retry_after=refusal.retry_after)
        if tokens is None:
            return await proceed(call)
        async with Metered(self._limits, tokens, self._now) as metered:
            answer = await proceed(call)
            metered.spent = returned_tokens(answer)
        return answer

    def _charges(self, caller: Caller, tokens: Charge | None) -> list[Charge]:
        charges = list(self._of_all)
        if self._calls:
            charges.append(Charge((caller.tenant, caller.user, "calls"), self._calls))
        if tokens:
            charges.append(tokens)
        return charges

    def _token_charge(self, call: Call) -> Charge | None:
        if self._tokens is None or call.method not in TEXT_METHODS:
            return None
        expected = min(EXPECTED_TOKENS, self._tokens.units)
        return Charge((call.caller.tenant, call.caller.user, "tokens"), self._tokens, expected)


def returned_tokens(answer: Answer) -> int:
    """What an answer costs the model that reads it; structured content says the same again, and is not counted."""
    return sum(_tokens(answer.result.get(name)) for name in ("content", "contents", "messages"))


def _tokens(value: Any) -> int:
    if isinstance(value, list):
        return sum(map(_tokens, value))
    if not isinstance(value, dict):
        return 0
    text = value.get("text")
    own = _text_tokens(text) if isinstance(text, str) else 0
    own += sum(len(value.get(name) or "") for name in BINARY_FIELDS) // CHARACTERS_A_TOKEN
    return own + _tokens(value.get("content")) + _tokens(value.get("resource"))


def _text_tokens(text: str) -> int:
    if len(text) <= LONGEST_KEPT:
        return _count(text)
    part = text[:LONGEST_COUNTED]
    return _count.__wrapped__(part) * len(text) // len(part)


@lru_cache(maxsize=TEXTS_KEPT)
def _count(text: str) -> int:
    return max(count_tokens(text), len(text) // CHARACTERS_A_TOKEN)


def _kind(refusal: Refusal) -> str:
    charge = refusal.charge
    return "total" if charge is None or charge.key == ALL_CALLERS else str(charge.key[-1])


def _sentence(refusal: Refusal) -> str:
    charge = refusal.charge
    if charge is None:
        return f"Too many callers at once; try again in {refusal.retry_after:g} s."
    most = charge.limit.units
    if charge.key == ALL_CALLERS:
        return f"This server answers at most {most} calls a minute in all; try again in {refusal.retry_after:g} s."
    return f"At most {most} {charge.key[-1]} a minute are yours; try again in {refusal.retry_after:g} s."
