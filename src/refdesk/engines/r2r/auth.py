"""The access token of the service account: whose it is, how long it is good for, and who fetches the next one.

Any number of callers ask; one login or refresh serves them all. Lifetimes are measured on our own monotonic clock, by
what the token says of its length: whether the other side's clock is right does not matter. A login that fails is not
tried again before a while has passed, so that a server in trouble is not stormed. No token is ever part of an error.
"""

from __future__ import annotations

import math
import time
from base64 import urlsafe_b64decode
from binascii import Error as NotBase64
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import orjson

from refdesk.errors import BreakerOpen, DependencyError, R2RMisconfigured, Refused
from refdesk.resilience.single_flight import Flights

EARLY_SECONDS = 300.0
"""Before a token expires, a new one is fetched: the longest request there is should still end with the old one."""

SHARE_OF_SHORT_LIVES = 0.8
"""Of a life that is so short that five minutes would be most of it."""

FIRST_PAUSE_SECONDS = 1.0
"""After a login that failed; each further failure doubles it."""

LONGEST_PAUSE_SECONDS = 60.0
"""Between two logins that fail: somebody may have mended the password or the server meanwhile."""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """What a login or a refresh gives."""

    access: str
    refresh: str


class CredentialsRefused(Exception):
    """The other side knows the account, the password or the refresh token not, or no more."""


class Issuer(Protocol):
    """Who gives out tokens. Raises `CredentialsRefused`, or a `DependencyError` when it cannot be asked."""

    async def login(self) -> TokenPair:
        """Tokens for the account's password."""
        ...

    async def refresh(self, token: str) -> TokenPair:
        """Tokens for a refresh token, which is spent by it."""
        ...


@dataclass(frozen=True, slots=True)
class Session:
    """A pair of tokens, and when each is to be replaced on our clock."""

    tokens: TokenPair
    renew_at: float
    dies_at: float
    refresh_dies_at: float
    proven: bool = False
    """Whether a request with it was let in."""

    @classmethod
    def began(cls, tokens: TokenPair, now: float) -> Session:
        """The session that these tokens begin."""
        lifetime = lifetime_of(tokens.access)
        return cls(
            tokens,
            renew_at=now + max(lifetime - EARLY_SECONDS, lifetime * SHARE_OF_SHORT_LIVES),
            dies_at=now + lifetime,
            refresh_dies_at=now + lifetime_of(tokens.refresh),
        )


def lifetime_of(token: str) -> float:
    """The seconds that a JSON Web Token says it is good for; endless when it does not say, till it is refused."""
    try:
        body = token.split(".")[1]
        claims = orjson.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        seconds = float(claims["exp"]) - float(claims["iat"])
    except (IndexError, KeyError, TypeError, ValueError, NotBase64):
        return math.inf
    return seconds if seconds > 0 else math.inf


class Tokens:
    """One service account's token, for any number of callers."""

    def __init__(
        self,
        issuer: Issuer,
        *,
        now: Callable[[], float] = time.monotonic,
        told: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`told` hears of every token that is fetched: `refreshed`, `login` or `failed`."""
        self._issuer = issuer
        self._now = now
        self._told = told
        self._session: Session | None = None
        self._flights: Flights[str, str] = Flights()
        self._failures = 0
        self._unproven = 0
        """Tokens in a row that were refused at their first use."""
        self._not_before = -math.inf
        self._last_failure: DependencyError | None = None

    async def token(self) -> str:
        """A token that should be let in; waits for a new one only when there is none."""
        session, now = self._session, self._now()
        if session is not None and now < session.renew_at:
            return session.tokens.access
        usable = session.tokens.access if session is not None and now < session.dies_at else None
        if now < self._not_before:
            return usable or self._refusal(now)
        try:
            return await self._flights.run("token", self._renew)
        except (DependencyError, Refused):
            if usable is None:
                raise
            return usable

    def accepted(self, token: str) -> None:
        """A request with this token was let in."""
        session = self._session
        if session is not None and session.tokens.access == token and not session.proven:
            self._session = replace(session, proven=True)
            self._failures = self._unproven = 0

    def rejected(self, token: str) -> None:
        """A request with this token was refused: nobody is to use it again. An older one's refusal says nothing."""
        session = self._session
        if session is None or session.tokens.access != token or session.dies_at == -math.inf:
            return
        self._session = replace(session, renew_at=-math.inf, dies_at=-math.inf)
        self._unproven += not session.proven
        if self._unproven > 1:
            # What refuses its own fresh tokens twice will refuse the next one too.
            self._note_failure(R2RMisconfigured("R2R does not accept the token that it has just given out."))

    async def _renew(self) -> str:
        session = self._session
        try:
            tokens = await self._next_tokens(session)
        except CredentialsRefused as error:
            failure = R2RMisconfigured(
                "R2R does not know the service account or its password. Check r2r.email and r2r.password."
            )
            self._note_failure(failure)
            raise failure from error
        except BreakerOpen:
            raise  # nobody was asked
        except DependencyError as error:
            self._note_failure(BreakerOpen(f"{error.detail} It is left alone for a while."))
            raise
        if self._unproven < 2:
            self._not_before = -math.inf
        self._session = Session.began(tokens, self._now())
        return tokens.access

    async def _next_tokens(self, session: Session | None) -> TokenPair:
        if session is not None and self._now() < session.refresh_dies_at:
            try:
                tokens = await self._issuer.refresh(session.tokens.refresh)
                self._told("refreshed")
                return tokens
            except CredentialsRefused:
                # Spent, revoked or expired: not used again, whatever becomes of the login.
                self._session = replace(session, refresh_dies_at=-math.inf)
        tokens = await self._issuer.login()
        self._told("login")
        return tokens

    def _note_failure(self, failure: DependencyError) -> None:
        self._told("failed")
        self._failures += 1
        pause = min(FIRST_PAUSE_SECONDS * 2.0 ** min(self._failures - 1, 10), LONGEST_PAUSE_SECONDS)
        self._not_before = self._now() + pause
        self._last_failure = failure

    def _refusal(self, now: float) -> str:
        """The last failure, told anew: R2R is not asked while it is fresh."""
        failure = self._last_failure
        assert failure is not None
        raise type(failure)(failure.detail, retry_after=self._not_before - now)


class ApiKey:
    """An API key in place of an account: it never changes, and one that is refused stays refused."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def token(self) -> str:
        """The key."""
        return self._key

    def accepted(self, token: str) -> None:
        """Nothing to note."""

    def rejected(self, token: str) -> None:
        """No other key can be had."""
        raise R2RMisconfigured("R2R does not accept the API key. Check r2r.api_key.")


TokenSource = Tokens | ApiKey
