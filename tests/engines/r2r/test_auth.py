"""The service account's token: one for everybody, renewed in time, and never fought for."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from refdesk.engines.r2r.http import (
    ApiKeySource,
    CredentialsRefused,
    TokenManager,
    TokenPair,
    TokenSession,
    read_lifetime,
)
from refdesk.errors import BreakerOpen, DependencyError, EngineError, R2RMisconfigured
from tests.engines.r2r.scripted import make_token

pytestmark = pytest.mark.anyio


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeIssuer:
    """Gives out tokens, as R2R does: a refresh token is good for once."""

    def __init__(self, lifetime: float = 3600.0) -> None:
        self.lifetime = lifetime
        self.logins = 0
        self.refreshes = 0
        self.is_down = False
        self.is_password_right = True
        self.gate: asyncio.Event | None = None
        self.access = ""
        self.spendable: set[str] = set()

    async def login(self) -> TokenPair:
        self.logins += 1
        return await self._issue(refused=not self.is_password_right)

    async def refresh(self, token: str) -> TokenPair:
        self.refreshes += 1
        return await self._issue(refused=token not in self.spendable, spent=token)

    async def _issue(self, *, refused: bool, spent: str = "") -> TokenPair:
        await anyio.lowlevel.checkpoint()  # as any request, it lets others come between
        if self.gate is not None:
            await self.gate.wait()
        if self.is_down:
            raise EngineError("R2R cannot be reached.")
        if refused:
            raise CredentialsRefused
        self.spendable.discard(spent)
        number = self.logins * 10_000 + self.refreshes
        pair = TokenPair(make_token(self.lifetime, number), make_token(7 * 86_400, -number))
        self.access = pair.access
        self.spendable.add(pair.refresh)
        return pair

    @property
    def request_count(self) -> int:
        return self.logins + self.refreshes


@pytest.mark.parametrize(("lifetime", "renewed"), [(3600, 3300), (60_000 * 60, 60_000 * 60 - 300), (60, 48), (1, 0.8)])
def test_a_token_is_renewed_five_minutes_early_or_at_four_fifths_of_a_short_life(
    lifetime: float, renewed: float
) -> None:
    session = TokenSession.start(TokenPair(make_token(lifetime, 1), make_token(100, 2)), now=1000.0)
    assert session.renew_at - 1000 == pytest.approx(renewed, abs=0.01)
    assert session.expires_at - 1000 == pytest.approx(lifetime, abs=0.01)


def test_what_says_nothing_of_its_life_is_used_until_it_is_refused() -> None:
    for token in ("", "opaque", "a.b.c", "a.e30.c", make_token(-5, 1), "a.bnVsbA.c"):
        assert read_lifetime(token) == math.inf


async def test_whether_the_other_sides_clock_is_right_does_not_matter() -> None:
    assert read_lifetime(make_token(3600, 1, began=0.0)) == read_lifetime(make_token(3600, 1, began=9e9)) == 3600


async def test_a_hundred_callers_make_one_login_and_later_one_refresh() -> None:
    issuer, clock = FakeIssuer(), Clock()
    tokens = TokenManager(issuer.login, issuer.refresh, now=clock)
    assert len(set(await asyncio.gather(*(tokens.get_token() for _ in range(100))))) == 1
    assert (issuer.logins, issuer.refreshes) == (1, 0)
    clock.now += 3301
    assert len(set(await asyncio.gather(*(tokens.get_token() for _ in range(100))))) == 1
    assert (issuer.logins, issuer.refreshes) == (1, 1)


async def test_a_hundred_callers_whose_token_is_refused_make_one_refresh() -> None:
    issuer = FakeIssuer()
    tokens = TokenManager(issuer.login, issuer.refresh, now=Clock())
    token = await tokens.get_token()
    tokens.mark_accepted(token)

    async def one() -> str:
        tokens.mark_rejected(token)
        return await tokens.get_token()

    assert set(await asyncio.gather(*(one() for _ in range(100)))) == {issuer.access}
    assert (issuer.logins, issuer.refreshes) == (1, 1)


async def test_a_refresh_token_that_is_spent_is_followed_by_one_login_and_never_tried_again() -> None:
    issuer, clock = FakeIssuer(), Clock()
    tokens = TokenManager(issuer.login, issuer.refresh, now=clock)
    tokens.mark_accepted(await tokens.get_token())
    issuer.spendable.clear()
    issuer.is_password_right = False
    clock.now += 3601
    with pytest.raises(R2RMisconfigured, match=r"r2r\.password"):
        await tokens.get_token()
    assert (issuer.logins, issuer.refreshes) == (2, 1)
    issuer.is_password_right = True
    clock.now += 61
    assert await tokens.get_token() == issuer.access
    assert (issuer.logins, issuer.refreshes) == (3, 1)


async def test_a_refresh_token_that_has_expired_is_not_even_tried() -> None:
    issuer, clock = FakeIssuer(), Clock()
    tokens = TokenManager(issuer.login, issuer.refresh, now=clock)
    await tokens.get_token()
    clock.now += 8 * 86_400
    await tokens.get_token()
    assert (issuer.logins, issuer.refreshes) == (2, 0)


async def test_while_r2r_is_down_it_is_asked_once_per_pause_and_the_old_token_serves_as_long_as_it_lives() -> None:
    issuer, clock = FakeIssuer(), Clock()
    tokens = TokenManager(issuer.login, issuer.refresh, now=clock)
    token = await tokens.get_token()
    issuer.is_down = True
    clock.now += 3301
    request_count = issuer.request_count
    assert [await tokens.get_token() for _ in range(50)] == [token] * 50
    assert issuer.request_count == request_count + 1
    clock.now += 300
    for told in [EngineError, *[BreakerOpen] * 49]:
        with pytest.raises(told):
            await tokens.get_token()
    assert issuer.request_count == request_count + 2
    issuer.is_down = False
    clock.now += 60
    assert await tokens.get_token() == issuer.access


async def test_a_wrong_password_is_told_to_all_and_tried_seldom() -> None:
    issuer, clock = FakeIssuer(), Clock()
    issuer.is_password_right = False
    tokens = TokenManager(issuer.login, issuer.refresh, now=clock)
    for _ in range(600):
        with pytest.raises(R2RMisconfigured) as error:
            await tokens.get_token()
        assert not error.value.retryable
        clock.now += 1
    assert issuer.logins <= 6 + 600 / 60


async def test_a_server_that_refuses_its_own_fresh_tokens_is_not_asked_for_ever() -> None:
    issuer, clock = FakeIssuer(), Clock()
    tokens = TokenManager(issuer.login, issuer.refresh, now=clock)
    for _ in range(100):
        with suppress(R2RMisconfigured):
            tokens.mark_rejected(await tokens.get_token())
    assert issuer.request_count <= 3
    clock.now += 61
    tokens.mark_accepted(await tokens.get_token())
    assert await tokens.get_token() == issuer.access


async def test_the_refusal_of_an_older_token_says_nothing_about_the_newer() -> None:
    issuer = FakeIssuer()
    tokens = TokenManager(issuer.login, issuer.refresh, now=Clock())
    old = await tokens.get_token()
    tokens.mark_rejected(old)
    new = await tokens.get_token()
    tokens.mark_rejected(old)
    assert await tokens.get_token() == new


async def test_a_caller_who_leaves_does_not_take_the_token_from_the_others() -> None:
    issuer = FakeIssuer()
    issuer.gate = asyncio.Event()
    tokens = TokenManager(issuer.login, issuer.refresh, now=Clock())
    first, second = (asyncio.create_task(tokens.get_token()) for _ in range(2))
    await anyio.wait_all_tasks_blocked()
    first.cancel()
    await anyio.wait_all_tasks_blocked()
    issuer.gate.set()
    assert await second == issuer.access
    assert issuer.logins == 1


async def test_an_api_key_that_is_refused_is_told_as_such() -> None:
    key = ApiKeySource("key_secret")
    assert await key.get_token() == "key_secret"
    with pytest.raises(R2RMisconfigured, match=r"r2r\.api_key") as error:
        key.mark_rejected("key_secret")
    assert "secret" not in str(error.value)


class TokenMachine(RuleBasedStateMachine):
    """Time passes, R2R goes and comes, tokens are refused and passwords changed, in any order."""

    @initialize(lifetime=st.sampled_from([1.0, 60.0, 3600.0, 3.6e6]))
    def begin(self, lifetime: float) -> None:
        self.clock = Clock()
        self.issuer = FakeIssuer(lifetime)
        self.tokens = TokenManager(self.issuer.login, self.issuer.refresh, now=self.clock)
        self.current: str | None = None

    @rule(seconds=st.sampled_from([0.1, 1.0, 50.0, 400.0, 4000.0, 1e6]))
    def time_passes(self, seconds: float) -> None:
        self.clock.now += seconds

    @rule(is_down=st.booleans())
    def r2r_goes_or_comes(self, is_down: bool) -> None:
        self.issuer.is_down = is_down

    @rule(is_right=st.booleans())
    def the_password_changes(self, is_right: bool) -> None:
        self.issuer.is_password_right = is_right

    @rule()
    def all_refresh_tokens_are_taken_back(self) -> None:
        self.issuer.spendable.clear()

    @precondition(lambda self: self.current is not None)
    @rule(is_proven=st.booleans())
    def the_token_is_refused(self, is_proven: bool) -> None:
        assert self.current is not None
        if is_proven:
            self.tokens.mark_accepted(self.current)
        self.tokens.mark_rejected(self.current)
        self.current = None

    @rule(callers=st.integers(1, 20))
    def some_ask(self, callers: int) -> None:
        request_count = self.issuer.request_count

        async def all_ask() -> list[str | BaseException]:
            return await asyncio.gather(*(self.tokens.get_token() for _ in range(callers)), return_exceptions=True)

        answers = asyncio.run(all_ask())
        assert self.issuer.request_count - request_count <= 2  # a refresh, and the login when that is refused
        assert len({str(answer) for answer in answers}) == 1, "all are told the same"
        [answer, *_] = answers
        if isinstance(answer, str):
            assert answer == self.issuer.access, "only the newest token is good"
            self.current = answer
        else:
            assert isinstance(answer, DependencyError)

    def teardown(self) -> None:
        """In the end everything is put in order, and then there is a token within a minute."""
        if not hasattr(self, "tokens"):
            return
        self.issuer.is_down, self.issuer.is_password_right = False, True
        self.clock.now += 61
        assert asyncio.run(ask(self.tokens)) == self.issuer.access


async def ask(tokens: TokenManager) -> str:
    return await tokens.get_token()


TestTokenMachine = TokenMachine.TestCase
TestTokenMachine.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
