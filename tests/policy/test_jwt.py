"""Access tokens, checked against a real authorization server on loopback."""

from __future__ import annotations

import asyncio
import gzip
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from refdesk.calls import Caller
from refdesk.config.models import OAuthConfig
from refdesk.errors import InsufficientScope, InvalidToken, IssuerAway, Unauthenticated
from refdesk.policy.jwt import (
    CACHE_SECONDS,
    FETCH_SECONDS,
    LEEWAY_SECONDS,
    MAX_BYTES,
    MAX_CACHED_TOKENS,
    MIN_FETCH_INTERVAL_SECONDS,
    REFRESH_SECONDS,
    STALE_SECONDS,
    JwksCache,
    TokenVerifier,
    list_metadata_urls,
)
from refdesk.policy.keys import digest
from refdesk.policy.policies import TokenCaller
from tests.issuers import KEYS, METADATA, OPENID, AuthorizationServer, SigningKey, authorization_server, forged
from tests.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.anyio

AUDIENCE = "https://desk.example/mcp"


@dataclass
class Time:
    """Clocks that go on when told to: the one that never jumps, and the one on the wall."""

    steady: float = 1000.0
    wall: float = field(default_factory=time.time)

    def now(self) -> float:
        return self.steady

    def clock(self) -> float:
        return self.wall

    def pass_(self, seconds: float) -> None:
        self.steady += seconds
        self.wall += seconds

    def after(self, seconds: float) -> int:
        """Return the time on the wall so many seconds from now, as tokens state it."""
        return int(self.wall + seconds)


@dataclass
class Door:
    """Tokens as the door asks for them."""

    tokens: TokenVerifier
    time: Time

    async def caller(self, token: str) -> Caller:
        fingerprint = digest(token)
        return self.tokens.find_cached(fingerprint) or await self.tokens.verify(token, fingerprint)

    def trusts(self, token: str) -> bool:
        return self.tokens.find_cached(digest(token)) is not None


@pytest.fixture
async def issuer() -> AsyncIterator[AuthorizationServer]:
    async with authorization_server(AUDIENCE) as server:
        yield server


@asynccontextmanager
async def door_to(
    server: AuthorizationServer,
    /,
    *,
    fetch_seconds: float = PATIENCE_SECONDS,
    max_cached: int = MAX_CACHED_TOKENS,
    **settings: Any,
) -> AsyncIterator[Door]:
    config = OAuthConfig(**{"issuer": server.url} | settings)
    passing = Time()
    async with aclosing(JwksCache(config, fetch_seconds=fetch_seconds, now=passing.now)) as keys:
        tokens = TokenVerifier(config, AUDIENCE, keys, max_cached=max_cached, now=passing.now, clock=passing.clock)
        yield Door(tokens, passing)


@pytest.fixture
async def door(issuer: AuthorizationServer) -> AsyncIterator[Door]:
    async with door_to(issuer) as door:
        yield door


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "EdDSA"])
async def test_a_token_of_the_issuer_is_its_user(issuer: AuthorizationServer, door: Door, algorithm: str) -> None:
    issuer.keys = [SigningKey.make("k", algorithm)]
    caller = await door.caller(issuer.token(scope="a b"))
    assert (caller.user, caller.tenant, caller.authenticated, caller.local) == ("ann", "default", True, False)
    assert caller.roles == frozenset()


async def test_a_token_that_was_found_good_is_not_checked_again_for_a_while(
    issuer: AuthorizationServer, door: Door
) -> None:
    token = issuer.token(exp=door.time.after(86_400))
    await door.caller(token)
    await issuer.stop()
    assert door.trusts(token)
    door.time.pass_(CACHE_SECONDS + 1)
    assert not door.trusts(token)
    assert (await door.caller(token)).user == "ann"


async def test_trust_ends_with_the_token_however_the_clocks_go(issuer: AuthorizationServer, door: Door) -> None:
    token = issuer.token(exp=door.time.after(60))
    await door.caller(token)
    door.time.pass_(60 + LEEWAY_SECONDS - 5)
    assert door.trusts(token)
    door.time.pass_(10)
    assert not door.trusts(token)
    with pytest.raises(InvalidToken, match="expired"):
        await door.caller(token)


