"""What servers and their tools are called here."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.config.models import DownstreamConfig
from refdesk.downstream.fleet.names import Claim, assign_names, assign_server_ids, clean_name

LETTERS = re.compile(r"[A-Za-z0-9_-]+")
texts = st.text(min_size=0, max_size=90)


def settings(**more: object) -> DownstreamConfig:
    return DownstreamConfig.model_validate(more)


def names_of(*tools: tuple[str, str], reserved: tuple[str, ...] = (), **more: object) -> list[str]:
    """The names of `server, tool` pairs, in their order."""
    given = settings(**more)
    ids = assign_server_ids({server: None for server, _ in tools}, given.max_name_length)
    claims = [Claim(server, ids[server], tool, clean_name(tool)) for server, tool in tools]
    return assign_names(claims, given, reserved.__contains__)


def test_a_tool_is_named_with_its_server() -> None:
    assert names_of(("github", "search"), ("jira", "search")) == ["github__search", "jira__search"]
    assert names_of(("github", "search"), separator=":") == ["github:search"]


def test_characters_that_models_do_not_take_are_underscores() -> None:
    assert names_of(("git hub", "files.read/all")) == ["git_hub__files_read_all"]


def test_a_name_that_looks_like_another_is_another() -> None:
    cyrillic, latin, hidden = names_of(("s", "se\u0430rch"), ("s", "search"), ("s", "sea\u200brch"))
    assert latin == "s__search"
    assert cyrillic == "s__se_rch"
    assert hidden == "s__sea_rch"


def test_of_two_that_would_be_alike_the_one_that_needed_no_cleaning_keeps_its_name_in_whatever_order() -> None:
    first = names_of(("s", "get.it"), ("s", "get/it"), ("s", "get_it"))
    again = names_of(("s", "get_it"), ("s", "get/it"), ("s", "get.it"))
    assert first[2] == again[0] == "s__get_it"
    assert first[0] == again[2]
    assert first[1] == again[1]
    assert len(set(first)) == 3
    assert all(name.startswith("s__get_it") for name in first)


def test_a_name_that_is_too_long_is_cut_and_marked_the_same_way_each_time() -> None:
    long, other = "x" * 100, "x" * 101
    names = names_of(("server", long), ("server", other))
    assert names_of(("server", other), ("server", "more"), ("server", long))[::-2] == names
    assert [len(name) for name in names] == [64, 64]
    assert names[0] != names[1]
    assert all(name.startswith("server__xxx") for name in names)


def test_a_name_does_not_change_with_what_other_servers_have() -> None:
    alone = names_of(("docs", "read.page"))
    assert names_of(("other", "read.page"), ("docs", "read.page"), ("docs_read", "page"))[1:2] == alone


def test_a_reserved_name_is_never_taken() -> None:
    (name,) = names_of(("own", "tool"), reserved=("own__tool",))
    assert re.fullmatch("own__tool_[0-9a-f]{8}", name)


def test_without_prefixes_only_names_that_two_have_or_that_are_reserved_carry_one() -> None:
    tools = (("a", "search"), ("b", "search"), ("b", "fetch"), ("a", "ask"))
    assert names_of(*tools, prefix="never", reserved=("ask",)) == ["a__search", "b__search", "fetch", "a__ask"]


def test_a_plain_name_cannot_pose_as_that_of_another_server() -> None:
    tools = (("bad", "good__pay"), ("good", "pay"), ("other", "pay"))
    names = names_of(*tools, prefix="never")
    assert len(set(names)) == 3
    assert names[2] == "other__pay"


def test_servers_whose_names_are_alike_once_cleaned_are_told_apart() -> None:
    ids = assign_server_ids(["a__b", "a_b", "a b"], 64)
    assert ids["a_b"] == "a_b"
    assert len(set(ids.values())) == 3
    assert not any("__" in id or id.endswith("_") for id in ids.values())


@pytest.mark.parametrize("prefix", ["always", "never"])
@given(
    st.lists(st.tuples(st.sampled_from(["a", "a_", "a__b", "ä", "b", "x" * 70]), texts), unique=True),
    st.integers(16, 128),
)
def test_every_name_fits_is_unique_and_reserved_ones_are_left_alone(
    prefix: str, tools: list[tuple[str, str]], max_length: int
) -> None:
    reserved = ("search", "a__search", "b__", "0")
    names = names_of(*tools, prefix=prefix, max_name_length=max_length, reserved=reserved)
    assert len(set(names)) == len(names)
    assert all(LETTERS.fullmatch(name) and len(name) <= max_length for name in names)
    assert not set(names) & set(reserved)


@given(st.lists(texts, unique=True, max_size=6), texts)
def test_a_name_follows_from_server_and_tool_alone_unless_one_of_the_same_server_would_be_alike(
    others: list[str], tool: str
) -> None:
    (alone,) = names_of(("docs", tool))
    crowded = names_of(*(("other", name) for name in others), ("docs", tool))
    assert crowded[-1] == alone
