"""Verification of OAuth 2.1 access tokens with the signing keys of an authorization server.

A verified token is cached by its digest, so that the next call with it needs no signature check.

Keys are fetched on demand and refreshed. URLs come from the configuration and from the issuer's metadata, never from a
token. Fetches are rate-limited however many tokens name unknown keys, and cached keys stay valid while the issuer is
down.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import jwt
import orjson
from jwt.types import Options
from yarl import URL

from refdesk.calls import DEFAULT_TENANT, Caller, TenantId, UserId
from refdesk.config.models import OAuthConfig
from refdesk.errors import InsufficientScope, InvalidToken, IssuerAway
from refdesk.policy.policies import TokenCaller
from refdesk.resilience.http_client import open_http_session, read_body, split_login
from refdesk.support.lru import BoundedDict

logger = logging.getLogger(__name__)

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
    async with aclosing(JwksCache(settings)) as issuer:
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


# Signing keys of the issuer

FETCH_SECONDS = 5.0
"""Time limit for fetching metadata and keys together. A caller with a new token waits no longer than this."""

MIN_FETCH_INTERVAL_SECONDS = 5.0
"""Minimum interval between two fetches, and so the longest time that a new key may be unknown."""

REFRESH_SECONDS = 600.0
"""Age after which keys in use are fetched again, so that a key the issuer has withdrawn stops working."""

STALE_SECONDS = 2 * REFRESH_SECONDS
"""Age after which a call waits for the fetch. Only reached if there were no calls for that long."""

MAX_BYTES = 262_144
MAX_KEYS = 100
"""Maximum number of keys to read. Issuers have a handful."""


class _Unusable(Exception):
    """The issuer's response is invalid. The message completes "the issuer's …"."""