async def test_a_wall_clock_set_back_does_not_prolong_trust(issuer: AuthorizationServer, door: Door) -> None:
    token = issuer.token()
    await door.caller(token)
    door.time.wall -= 86_400
    door.time.steady += CACHE_SECONDS + 1
    assert not door.trusts(token)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"exp": 1}, "expired"),
        ({"exp": None}, "'exp'"),
        ({"exp": True}, "not a time"),
        ({"exp": "tomorrow"}, "not a time"),
        ({"exp": float("nan")}, "not a time"),
        ({"exp": float("inf")}, "not a time"),
        ({"exp": 10**400}, "not a time"),
        ({"nbf": 4_000_000_000}, "not valid yet"),
        ({"nbf": "tomorrow"}, "not a time"),
        ({"aud": "https://other.example/mcp"}, "for another audience"),
        ({"aud": ["https://other.example/mcp"]}, "for another audience"),
        ({"aud": f"{AUDIENCE}/"}, "for another audience"),
        ({"aud": 7}, "for another audience"),
        ({"aud": None}, "'aud'"),
        ({"iss": "https://evil.example"}, "another issuer"),
        ({"iss": ["https://evil.example"]}, "another issuer"),
        ({"iss": None}, "'iss'"),
        ({"sub": None}, "'sub'"),
        ({"sub": ""}, "'sub'"),
        ({"sub": "x" * 256}, "'sub'"),
        ({"sub": "a\nb"}, "'sub'"),
        ({"sub": "\ud800"}, "'sub'"),
    ],
)
async def test_a_signed_token_with_wrong_claims_is_refused(
    issuer: AuthorizationServer, door: Door, claims: dict[str, Any], said: str
) -> None:
    token = issuer.token(**claims)
    with pytest.raises(InvalidToken, match=said):
        await door.caller(token)
    assert not door.trusts(token)


async def test_small_differences_between_clocks_do_not_matter(issuer: AuthorizationServer, door: Door) -> None:
    now = door.time.after(0)
    token = issuer.token(nbf=now + LEEWAY_SECONDS - 5, iat=now + LEEWAY_SECONDS - 5, exp=now - LEEWAY_SECONDS + 5)
    assert (await door.caller(token)).user == "ann"


async def test_a_token_may_be_meant_for_several(issuer: AuthorizationServer, door: Door) -> None:
    assert (await door.caller(issuer.token(aud=["https://other.example", AUDIENCE]))).user == "ann"


def claims_of(issuer: AuthorizationServer) -> dict[str, Any]:
    return {"iss": issuer.url, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 600}


async def test_a_token_that_nobody_signed_is_refused(issuer: AuthorizationServer, door: Door) -> None:
    for header in ({"alg": "none"}, {"alg": "none", "kid": "one"}, {"alg": "ES256", "kid": "one"}, {"kid": "one"}):
        for signature in (b"", b"x" * 64):
            with pytest.raises(Unauthenticated):
                await door.caller(forged(header, claims_of(issuer), signature or b"0"))


async def test_a_public_key_is_not_a_shared_secret(issuer: AuthorizationServer, door: Door) -> None:
    """The oldest trick: sign with HS256 and what everybody can read."""
    issuer.keys = [SigningKey.make("one", "RS256")]
    for secret in (str(issuer.keys[0].jwk()), issuer.keys[0].jwk()["n"]):
        token = jwt.encode(claims_of(issuer), secret.ljust(32), algorithm="HS256", headers={"kid": "one"})
        with pytest.raises(InvalidToken):
            await door.caller(token)


async def test_secrets_and_nonsense_among_the_issuers_keys_are_not_used(
    issuer: AuthorizationServer, door: Door
) -> None:
    secret = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"
    issuer.pages[KEYS] = {"keys": [{"kty": "oct", "k": secret, "kid": "one", "alg": "HS256"}, "nonsense", {"kid": 7}]}
    with pytest.raises(InvalidToken, match="unknown key"):
        await door.caller(
            jwt.encode(claims_of(issuer), b"secret-secret-secret-secret-secret", "HS256", headers={"kid": "one"})
        )


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_a_key_that_is_too_short_to_be_trusted_is_not(issuer: AuthorizationServer, door: Door) -> None:
    issuer.keys = [SigningKey("short", "RS256", rsa.generate_private_key(public_exponent=65537, key_size=1024))]
    with pytest.raises(InvalidToken, match="not valid"):
        await door.caller(issuer.token())


