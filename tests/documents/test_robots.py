"""Reading robots.txt as RFC 9309 has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.documents.robots import MAX_RULES, Robots, RobotsRule, parse_robots


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/", "/any", True),
        ("/docs", "/docs/a", True),
        ("/docs", "/doc", False),
        ("/docs$", "/docs", True),
        ("/docs$", "/docs/", False),
        ("/*.pdf$", "/a/b.pdf", True),
        ("/*.pdf$", "/a/b.pdf?x", False),
        ("/*.pdf", "/a/b.pdf?x", True),
        ("/a*b*c", "/axxbxxcxx", True),
        ("/a*b*c", "/acb", False),
        ("/a*b$", "/abab", True),
        ("/ab*ab$", "/ab", False),
        ("*", "/", True),
        ("/*$", "/a", True),
    ],
)
def test_a_rule_matches_from_the_start_with_wildcards(pattern: str, path: str, matches: bool) -> None:
    assert RobotsRule(pattern, allowed=False).matches(path) is matches


def test_the_longest_rule_decides_and_allow_wins_a_tie() -> None:
    robots = parse_robots(
        "User-agent: *\nDisallow: /\nAllow: /docs\nDisallow: /docs/old\nAllow: /same\nDisallow: /same"
    )
    assert [robots.allow(path) for path in ("/x", "/docs/a", "/docs/old/b", "/same")] == [False, True, False, True]


def test_our_own_group_counts_alone_wherever_it_stands() -> None:
    text = """
        User-agent: *
        Disallow: /

        USER-AGENT: other
        User-Agent: RefDesk/2 # us
        Disallow: /a

        User-agent: x
        Disallow: /x

        User-agent: refdesk
        Disallow: /b
    """
    robots = parse_robots(text)
    assert [robots.allow(path) for path in ("/", "/x", "/a", "/b")] == [True, True, False, False]


def test_our_own_group_without_rules_permits_everything() -> None:
    assert parse_robots("User-agent: *\nDisallow: /\nUser-agent: refdesk\nDisallow:").allow("/a")


def test_lines_of_other_kinds_do_not_end_a_group() -> None:
    assert not parse_robots("User-agent: *\nSitemap: https://x/\nCrawl-delay: 5\nDisallow: /a").allow("/a")


def test_paths_are_compared_in_one_spelling() -> None:
    robots = parse_robots("\ufeffUser-agent: *\nDisallow: /%7ejoe\nDisallow: /ü\nDisallow: /a%2fb")
    assert not robots.allow("/~joe")
    assert not robots.allow("/%C3%BC")
    assert not robots.allow("/a%2Fb")
    assert robots.allow("/a/b")


def test_a_flood_of_rules_is_bounded() -> None:
    assert len(parse_robots("User-agent: *\n" + "Disallow: /a\n" * (MAX_RULES + 10)).rules) == MAX_RULES


def test_rules_before_any_group_are_nobodys() -> None:
    assert parse_robots("Disallow: /\nUser-agent: x\nDisallow: /") == Robots()


@given(st.text(), st.text())
def test_no_text_is_too_odd_to_read(text: str, path: str) -> None:
    parse_robots(f"User-agent: *\nDisallow: {text}\n{text}").allow(f"/{path}")
