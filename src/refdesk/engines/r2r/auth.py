"""Access tokens of the R2R service account.

Concurrent callers share one login or refresh. Lifetimes are computed from the token's own claims and measured on the
local monotonic clock, so that the server's clock doesn't matter. Failed logins are retried with backoff. Tokens never
appear in errors.
"""

from __future__ import annotations

import math
import time
from base64 import urlsafe_b64decode
from binascii import Error as NotBase64
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import orjson

from refdesk.errors import BreakerOpen, DependencyError, R2RMisconfigured, Refused
from refdesk.resilience.concurrency import SingleFlight

RENEW_EARLY_SECONDS = 300.0
"""Time before expiry when a token is renewed: the longest request should still finish with the old one."""

SHORT_LIFETIME_SHARE = 0.8
"""Share of a short lifetime after which the token is renewed, if five minutes would be most of it."""

FIRST_BACKOFF_SECONDS = 1.0
"""Delay after a failed login, doubled with each further failure."""

MAX_BACKOFF_SECONDS = 60.0
"""Maximum delay: the password or server may have been fixed meanwhile."""


@dataclass(frozen=True, slots=True)
class TokenPair:
    """Tokens of a login or refresh."""

    access: str
    refresh: str


class CredentialsRefused(Exception):
    """The server rejected the account, the password or the refresh token."""


@dataclass(frozen=True, slots=True)
class TokenSession:
    """Token pair with its expiry times on the local clock."""

    tokens: TokenPair
    renew_at: float
    expires_at: float
    refresh_expires_at: float
    is_proven: bool = False
    """Whether a request with it was accepted."""

    @classmethod
    def start(cls, tokens: TokenPair, now: float) -> TokenSession:
        """Create the session of new tokens."""
        lifetime = read_lifetime(tokens.access)
        return cls(
            tokens,
            renew_at=now + max(lifetime - RENEW_EARLY_SECONDS, lifetime * SHORT_LIFETIME_SHARE),
            expires_at=now + lifetime,
            refresh_expires_at=now + read_lifetime(tokens.refresh),
        )


def read_lifetime(token: str) -> float:
    """Return the lifetime of a JWT in seconds, or infinity if it isn't stated."""
    try:
        body = token.split(".")[1]
        claims = orjson.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        seconds = float(claims["exp"]) - float(claims["iat"])
    except (IndexError, KeyError, TypeError, ValueError, NotBase64):
        return math.inf
    return seconds if seconds > 0 else math.inf


class TokenManager:
    """Shared access token of one service account."""

    def __init__(
        self,
        login: Callable[[], Awaitable[TokenPair]],
        refresh: Callable[[str], Awaitable[TokenPair]],
        *,
        now: Callable[[], float] = time.monotonic,
        on_event: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create a manager. `on_event` is called with `refreshed`, `login` or `failed`.

        `login` returns tokens for the account's password, `refresh` for a refresh token, which can be used once. Both
        raise `CredentialsRefused`, or a `DependencyError` if the issuer is unreachable.
        """
        self._login = login
        self._refresh = refresh
        self._now = now
        self._on_event = on_event
        self._session: TokenSession | None = None
        self._single_flight: SingleFlight[str, str] = SingleFlight()
        self._failures = 0
        self._unproven = 0
        """Consecutive tokens that were rejected at their first use."""
        self._not_before = -math.inf
        self._last_failure: DependencyError | None = None

    async def get_token(self) -> str:
        """Return a valid token. Waits for a new one only if there is none."""
        session, now = self._session, self._now()
        if session is not None and now < session.renew_at:
            return session.tokens.access
        usable = session.tokens.access if session is not None and now < session.expires_at else None
        if now < self._not_before:
            if usable is not None:
                return usable
            # The last failure again: R2R isn't called during the backoff.
            failure = self._last_failure
            assert failure is not None
            raise type(failure)(failure.detail, retry_after=self._not_before - now)
        try:
            return await self._single_flight.run("token", self._renew)
        except (DependencyError, Refused):
            if usable is None:
                raise
            return usable

    def mark_accepted(self, token: str) -> None:
        """Record that a request with this token was accepted."""
        session = self._session
        if session is not None and session.tokens.access == token and not session.is_proven:
            self._session = replace(session, is_proven=True)
            self._failures = self._unproven = 0

    def mark_rejected(self, token: str) -> None:
        """Record that a request with this token was rejected, and invalidate it. Outdated tokens are ignored."""
        session = self._session
        if session is None or session.tokens.access != token or session.expires_at == -math.inf:
            return
        self._session = replace(session, renew_at=-math.inf, expires_at=-math.inf)
        self._unproven += not session.is_proven
        if self._unproven > 1:
            # A server that rejects its own new tokens twice will reject the next one too.
            self._record_failure(R2RMisconfigured("R2R rejected the token it has just issued."))

    async def _renew(self) -> str:
        session = self._session
        try:
            tokens = await self._fetch_tokens(session)
        except CredentialsRefused as error:
            failure = R2RMisconfigured("R2R rejected the service account's login. Check r2r.email and r2r.password.")
            self._record_failure(failure)
            raise failure from error
        except BreakerOpen:
            raise  # no request was made
        except DependencyError as error:
            self._record_failure(BreakerOpen(f"{error.detail} Refdesk waits before it tries again."))
            raise
        if self._unproven < 2:
            self._not_before = -math.inf
        self._session = TokenSession.start(tokens, self._now())
        return tokens.access

    async def _fetch_tokens(self, session: TokenSession | None) -> TokenPair:
        if session is not None and self._now() < session.refresh_expires_at:
            try:
                tokens = await self._refresh(session.tokens.refresh)
                self._on_event("refreshed")
                return tokens
            except CredentialsRefused:
                # Used, revoked or expired: don't use it again, even if the login fails.
                self._session = replace(session, refresh_expires_at=-math.inf)
        tokens = await self._login()
        self._on_event("login")
        return tokens

    def _record_failure(self, failure: DependencyError) -> None:
        self._on_event("failed")
        self._failures += 1
        backoff = min(FIRST_BACKOFF_SECONDS * 2.0 ** min(self._failures - 1, 10), MAX_BACKOFF_SECONDS)
        self._not_before = self._now() + backoff
        self._last_failure = failure


class ApiKeySource:
    """API key in place of an account. It never changes, so a rejected key stays rejected."""

    def __init__(self, key: str) -> None:
        self._key = key

    async def get_token(self) -> str:
        return self._key

    def mark_accepted(self, token: str) -> None:
        pass

    def mark_rejected(self, token: str) -> None:
        raise R2RMisconfigured("R2R rejected the API key. Check r2r.api_key.")


TokenSource = TokenManager | ApiKeySource