async def test_a_key_for_another_use_or_algorithm_does_not_verify(issuer: AuthorizationServer) -> None:
    for change in ({"use": "enc"}, {"alg": "ES384"}, {"crv": "P-521"}, {"kty": "RSA"}, {"x": "!"}, {"kid": ["one"]}):
        async with door_to(issuer) as door:
            issuer.pages[KEYS] = {"keys": [issuer.keys[0].jwk() | change]}
            with pytest.raises(InvalidToken, match="unknown key"):
                await door.caller(issuer.token())


async def test_a_signature_by_another_key_of_the_same_id_is_refused(issuer: AuthorizationServer, door: Door) -> None:
    with pytest.raises(InvalidToken, match="not valid"):
        await door.caller(issuer.token(SigningKey.make("one")))
    with pytest.raises(InvalidToken):
        await door.caller(issuer.token(SigningKey.make("one", "EdDSA")))


async def test_a_token_without_a_key_id_is_taken_where_there_is_one_key_only(issuer: AuthorizationServer) -> None:
    nameless = jwt.encode(claims_of(issuer), issuer.keys[0].private, algorithm="ES256")
    async with door_to(issuer) as door:
        assert (await door.caller(nameless)).user == "ann"
    issuer.keys.append(SigningKey.make("two"))
    async with door_to(issuer) as door:
        with pytest.raises(InvalidToken, match="unknown key"):
            await door.caller(nameless)


async def test_scopes_give_roles_and_claims_name_user_and_tenant(issuer: AuthorizationServer) -> None:
    settings: dict[str, Any] = {
        "required_scopes": ["desk"],
        "scope_roles": {"desk:read": ["reader"], "desk:write": ["writer", "admin"]},
        "user_claim": "email",
        "tenant_claim": "org",
    }
    async with door_to(issuer, **settings) as door:
        token = issuer.token(scope="desk desk:read other", email="ann@acme.example", org="acme")
        caller = await door.caller(token)
        assert (caller.user, caller.tenant) == ("ann@acme.example", "acme")
        assert caller.roles == {"reader"}
        listed = ["desk", "desk:read", "desk:write", 7, "x\r\nset-cookie: a"]
        both = await door.caller(issuer.token(scp=listed, email="a", org="acme"))
        assert both.roles == {"reader", "writer", "admin"}
        assert isinstance(both, TokenCaller)
        assert both.scopes == {"desk", "desk:read", "desk:write"}
        for missing in ({"org": None, "email": "a"}, {"org": "acme"}, {"org": 7, "email": "a"}):
            with pytest.raises(InvalidToken, match="claim"):
                await door.caller(issuer.token(scope="desk desk:read", **missing))


async def test_a_token_without_the_scopes_is_told_which(issuer: AuthorizationServer) -> None:
    async with door_to(issuer, required_scopes=["a", "b"]) as door:
        for scope in (None, "", "a", "ab", ["a"], {"a": "b"}):
            with pytest.raises(InsufficientScope) as refused:
                await door.caller(issuer.token(scope=scope))
            assert refused.value.scopes == ("a", "b")
        assert await door.caller(issuer.token(scope="b a"))


async def test_to_ask_the_issuer_for_fewer_scopes_does_not_open_more(issuer: AuthorizationServer) -> None:
    """A caller without roles may do everything, so a token that gives none must not become one."""
    async with door_to(issuer, required_scopes=["desk"], scope_roles={"read": ["reader"]}) as door:
        with pytest.raises(InsufficientScope) as refused:
            await door.caller(issuer.token(scope="desk"))
        assert refused.value.scopes == ("desk", "read")


async def test_a_new_key_of_the_issuer_is_fetched_once_for_all_who_wait(
    issuer: AuthorizationServer, door: Door
) -> None:
    await door.caller(issuer.token())
    issuer.keys = [SigningKey.make("two")]
    door.time.pass_(MIN_FETCH_INTERVAL_SECONDS)
    issuer.hold()
    waiting = [asyncio.create_task(door.caller(issuer.token(sub=f"user {number}"))) for number in range(50)]
    await issuer.arrived.wait()
    issuer.held.set()
    assert {caller.user for caller in await asyncio.gather(*waiting)} == {f"user {number}" for number in range(50)}
    assert issuer.asked[KEYS] == 2
    assert issuer.asked[METADATA] == 1


