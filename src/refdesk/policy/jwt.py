"""Access tokens of an OAuth 2.1 authorization server: is it one of its own, is it for us, and who calls with it?

A token that was found good is remembered for a while by its digest, so that the next call with it costs no signature.
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import jwt
from jwt.types import Options

from refdesk.calls import DEFAULT_TENANT, Caller, TenantId, UserId
from refdesk.config import OAuthConfig
from refdesk.errors import InsufficientScope, InvalidToken
from refdesk.policy.jwks import Issuer, open_issuer
from refdesk.policy.permissions import TokenCaller

LEEWAY_SECONDS = 30.0
"""How far the issuer's clock may be from ours."""

TRUST_SECONDS = 300.0
"""How long a token that was found good is not looked at again; a key that the issuer withdraws counts until then."""

MAX_TRUSTED = 10_000
"""Tokens that are remembered; the oldest make room."""

LONGEST_TOKEN = 16_384
"""Characters; longer ones are not even looked at."""

LONGEST_NAME = 255
"""Characters of a user or tenant, as everywhere."""

END_OF_TIME = 253_402_300_800
"""The year 10000; what is beyond is no time but a way to have a token that never ends."""

_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""RFC 6749, 3.3. Nothing else can go into a header."""

_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)

# Times are checked here and not by the library, which would read the clock itself.
_CHECKS: Options = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "enforce_minimum_key_length": True,
}


class _Trusted(NamedTuple):
    caller: TokenCaller
    generation: int
    """Of the issuer's keys."""
    expires: float
    """By the clock on the wall, as the token says it."""
    look_again: float
    """By the clock that never jumps."""


class Tokens:
    """Turns access tokens into callers."""

    def __init__(
        self,
        settings: OAuthConfig,
        audience: str,
        issuer: Issuer,
        *,
        max_trusted: int = MAX_TRUSTED,
        now: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`audience` is what a token must be meant for: by default the address of this server."""
        assert settings.issuer is not None
        self._settings = settings
        name = settings.issuer.get_secret_value().rstrip("/")
        self._issuer_names = (name, f"{name}/")
        self.issuer = issuer
        self._audience = audience
        self._max_trusted = max_trusted
        self._now = now
        self._clock = clock
        self._trusted: dict[bytes, _Trusted] = {}

    def are_like(self, credential: str) -> bool:
        """Whether a credential has the form of an access token; a key of ours has not."""
        return len(credential) <= LONGEST_TOKEN and _TOKEN.fullmatch(credential) is not None

    def trusted(self, digest: bytes) -> Caller | None:
        """The caller behind a token that was found good a short while ago."""
        known = self._trusted.get(digest)
        if known is None or known.generation != self.issuer.generation:
            return None
        return None if known.look_again < self._now() or known.expires < self._clock() else known.caller

    async def verify(self, token: str, digest: bytes) -> Caller:
        """The caller behind a token; raises when it is not valid, lacks a scope, or cannot be checked now."""
        key = await self.issuer.key(_key_id(token))
        if key is None:
            raise InvalidToken("The access token is signed with a key that its issuer does not have")
        claims = self._claims(token, key)
        expires = self._checked_times(claims)
        caller = self._caller(claims)
        self._trust(digest, _Trusted(caller, self.issuer.generation, expires, self._now() + TRUST_SECONDS))
        return caller

    def _trust(self, digest: bytes, found: _Trusted) -> None:
        self._trusted.pop(digest, None)
        while len(self._trusted) >= self._max_trusted:
            del self._trusted[next(iter(self._trusted))]
        self._trusted[digest] = found

    def _claims(self, token: str, key: jwt.PyJWK) -> Mapping[str, Any]:
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
            raise InvalidToken("The access token is not meant for this server") from None
        except jwt.InvalidIssuerError:
            raise InvalidToken("The access token is of another issuer") from None
        except jwt.MissingRequiredClaimError as error:
            raise InvalidToken(f"The access token has no claim {error.claim!r}") from None
        except (jwt.PyJWTError, RecursionError):
            raise InvalidToken("The access token is not valid") from None

    def _checked_times(self, claims: Mapping[str, Any]) -> float:
        """When the token ends."""
        now = self._clock()
        expires = _time(claims, "exp") + LEEWAY_SECONDS
        if expires < now:
            raise InvalidToken("The access token has expired")
        if "nbf" in claims and _time(claims, "nbf") - LEEWAY_SECONDS > now:
            raise InvalidToken("The access token is not valid yet")
        return expires

    def _caller(self, claims: Mapping[str, Any]) -> TokenCaller:
        settings = self._settings
        scopes = _scopes(claims)
        if not scopes.issuperset(settings.required_scopes):
            needed = " ".join(settings.required_scopes)
            raise InsufficientScope(f"The access token needs the scopes {needed}", settings.required_scopes)
        roles = frozenset(role for scope in scopes for role in settings.scope_roles.get(scope, ()))
        if settings.scope_roles and not roles:
            # Without any role it could do everything: to ask the issuer for less must not give more.
            given = " or ".join(settings.scope_roles)
            # Any of them would do, and the first in the configuration is as good a guess as there is.
            scopes_needed = (*settings.required_scopes, next(iter(settings.scope_roles)))
            raise InsufficientScope(f"The access token needs a scope that gives a role: {given}", scopes_needed)
        tenant = _name(claims, settings.tenant_claim) if settings.tenant_claim else DEFAULT_TENANT
        user = UserId(_name(claims, settings.user_claim))
        return TokenCaller(user, TenantId(tenant), roles, authenticated=True, scopes=scopes)


@asynccontextmanager
async def open_tokens(settings: OAuthConfig, audience: str) -> AsyncIterator[Tokens]:
    """The tokens of the issuer that is set."""
    async with open_issuer(settings) as issuer:
        yield Tokens(settings, audience, issuer)


def _key_id(token: str) -> str | None:
    """The id of the key that a token says it is signed with; nobody has checked it yet."""
    try:
        id: str | None = jwt.get_unverified_header(token).get("kid")
    except (jwt.PyJWTError, RecursionError):
        raise InvalidToken("The access token is not valid") from None
    return id


def _time(claims: Mapping[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < END_OF_TIME:
        raise InvalidToken(f"The access token's claim {name!r} is not a time")
    return value


def _name(claims: Mapping[str, Any], claim: str) -> str:
    value = claims.get(claim)
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_NAME or not value.isprintable():
        raise InvalidToken(f"The access token has no usable claim {claim!r}")
    return value


def _scopes(claims: Mapping[str, Any]) -> frozenset[str]:
    """What the token may be used for: `scope`, a text (RFC 9068), or the `scp` that some issuers have in its place."""
    given = claims.get("scope", claims.get("scp", ""))
    words = given.split() if isinstance(given, str) else given
    if not isinstance(words, list):
        return frozenset()
    return frozenset(word for word in words if isinstance(word, str) and _SCOPE.fullmatch(word))