class JwksCache:
    """Cached signing keys of one issuer.

    Keys are fetched with the first token, so the server starts even if the issuer is down.
    """

    def __init__(
        self, settings: OAuthConfig, *, fetch_seconds: float = FETCH_SECONDS, now: Callable[[], float] = time.monotonic
    ) -> None:
        assert settings.issuer is not None
        self._issuer = settings.issuer.get_secret_value()
        self._configured_url = settings.jwks_url.get_secret_value() if settings.jwks_url else None
        self._found_url: str | None = None
        self._fetch_seconds = fetch_seconds
        self._now = now
        self._jwks: list[Any] = []
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._failure: str | None = None
        self._fetching: asyncio.Task[None] | None = None
        self.generation = 0
        """Increases when the keys change, which invalidates tokens verified with the old ones."""

    async def get_key(self, id: str | None) -> jwt.PyJWK | None:
        """Return the key with this id, or the only key if `id` is None. None if the issuer has no such key."""
        age = self._now() - self._fetched_at
        if age > REFRESH_SECONDS:
            self._start_fetch()
        # A cached key doesn't wait for an issuer that is known to be down.
        if id not in self._keys or (age > STALE_SECONDS and self._failure is None):
            self._start_fetch()
            if self._fetching is not None:
                # Shielded, so that cancelling one waiter doesn't cancel it for the others.
                await asyncio.shield(self._fetching)
        found = self._keys.get(id)
        if found is None and self._failure is not None:
            wait = max(0.0, self._tried_at + MIN_FETCH_INTERVAL_SECONDS - self._now())
            raise IssuerAway(f"Access tokens can't be verified at the moment: {self._failure}", retry_after=wait)
        return found

    def describe(self) -> dict[str, str]:
        """Return the state of the last fetch. While the issuer is down, tokens signed with cached keys are accepted."""
        if self._failure is not None:
            return {"state": "down", "detail": self._failure}
        return {"state": "ok" if self._keys else "not asked yet"}

    async def aclose(self) -> None:
        """Cancel a fetch in progress."""
        if self._fetching is not None:
            self._fetching.cancel()
            with suppress(asyncio.CancelledError):
                await self._fetching

    def _start_fetch(self) -> None:
        """Start a fetch, unless one is in progress or the last is too recent."""
        if self._fetching is None and self._now() - self._tried_at >= MIN_FETCH_INTERVAL_SECONDS:
            self._tried_at = self._now()
            self._fetching = asyncio.create_task(self._fetch())

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._fetch_seconds):
                if self._found_url is None:
                    self._found_url = self._configured_url or await self._discover()
                self._store_keys(await self._get(self._found_url))
        # `ValueError`: the metadata has a jwks_uri that can't be parsed.
        except (aiohttp.ClientError, OSError, ValueError, _Unusable) as error:
            # The keys may have moved, so the metadata is read again next time.
            self._found_url = None
            failure = f"the issuer's {error}" if isinstance(error, _Unusable) else "the issuer does not answer"
            if self._failure != failure:
                logger.warning("%s (%s)", failure, type(error).__name__)
            self._failure = failure
        finally:
            self._fetching = None

    def _store_keys(self, answer: Any) -> None:
        jwks = answer.get("keys")
        if not isinstance(jwks, list):
            raise _Unusable("keys are not a JSON Web Key Set")
        if jwks != self._jwks:
            self._jwks, self._keys = jwks, _parse_keys(jwks)
            self.generation += 1
        if self._failure is not None:
            logger.warning("the token issuer is available again")
        self._failure, self._fetched_at = None, self._now()

    async def _discover(self) -> str:
        """Return the JWKS URL from the issuer's metadata."""
        for url in list_metadata_urls(self._issuer):
            try:
                metadata = await self._get(url)
            except _Unusable:
                continue
            if not is_same_issuer(metadata.get("issuer"), self._issuer):
                raise _Unusable("metadata belongs to another issuer")
            found = metadata.get("jwks_uri")
            schemes = ("https",) if self._issuer.startswith("https:") else ("https", "http")
            if not isinstance(found, str) or URL(found).scheme not in schemes:
                raise _Unusable("metadata has no usable jwks_uri")
            return found
        raise _Unusable("metadata was not found")

    async def _get(self, url: str) -> Mapping[str, Any]:
        """Fetch a JSON object of limited size, without following redirects."""
        # A password in the URL is sent as a header, because the URL may be logged.
        target, login = split_login(URL(url))
        # Not compressed: a small response could expand beyond the memory.
        headers = {"accept": "application/json", "accept-encoding": "identity"}
        if login is not None:
            headers["authorization"] = login
        # A session per request: metadata and keys may be on different hosts, and are fetched every few minutes.
        async with (
            open_http_session(target, connect_seconds=self._fetch_seconds, uses_proxy=True) as session,
            session.get(target, headers=headers, allow_redirects=False, auto_decompress=False) as response,
        ):
            if response.status != 200:
                raise _Unusable(f"answer has the status {response.status}")
            body = await read_body(response, MAX_BYTES, lambda: _Unusable("answer is too long"))
        try:
            answer = orjson.loads(body)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise _Unusable("answer is not a JSON object")
        return answer


def list_metadata_urls(issuer: str) -> list[str]:
    """Return the URLs where an issuer's metadata may be (RFC 8414, OpenID Connect), in order of preference."""
    parts = urlsplit(issuer)
    host, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    urls = [
        f"{host}/.well-known/oauth-authorization-server{path}",
        f"{host}/.well-known/openid-configuration{path}",
        f"{host}{path}/.well-known/openid-configuration",
    ]
    return list(dict.fromkeys(urls))


def is_same_issuer(one: object, other: str) -> bool:
    """Return whether two issuer identifiers are equal, ignoring a trailing slash."""
    return isinstance(one, str) and one.rstrip("/") == other.rstrip("/")


def _parse_keys(jwks: list[Any]) -> dict[str | None, jwt.PyJWK]:
    """Return the supported signing keys by id. A single key is also stored under None, for tokens without a key id."""
    keys: dict[str | None, jwt.PyJWK] = {}
    for jwk in jwks[:MAX_KEYS]:
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or not isinstance(jwk.get("kid", ""), str):
            continue
        algorithm = ALGORITHMS.get(f"{jwk.get('kty')} {jwk.get('crv', '')}".strip())
        if algorithm is not None and jwk.get("alg", algorithm) == algorithm:
            with suppress(jwt.PyJWTError):  # an unusable key doesn't invalidate the others
                key = jwt.PyJWK({**jwk, "alg": algorithm}, algorithm)
                keys.setdefault(key.key_id, key)
    if len(keys) == 1:
        keys[None] = next(iter(keys.values()))
    elif len(keys) > 1:
        keys.pop(None, None)
    return keys