async def test_what_a_withdrawn_key_has_signed_is_not_trusted_any_longer(
    issuer: AuthorizationServer, door: Door
) -> None:
    old = issuer.token()
    await door.caller(old)
    issuer.keys = [SigningKey.make("two")]
    door.time.pass_(MIN_FETCH_INTERVAL_SECONDS)
    await door.caller(issuer.token())
    assert not door.trusts(old)
    with pytest.raises(InvalidToken, match="unknown key"):
        await door.caller(old)


async def test_keys_in_use_are_fetched_anew_in_the_background(issuer: AuthorizationServer, door: Door) -> None:
    old = issuer.token(exp=door.time.after(86_400))
    await door.caller(old)
    issuer.keys = [SigningKey.make("two")]
    door.time.pass_(REFRESH_SECONDS + 1)
    issuer.hold()
    assert (await door.caller(old)).user == "ann", "who comes first does not wait"
    assert door.trusts(old)
    issuer.held.set()
    assert await door.caller(issuer.token(exp=door.time.after(86_400))), "who has a new key waits for it"
    assert not door.trusts(old)
    assert issuer.asked[KEYS] == 2


async def test_after_a_long_silence_the_first_call_waits_for_the_keys_of_today(
    issuer: AuthorizationServer, door: Door
) -> None:
    far = door.time.after(86_400)
    old = issuer.token(exp=far)
    await door.caller(old)
    issuer.keys = [SigningKey.make("two")]
    door.time.pass_(STALE_SECONDS + 1)
    with pytest.raises(InvalidToken, match="unknown key"):
        await door.caller(old)
    assert await door.caller(issuer.token(exp=far))


async def test_a_flood_of_made_up_key_ids_asks_the_issuer_once_in_a_while(
    issuer: AuthorizationServer, door: Door
) -> None:
    good = issuer.token()
    await door.caller(good)
    for rounds in (1, 2, 3):
        door.time.pass_(MIN_FETCH_INTERVAL_SECONDS)
        for number in range(200):
            with pytest.raises(InvalidToken, match="unknown key"):
                await door.caller(issuer.token(SigningKey(f"made-up {number}", "ES256", issuer.keys[0].private)))
        assert issuer.asked[KEYS] == 1 + rounds
    assert door.trusts(good) or await door.caller(good)


async def test_while_the_issuer_is_down_known_keys_go_on_working(issuer: AuthorizationServer, door: Door) -> None:
    await door.caller(issuer.token())
    await issuer.stop()
    door.time.pass_(REFRESH_SECONDS * 10)
    far = door.time.after(86_400)
    for number in range(3):
        assert (await door.caller(issuer.token(sub=f"{number}", exp=far))).user == f"{number}"
    unknown = issuer.token(SigningKey.make("two"), exp=far)
    with pytest.raises(IssuerAway) as away:
        await door.caller(unknown)
    assert away.value.retryable
    assert away.value.retry_after is not None
    assert 0 <= away.value.retry_after <= MIN_FETCH_INTERVAL_SECONDS


async def test_an_issuer_that_was_down_for_long_is_noticed_when_it_is_back(
    issuer: AuthorizationServer, door: Door
) -> None:
    far = door.time.after(86_400)
    await door.caller(issuer.token(exp=far))
    await issuer.stop()
    door.time.pass_(STALE_SECONDS * 2)
    await door.caller(issuer.token(exp=far))
    assert door.tokens.issuer.describe()["state"] == "down"
    await issuer.start()
    issuer.hold()
    door.time.pass_(CACHE_SECONDS)
    assert (await door.caller(issuer.token(sub="bob", exp=far))).user == "bob", "nobody waits for it"
    async with asyncio.timeout(PATIENCE_SECONDS):
        await issuer.arrived.wait()
    issuer.held.set()


