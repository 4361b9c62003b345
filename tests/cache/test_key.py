"""Names of keys: one for each, and patterns that match what they say."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st

from refdesk.cache.cache import Key, TenantVersions, build_pattern, compile_pattern
from refdesk.cache.redis import to_redis_pattern
from refdesk.calls import TenantId, UserId
from tests.cache.helpers import key

WORDS = st.text(alphabet=st.characters(codec=None), max_size=6) | st.sampled_from(["a:b", "a", "b", "'", "', '", "*"])
PARTS = st.recursive(
    WORDS | st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none(),
    lambda parts: st.lists(parts, max_size=3).map(tuple),
    max_leaves=4,
)
KEYS = st.builds(
    Key,
    tenant=WORDS.map(TenantId),
    user=WORDS.map(UserId),
    tool=WORDS,
    parameters=st.lists(PARTS, max_size=3).map(tuple),
    revision=PARTS,
)


def types_of(value: Any) -> Any:
    """A value with its types: 1, 1.0 and True are three."""
    return tuple(types_of(part) for part in value) if isinstance(value, tuple) else (type(value), repr(value))


@given(KEYS, KEYS)
def test_two_keys_never_have_one_name(one: Key, other: Key) -> None:
    parts = [types_of((k.tenant, k.user, k.tool, k.parameters, k.revision)) for k in (one, other)]
    assert (parts[0] == parts[1]) == (one.name() == other.name())


def test_words_that_would_run_together_are_kept_apart() -> None:
    assert key(tenant="a:b", tool="c").name() != key(tenant="a", tool="b:c").name()
    assert key("a', 'b").name() != key("a", "b").name()
    assert key(tenant="ab", user="c").name() != key(tenant="a", user="bc").name()


def test_another_secret_makes_other_names() -> None:
    assert len({key().name(), key().name(b"one"), key().name(b"two")}) == 3


@given(WORDS, WORDS, WORDS, WORDS)
def test_the_pattern_of_a_tenant_and_a_tool_matches_theirs_alone(tenant: str, tool: str, other: str, more: str) -> None:
    assume((tenant, tool) != (other, more))
    matches = compile_pattern(build_pattern(TenantId(tenant), tool))
    assert matches(key(tenant=tenant, tool=tool).name())
    assert not matches(key(tenant=other, tool=more).name())
    assert compile_pattern(build_pattern())(key(tenant=other).name())


@given(st.text(alphabet="ab*?", max_size=6), st.text(alphabet="ab", max_size=6))
def test_stars_and_question_marks_match_as_they_do_everywhere(pattern: str, name: str) -> None:
    assert compile_pattern(pattern)(name) == fnmatchcase(name, pattern)


def test_brackets_stand_for_themselves() -> None:
    assert compile_pattern("[ab]")("[ab]")
    assert not compile_pattern("[ab]")("a")
    assert to_redis_pattern("[^a]\\*") == "\\[\\^a\\]\\\\*"


@given(st.lists(st.sampled_from("abcdef").map(TenantId), max_size=30))
def test_each_change_of_a_tenant_gives_a_number_that_it_never_had(changed: list[TenantId]) -> None:
    versions, seen = TenantVersions(max_tenants=3), {TenantId(name): {0} for name in "abcdef"}
    for tenant in changed:
        versions.bump(tenant)
        assert versions.get(tenant) not in seen[tenant]
        for each, numbers in seen.items():
            numbers.add(versions.get(each))
    assert len(versions._versions) <= 3
