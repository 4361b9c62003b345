"""Authentication: resolves an API key or an access token to a caller, and rejects calls without one if required."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refdesk.calls import ANONYMOUS, Answer, Call, Caller, Handler
from refdesk.config import AuthConfig
from refdesk.errors import Unauthenticated
from refdesk.policy.keys import FILE_NAME, KeyFile, Keys, digest

if TYPE_CHECKING:
    from refdesk.policy.jwt import TokenVerifier

WRONG_KEY = "Invalid API key"
NO_TOKEN = "This server needs an access token"


@asynccontextmanager
async def open_authentication(settings: AuthConfig, data: Path, audience: str) -> AsyncIterator[Authenticate]:
    """Open authentication with API keys, and with access tokens if an issuer is configured."""
    keys = Keys(settings.keys, KeyFile(data / FILE_NAME))
    if settings.oauth.issuer is None:
        yield Authenticate(keys, required=settings.required)
        return
    # Slow to import, and most installations use no access tokens.
    from refdesk.policy.jwt import open_token_verifier

    async with open_token_verifier(settings.oauth, audience) as tokens:
        yield Authenticate(keys, tokens, required=settings.required)


class Authenticate:
    """Authentication policy.

    Transports resolve credentials with `identify`. The policy makes sure that none of them skipped it.
    """

    def __init__(self, keys: Keys, tokens: TokenVerifier | None = None, *, required: bool) -> None:
        self.keys = keys
        self._tokens = tokens
        self._required = required

    @property
    def has_keys(self) -> bool:
        """Whether callers are authenticated, by keys or by tokens."""
        return self._tokens is not None or self.keys.in_use

    def describe(self) -> dict[str, Any]:
        """Return the state of the token issuer, if one is configured."""
        return {} if self._tokens is None else {"issuer": self._tokens.issuer.describe()}

    def identify(self, credential: str | None) -> Caller | Awaitable[Caller]:
        """Return the caller of a credential. Raises if it's invalid, or missing although required.

        The result is awaitable only for an access token that isn't cached.
        """
        if credential is None:
            if self._required:
                raise Unauthenticated(WRONG_KEY if self.keys.in_use else NO_TOKEN)
            return ANONYMOUS
        fingerprint = digest(credential)
        caller = self.keys.find(fingerprint)
        if caller is not None or self._tokens is None:
            return caller or self._accept_unknown()
        if (caller := self._tokens.find_cached(fingerprint)) is not None:
            return caller
        return (
            self._tokens.verify(credential, fingerprint)
            if self._tokens.has_token_form(credential)
            else self._accept_unknown()
        )

    def _accept_unknown(self) -> Caller:
        # If keys are optional, a wrong one is still rejected: its owner expects to be authenticated.
        if self._required or self.has_keys:
            raise Unauthenticated(WRONG_KEY)
        return ANONYMOUS

    async def __call__(self, call: Call, proceed: Handler) -> Answer:
        if self._required and not call.caller.authenticated:
            raise Unauthenticated(WRONG_KEY)
        return await proceed(call)
