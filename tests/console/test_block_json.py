"""What the reader page gets of a document: structure and text, and no link that could run."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as some

from refdesk.console.block_json import (
    MAX_ROWS,
    MAX_SPANS,
    MAX_TEXT_LENGTH,
    is_safe_link,
    serialize_blocks,
    split_inlines,
)
from refdesk.documents.model import Block, Code, Heading, ListItem, Paragraph, Picture, Span, table_from_rows
from tests.documents.blocks import EVERY_KIND


def wire(*blocks: Block, **more: Any) -> list[dict[str, Any]]:
    return serialize_blocks(blocks, **more)


def test_each_kind_of_block_has_its_shape() -> None:
    found = wire(
        Heading("Owls", 2),
        Paragraph("They hoot."),
        Paragraph("Who?", role="quote"),
        Paragraph("Softly.", role="note"),
        Code("print(1)", "python"),
        Picture("An owl"),
        headings={0: "owls"},
    )
    assert found == [
        {"type": "heading", "level": 2, "id": "owls", "text": [{"text": "Owls"}]},
        {"type": "paragraph", "inlines": [{"text": "They hoot."}]},
        {"type": "quote", "blocks": [{"type": "paragraph", "inlines": [{"text": "Who?"}]}]},
        {"type": "paragraph", "inlines": [{"text": "Softly."}], "role": "note"},
        {"type": "code", "language": "python", "text": "print(1)"},
        {"type": "image", "alt": "An owl"},
    ]


def test_a_table_has_its_head_apart_and_no_more_rows_than_can_be_shown() -> None:
    [small] = wire(table_from_rows([["Bird", "Food"], ["Owl", "Mice"]], caption="Birds"))
    assert small == {
        "type": "table",
        "head": [[{"text": "Bird"}], [{"text": "Food"}]],
        "rows": [[[{"text": "Owl"}], [{"text": "Mice"}]]],
        "caption": "Birds",
    }
    [long] = wire(table_from_rows([["n"], *([str(n)] for n in range(MAX_ROWS + 7))]))
    assert (len(long["rows"]), long["omitted"]) == (MAX_ROWS, 7)
    [headless] = wire(table_from_rows([["a"], ["b"]], header_rows=0))
    assert (headless["head"], len(headless["rows"])) == ([], 2)


def test_items_in_a_row_are_lists_within_lists() -> None:
    [found, other] = wire(
        ListItem("a"), ListItem("b", depth=1, ordered=True, number=3), ListItem("c"), ListItem("d", ordered=True)
    )
    assert found["ordered"] is False
    first, second = found["items"]
    assert first[0] == {"type": "paragraph", "inlines": [{"text": "a"}]}
    assert (first[1]["ordered"], first[1]["start"]) == (True, 3)
    assert second == [{"type": "paragraph", "inlines": [{"text": "c"}]}]
    assert other["ordered"] is True


def test_an_item_far_deeper_than_the_one_above_it_is_just_below_it() -> None:
    [found] = wire(ListItem("a"), *(ListItem(str(depth), depth=depth) for depth in range(5, 40)))
    assert [item[0]["inlines"][0]["text"] for item in found["items"]] == ["a"]


def test_what_was_looked_for_is_marked_also_within_a_list() -> None:
    found = wire(Paragraph("x"), ListItem("a"), ListItem("b"), hits=frozenset({0, 2}))
    assert found[0]["hit"] is True
    assert [item[0].get("hit") for item in found[1]["items"]] == [None, True]
    assert "hit" not in found[1]


def test_spans_may_cross_and_lie_within_one_another() -> None:
    spans = (Span(0, 6, "strong"), Span(4, 9, "emphasis"), Span(4, 6, "link", "https://example.org"))
    assert split_inlines("abcdefghij", spans) == [
        {"text": "abcd", "strong": True},
        {"text": "ef", "strong": True, "em": True, "href": "https://example.org"},
        {"text": "ghi", "em": True},
        {"text": "j"},
    ]


@given(
    some.text(max_size=60),
    some.lists(
        some.tuples(some.integers(-5, 70), some.integers(-5, 70), some.sampled_from(["code", "strong", "link"]))
    ),
)
def test_whatever_the_spans_are_the_text_is_all_there(text: str, spans: list[tuple[int, int, Any]]) -> None:
    found = split_inlines(text, [Span(start, end, kind, "#x") for start, end, kind in spans])
    assert "".join(inline["text"] for inline in found) == text
    assert all(inline["text"] for inline in found)


@pytest.mark.parametrize(
    "target",
    ["https://example.org/a?b=c#d", "HTTP://example.org", "mailto:ann@example.org", "#section", " https://x.y "],
)
def test_links_to_pages_mailboxes_and_places_are_kept(target: str) -> None:
    assert is_safe_link(target)
    [inline] = split_inlines("x", (Span(0, 1, "link", target),))
    assert inline["href"] == target.strip()


@pytest.mark.parametrize(
    "target",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        "java\nscript:alert(1)",
        "\x01javascript:alert(1)",
        "data:text/html,<script>alert(1)</script>",
        "vbscript:msgbox",
        "file:///etc/passwd",
        "blob:https://x",
        "//evil.example",
        "https://x.y/ javascript:z",
        "https:evil",
        "",
        "https://x.y/" + "a" * 5000,
    ],
)
def test_other_links_leave_nothing_but_their_text(target: str) -> None:
    assert split_inlines("x", (Span(0, 1, "link", target),)) == [{"text": "x"}]


@pytest.mark.parametrize("target", ["other.html", "../guide/other.md#part", "a%20b.md"])
def test_a_link_to_a_document_beside_this_one_is_told_apart(target: str) -> None:
    assert split_inlines("x", (Span(0, 1, "link", target),)) == [{"text": "x", "beside": target}]


def test_what_is_too_long_is_cut_and_says_so() -> None:
    long = "x" * (MAX_TEXT_LENGTH + 5)
    [paragraph, code] = wire(Paragraph(long), Code(long))
    assert paragraph["omitted"] == code["omitted"] == 5
    assert len(paragraph["inlines"][0]["text"]) == len(code["text"]) == MAX_TEXT_LENGTH
    many = tuple(Span(n, n + 1, "strong") for n in range(MAX_SPANS * 3))
    assert len(split_inlines(long, many)) <= 2 * MAX_SPANS + 2


def test_every_kind_of_block_can_be_written_as_json() -> None:
    assert orjson.dumps(serialize_blocks(EVERY_KIND.blocks))


class CountedTarget(str):
    """A link target that counts how often any target is parsed; parsing strips it."""

    __slots__ = ()
    stripped = 0

    def strip(self, chars: str | None = None, /) -> str:
        CountedTarget.stripped += 1
        return super().strip(chars)


def test_overlapping_links_are_parsed_a_constant_number_of_times() -> None:
    CountedTarget.stripped = 0
    spans = [Span(n, 2000, "link", CountedTarget(f"https://example.org/{n}")) for n in range(1000)]
    found = split_inlines("x" * 2000, [*spans, Span(500, 1500, "strong"), Span(600, 700, "strong")])
    assert len(spans) <= CountedTarget.stripped <= 6 * len(spans)
    assert found[999]["href"] == "https://example.org/999"
    assert [bool(found[place].get("strong")) for place in (499, 500, 650, 701, 999)] == [False, True, True, True, True]
    assert "strong" not in found[-1]
