"""Verification of OAuth 2.1 access tokens.

A verified token is cached by its digest, so that the next call with it needs no signature check.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, NamedTuple

import jwt
from jwt.types import Options

from refdesk.calls import DEFAULT_TENANT, Caller, TenantId, UserId
from refdesk.config import OAuthConfig
from refdesk.errors import InsufficientScope, InvalidToken
from refdesk.policy.jwks import JwksCache
from refdesk.policy.policies import TokenCaller
from refdesk.support.lru import BoundedDict

ALGORITHMS: Mapping[str, str] = {"RSA": "RS256", "EC P-256": "ES256", "OKP Ed25519": "EdDSA"}
"""Algorithm of each key type and curve.

The key decides, not the token. Symmetric algorithms (HS256 etc.) are never accepted.
"""

LEEWAY_SECONDS = 30.0
"""Tolerated clock difference to the issuer."""

CACHE_SECONDS = 300.0
"""How long a verified token is cached. A key that the issuer withdraws is accepted until then."""

MAX_CACHED_TOKENS = 10_000
"""Maximum number of cached tokens. The oldest are evicted."""

MAX_TOKEN_LENGTH = 16_384
"""Maximum number of characters. Longer tokens aren't parsed."""

MAX_NAME_LENGTH = 255
"""Maximum number of characters in a user or tenant name."""

MAX_TIMESTAMP = 253_402_300_800
"""The year 10000. Later times are rejected, because they make tokens that never expire."""

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""RFC 6749, 3.3. Other characters aren't valid in a header."""

_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)

# Times are checked here, because the library would read the clock itself.
_CHECKS: Options = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "enforce_minimum_key_length": True,
}


class _CachedToken(NamedTuple):
    caller: TokenCaller
    generation: int
    """Generation of the issuer's keys."""
    expires: float
    """Wall-clock time, from the token."""
    recheck_at: float
    """Monotonic time."""


class TokenVerifier:
    """Resolves access tokens to callers."""

    def __init__(
        self,
        settings: OAuthConfig,
        audience: str,
        issuer: JwksCache,
        *,
        max_cached: int = MAX_CACHED_TOKENS,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Initialize the verifier. `audience` is the required audience of tokens, by default the URL of this server."""
        assert settings.issuer is not None
        self._settings = settings
        name = settings.issuer.get_secret_value().rstrip("/")
        self._issuer_names = (name, f"{name}/")
        self.issuer = issuer
        self._audience = audience
        self._now = now
        self._clock = clock
        self._cached: BoundedDict[bytes, _CachedToken] = BoundedDict(max_cached)

    def has_token_form(self, credential: str) -> bool:
        """Return whether a credential has the form of an access token, which API keys don't have."""
        return len(credential) <= MAX_TOKEN_LENGTH and _TOKEN.fullmatch(credential) is not None

    def find_cached(self, digest: bytes) -> Caller | None:
        """Return the caller of a token that was verified recently."""
        known = self._cached.get(digest)
        if known is None or known.generation != self.issuer.generation:
            return None
        return None if known.recheck_at < self._now() or known.expires < self._clock() else known.caller

    async def verify(self, token: str, digest: bytes) -> Caller:
        """Return the caller of a token. Raises if it's invalid, lacks a scope, or can't be verified now."""
        try:
            key_id: str | None = jwt.get_unverified_header(token).get("kid")
        except (jwt.PyJWTError, RecursionError):
            raise InvalidToken("The access token is not valid") from None
        key = await self.issuer.get_key(key_id)
        if key is None:
            raise InvalidToken("The access token is signed with an unknown key")
        claims = self._decode(token, key)
        expires = self._check_times(claims)
        caller = self._build_caller(claims)
        self._cached[digest] = _CachedToken(caller, self.issuer.generation, expires, self._now() + CACHE_SECONDS)
        return caller

    def _decode(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                audience=self._audience,
                issuer=self._issuer_names,
                options=_CHECKS,
            )
        except jwt.InvalidAudienceError:
            raise InvalidToken("The access token is for another audience") from None
        except jwt.InvalidIssuerError:
            raise InvalidToken("The access token is from another issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise InvalidToken(f"The access token has no claim {error.claim!r}") from None
        except (jwt.PyJWTError, RecursionError):
            raise InvalidToken("The access token is not valid") from None

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        """Check the validity period, and return when the token expires."""
        now = self._clock()
        expires = _read_time(claims, "exp") + LEEWAY_SECONDS
        if expires < now:
            raise InvalidToken("The access token has expired")
        if "nbf" in claims and _read_time(claims, "nbf") - LEEWAY_SECONDS > now:
            raise InvalidToken("The access token is not valid yet")
        return expires

    def _build_caller(self, claims: Mapping[str, Any]) -> TokenCaller:
        settings = self._settings
        scopes = _read_scopes(claims)
        if not scopes.issuperset(settings.required_scopes):
            needed = " ".join(settings.required_scopes)
            raise InsufficientScope(f"The access token needs the scopes {needed}", settings.required_scopes)
        roles = frozenset(role for scope in scopes for role in settings.scope_roles.get(scope, ()))
        if settings.scope_roles and not roles:
            # A caller without roles may do everything, so a token with fewer scopes must not end up with none.
            given = " or ".join(settings.scope_roles)
            # Any of these scopes would do. The first one configured is the best guess.
            scopes_needed = (*settings.required_scopes, next(iter(settings.scope_roles)))
            raise InsufficientScope(f"The access token needs a scope that grants a role: {given}", scopes_needed)
        tenant = _read_name(claims, settings.tenant_claim) if settings.tenant_claim else DEFAULT_TENANT
        user = UserId(_read_name(claims, settings.user_claim))
        return TokenCaller(user, TenantId(tenant), roles, authenticated=True, scopes=scopes)


@asynccontextmanager
async def open_token_verifier(settings: OAuthConfig, audience: str) -> AsyncIterator[TokenVerifier]:
    """Open a verifier for the tokens of the configured issuer."""
    async with aclosing(JwksCache(settings, ALGORITHMS)) as issuer:
        yield TokenVerifier(settings, audience, issuer)


def _read_time(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_TIMESTAMP:
        raise InvalidToken(f"The access token's claim {name!r} is not a time")
    return value


def _read_name(claims: Mapping[str, Any], claim: str) -> str:
    value = claims.get(claim)
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME_LENGTH or not value.isprintable():
        raise InvalidToken(f"The access token has no usable claim {claim!r}")
    return value


def _read_scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """Return the scopes of a token, from `scope` (a string, RFC 9068) or `scp` (used by some issuers)."""
    given = claims.get("scope", claims.get("scp", ""))
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list):
        return frozenset()
    return frozenset(word for word in words if isinstance(word, str) and _SCOPE.fullmatch(word))
