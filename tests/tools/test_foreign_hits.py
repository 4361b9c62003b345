"""Passages out of other servers' search results, in the shapes that such servers are known to use."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.tools.federation import MAX_PASSAGE_CHARACTERS, ForeignPassage, canonicalize_url, parse_passages

URL = "https://docs.example.com/install"
HIT = {"title": "Install", "url": URL, "text": "Run pip install.", "version": "2.1"}
PASSAGE = ForeignPassage("Run pip install.", "Install", URL, "2.1")


def text_item(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


@pytest.mark.parametrize(
    "result",
    [
        {"structuredContent": {"results": [HIT]}},
        {"structuredContent": {"data": {"hits": [HIT]}}},
        {"structuredContent": {"result": 1, "items": [HIT]}},
        {"structuredContent": [HIT]},
        {"content": [text_item(json.dumps([HIT]))]},
        {"content": [text_item(json.dumps({"documents": [HIT]}))]},
        {"structuredContent": {"results": [{"content": HIT["text"], "metadata": {**HIT, "source": URL}}]}},
        {"content": [text_item("Run pip install.", _meta={"metadata": {**HIT, "source": URL}})]},
    ],
)
def test_a_hit_is_read_from_every_usual_shape(result: dict[str, Any]) -> None:
    assert parse_passages(result, 5) == [PASSAGE]


def test_one_text_with_rules_between_its_hits_is_several() -> None:
    text = (
        "TITLE: Pools\nDESCRIPTION: How pools work.\nSOURCE: https://a.example/pools.md\n\n```python\nPool()\n```\n"
        "----------------------------------------\n\n"
        "TITLE: Limits\nSOURCE: https://a.example/limits.md\n\nAt most 100.\n"
    )
    first, second = parse_passages({"content": [text_item(text)]}, 5)
    assert (first.title, first.url) == ("Pools", "https://a.example/pools.md")
    assert "Pool()" in first.text
    assert (second.title, second.url) == ("Limits", "https://a.example/limits.md")


def test_a_plain_text_is_known_by_its_heading_and_the_first_address_in_it() -> None:
    (hit,) = parse_passages({"content": [text_item(f"## Installing\n\nSee <{URL}>, then run it.")]}, 5)
    assert (hit.title, hit.url) == ("Installing", URL)


def test_resources_and_links_are_hits_too() -> None:
    content = [
        {"type": "resource", "resource": {"uri": URL, "text": "All of it.", "title": "Install"}},
        {"type": "resource_link", "uri": URL, "name": "install", "description": "How to install."},
        {"type": "image", "data": "AA==", "mimeType": "image/png"},
    ]
    found = parse_passages({"content": content}, 5)
    assert [(hit.text, hit.url) for hit in found] == [("All of it.", URL), ("How to install.", URL)]


def test_no_more_is_taken_than_is_wanted_and_no_passage_is_endless() -> None:
    assert len(parse_passages({"structuredContent": {"results": [HIT] * 50}}, 3)) == 3
    (hit,) = parse_passages({"content": [text_item("x" * (MAX_PASSAGE_CHARACTERS * 3))]}, 3)
    assert len(hit.text) == MAX_PASSAGE_CHARACTERS


def test_what_nobody_can_see_is_taken_out() -> None:
    hidden = "Read\u202e this\u200b \U000e0041now"
    (hit,) = parse_passages({"structuredContent": {"results": [{"text": hidden, "title": "A\nB\x1b[31m"}]}}, 3)
    assert hit.text == "Read this now"
    assert hit.title == "A B[31m"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("https://Docs.Example.com/a/", "https://docs.example.com/a"),
        ("http://docs.example.com/a#part", "https://docs.example.com/a"),
        ("https://docs.example.com:443/a?utm_source=x&v=2", "https://docs.example.com/a?v=2"),
    ],
)
def test_addresses_of_one_page_are_one(one: str, other: str) -> None:
    assert canonicalize_url(one) == canonicalize_url(other) != ""


@pytest.mark.parametrize(
    "address", ["", "docs/a.md", "ftp://example.com/a", "http://[", "http://a:99999/", "file:///a"]
)
def test_what_is_no_web_address_is_known_by_none(address: str) -> None:
    assert canonicalize_url(address) == ""


@pytest.mark.parametrize("text", ["\n" * 200_000, "a\n-----\n" * 200_000, "TITLE :" + " " * 200_000, "#\n" * 100_000])
def test_no_text_takes_long(text: str) -> None:
    began = time.process_time()
    assert len(parse_passages({"content": [text_item(text)] * 10}, 10)) <= 10
    assert time.process_time() - began < 5.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["results", "text", "content", "url", "x"]), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["structuredContent", "content", "_meta"]), json_values), st.integers(1, 10))
def test_whatever_a_server_answers_is_understood_or_left_out(result: dict[str, Any], limit: int) -> None:
    found = parse_passages(result, limit)
    assert len(found) <= limit
    assert all(hit.text for hit in found)