async def test_an_issuer_that_was_down_is_asked_again_after_a_pause(issuer: AuthorizationServer, door: Door) -> None:
    token = issuer.token()
    assert door.tokens.issuer.describe() == {"state": "not asked yet"}
    await issuer.stop()
    for _ in range(2):
        with pytest.raises(IssuerAway, match="does not answer"):
            await door.caller(token)
    await issuer.start()
    with pytest.raises(IssuerAway):
        await door.caller(token)
    assert issuer.asked.total() == 0
    assert door.tokens.issuer.describe() == {"state": "down", "detail": "the issuer does not answer"}
    door.time.pass_(MIN_FETCH_INTERVAL_SECONDS)
    assert (await door.caller(token)).user == "ann"
    assert door.tokens.issuer.describe() == {"state": "ok"}


async def test_a_slow_issuer_holds_nobody_for_long(issuer: AuthorizationServer) -> None:
    assert FETCH_SECONDS <= 5
    issuer.hold()
    async with door_to(issuer, fetch_seconds=0.05) as door:
        with pytest.raises(IssuerAway, match="does not answer"):
            await door.caller(issuer.token())


async def test_one_who_leaves_does_not_stop_the_others_fetch(issuer: AuthorizationServer, door: Door) -> None:
    issuer.hold()
    leaving, staying = (asyncio.create_task(door.caller(issuer.token(sub=name))) for name in ("leaves", "stays"))
    await issuer.arrived.wait()
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    issuer.held.set()
    assert (await staying).user == "stays"


Breaks = Callable[[AuthorizationServer], dict[str, Any]]


@pytest.mark.parametrize(
    ("pages", "said"),
    [
        (lambda issuer: {METADATA: 404, OPENID: 404}, "was not found"),
        (lambda issuer: {METADATA: issuer.metadata() | {"issuer": "https://evil.example"}}, "another issuer"),
        (lambda issuer: {METADATA: {"issuer": issuer.url}}, "no usable jwks_uri"),
        (lambda issuer: {METADATA: issuer.metadata() | {"jwks_uri": "file:///etc/passwd"}}, "no usable jwks_uri"),
        (lambda issuer: {METADATA: issuer.metadata() | {"jwks_uri": "http://["}}, "does not answer"),
        (lambda issuer: {METADATA: issuer.metadata() | {"jwks_uri": 7}}, "no usable jwks_uri"),
        (lambda issuer: {KEYS: 500}, "status 500"),
        (lambda issuer: {KEYS: 302}, "status 302"),
        (lambda issuer: {KEYS: b"{"}, "not a JSON object"),
        (lambda issuer: {KEYS: []}, "not a JSON object"),
        (lambda issuer: {KEYS: {"keys": 7}}, "not a JSON Web Key Set"),
        (lambda issuer: {KEYS: b'{"keys":[]}'.ljust(MAX_BYTES + 1)}, "too long"),
    ],
)
async def test_an_issuer_that_answers_nonsense_is_one_to_ask_again(
    issuer: AuthorizationServer, door: Door, pages: Breaks, said: str
) -> None:
    issuer.pages = pages(issuer)
    with pytest.raises(IssuerAway, match=said):
        await door.caller(issuer.token())
    issuer.pages = {}
    door.time.pass_(MIN_FETCH_INTERVAL_SECONDS)
    assert (await door.caller(issuer.token())).user == "ann"


async def test_keys_are_found_by_either_kind_of_metadata_or_where_they_are_set(issuer: AuthorizationServer) -> None:
    issuer.pages[METADATA] = 404
    async with door_to(issuer) as door:
        assert await door.caller(issuer.token())
    assert issuer.asked[OPENID] == 1
    issuer.pages = {METADATA: 500, OPENID: 500}
    async with door_to(issuer, jwks_url=f"{issuer.url}{KEYS}") as door:
        assert await door.caller(issuer.token())


