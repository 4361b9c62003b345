"""JWKS cache: the signing keys of an authorization server, fetched on demand and refreshed.

URLs come from the configuration and from the issuer's metadata, never from a token. Fetches are rate-limited however
many tokens name unknown keys, and cached keys stay valid while the issuer is down.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import orjson
from jwt import PyJWK, PyJWTError
from yarl import URL

from refdesk.config import OAuthConfig
from refdesk.errors import IssuerAway
from refdesk.resilience.http_client import open_http_session, read_body, split_login

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

logger = logging.getLogger(__name__)


class _Unusable(Exception):
    """The issuer's response is invalid. The message completes "the issuer's …"."""


class JwksCache:
    """Cached signing keys of one issuer.

    Keys are fetched with the first token, so the server starts even if the issuer is down.
    """

    def __init__(
        self,
        settings: OAuthConfig,
        algorithms: Mapping[str, str],
        *,
        fetch_seconds: float = FETCH_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Initialize an empty cache. `algorithms` has the signature algorithm of each usable type of key."""
        assert settings.issuer is not None
        self._issuer = settings.issuer.get_secret_value()
        self._configured_url = settings.jwks_url.get_secret_value() if settings.jwks_url else None
        self._algorithms = algorithms
        self._found_url: str | None = None
        self._fetch_seconds = fetch_seconds
        self._now = now
        self._jwks: list[Any] = []
        self._keys: dict[str | None, PyJWK] = {}
        self._fetched_at = self._tried_at = float("-inf")
        self._failure: str | None = None
        self._fetching: asyncio.Task[None] | None = None
        self.generation = 0
        """Increases when the keys change, which invalidates tokens verified with the old ones."""

    async def get_key(self, id: str | None) -> PyJWK | None:
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
            self._jwks, self._keys = jwks, _parse_keys(jwks, self._algorithms)
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


def _parse_keys(jwks: list[Any], algorithms: Mapping[str, str]) -> dict[str | None, PyJWK]:
    """Return the supported signing keys by id. A single key is also stored under None, for tokens without a key id."""
    keys: dict[str | None, PyJWK] = {}
    for jwk in jwks[:MAX_KEYS]:
        if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig" or not isinstance(jwk.get("kid", ""), str):
            continue
        algorithm = algorithms.get(f"{jwk.get('kty')} {jwk.get('crv', '')}".strip())
        if algorithm is not None and jwk.get("alg", algorithm) == algorithm:
            with suppress(PyJWTError):  # an unusable key doesn't invalidate the others
                key = PyJWK({**jwk, "alg": algorithm}, algorithm)
                keys.setdefault(key.key_id, key)
    if len(keys) == 1:
        keys[None] = next(iter(keys.values()))
    elif len(keys) > 1:
        keys.pop(None, None)
    return keys