async def test_keys_are_fetched_through_the_proxy_of_the_environment_with_the_login_of_their_url(
    issuer: AuthorizationServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", issuer.url)
    issuer.pages["http://keys.invalid/jwks?a=b"] = {"keys": [issuer.keys[0].jwk()]}
    async with door_to(issuer, jwks_url="http://ann:s%40fe@keys.invalid/jwks?a=b") as door:
        assert await door.caller(issuer.token())
    [head] = issuer.heads
    assert "\r\nauthorization: Basic YW5uOnNAZmU=" in head
    assert "\r\nHost: keys.invalid\r\n" in head
    assert "\r\naccept-encoding: identity\r\n" in head


async def test_keys_that_are_compressed_are_not_unpacked(issuer: AuthorizationServer, door: Door) -> None:
    issuer.pages[KEYS] = gzip.compress(b'{"keys":[]}')
    issuer.headers = "content-encoding: gzip\r\n"
    with pytest.raises(IssuerAway, match="not a JSON object"):
        await door.caller(issuer.token())


async def test_nothing_that_a_token_names_is_fetched(issuer: AuthorizationServer, door: Door) -> None:
    await door.caller(issuer.token())
    async with authorization_server() as evil:
        headers = {"kid": "two", "jku": f"{evil.url}{KEYS}", "x5u": evil.url, "jwk": evil.keys[0].jwk()}
        token = jwt.encode(claims_of(issuer) | {"iss": evil.url}, evil.keys[0].private, "ES256", headers=headers)
        with pytest.raises(InvalidToken):
            await door.caller(token)
        assert evil.asked.total() == 0


def test_where_metadata_is_looked_for() -> None:
    assert list_metadata_urls("https://as.example") == [
        "https://as.example/.well-known/oauth-authorization-server",
        "https://as.example/.well-known/openid-configuration",
    ]
    assert list_metadata_urls("https://as.example/realms/a/") == [
        "https://as.example/.well-known/oauth-authorization-server/realms/a",
        "https://as.example/.well-known/openid-configuration/realms/a",
        "https://as.example/realms/a/.well-known/openid-configuration",
    ]


async def test_a_slash_at_the_end_of_the_issuers_name_does_not_matter(issuer: AuthorizationServer) -> None:
    async with door_to(issuer, issuer=f"{issuer.url}/") as door:
        assert await door.caller(issuer.token())
        assert await door.caller(issuer.token(iss=f"{issuer.url}/"))


async def test_no_more_tokens_are_remembered_than_there_is_room_for(issuer: AuthorizationServer) -> None:
    assert MAX_CACHED_TOKENS <= 10_000
    tokens = [issuer.token(sub=f"{number}") for number in range(5)]
    async with door_to(issuer, max_cached=3) as door:
        for token in tokens:
            await door.caller(token)
        assert [door.trusts(token) for token in tokens] == [False, False, True, True, True]


async def test_keys_of_ours_and_passwords_do_not_look_like_tokens(door: Door) -> None:
    for credential in ("", "rd_abc", "a.b", "a.b.c.d", "a..c", "a.b.c ", "ä.b.c", f"{'x' * 20_000}.b.c"):
        assert not door.tokens.has_token_form(credential)
    assert door.tokens.has_token_form("eyJ.eyJ.sig-_")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
HEADERS = st.dictionaries(
    st.sampled_from(["alg", "kid", "crit", "b64", "typ", "jwk", "x5c", "zip", "enc"]),
    VALUES | st.sampled_from(["ES256", "one", "none"]),
    max_size=5,
)
CLAIMS = st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf"]), VALUES, max_size=5)


def test_whatever_a_token_is_made_of_it_is_refused_and_nothing_worse() -> None:
    """Never an error that nobody foresaw, never somebody let in without a signature, nor as somebody else."""
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        issuer = runner.run(stack.enter_async_context(authorization_server(AUDIENCE)))
        door = runner.run(stack.enter_async_context(door_to(issuer)))

        @hypothesis_settings(max_examples=150, deadline=None, database=None)
        @given(header=HEADERS, claims=CLAIMS, signature=st.binary(min_size=1, max_size=80) | st.none())
        def present(header: dict[str, Any], claims: dict[str, Any], signature: bytes | None) -> None:
            if signature is not None:
                with pytest.raises(Unauthenticated):
                    runner.run(door.caller(forged(header, claims, signature)))
                return
            with suppress(Unauthenticated):
                caller = runner.run(door.caller(issuer.token(**claims)))
                assert caller.user == claims.get("sub", "ann")

        try:
            present()
        finally:
            runner.run(stack.aclose())


async def test_a_header_nested_beyond_measure_is_refused(door: Door) -> None:
    deep = urlsafe_b64encode(b'{"kid":' + b"[" * 5000).rstrip(b"=").decode()
    with pytest.raises(InvalidToken):
        await door.caller(f"{deep}.e30.eA")
