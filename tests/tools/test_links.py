"""Links in texts for agents: to ids that open, or to their label."""

from __future__ import annotations

import pytest

from refdesk.tools.document_lookup import find_linked_ids, rewrite_links

KNOWN = {
    "pg/sql-copy.html",
    "pg/tutorial/intro.html",
    "pg/guide/index.md",
    "pg/a b.html",
    "web/example.org/docs/x.html",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("see [COPY](sql-copy.html).", "see [COPY](pg/sql-copy.html)."),
        ("see [`COPY`](sql-copy.html#PARAMS)", "see [`COPY`](pg/sql-copy.html#PARAMS)"),
        ("[up](../pg/./tutorial/intro.html)", "[up](pg/tutorial/intro.html)"),
        ("[intro](tutorial/intro.html?x=1)", "[intro](pg/tutorial/intro.html)"),
        ("[root](/tutorial/intro.html)", "[root](pg/tutorial/intro.html)"),
        ("[folder](guide/)", "[folder](pg/guide/index.md)"),
        ("[page](guide)", "[page](pg/guide/index.md)"),
        ("[blank](a%20b.html)", "[blank](<pg/a b.html>)"),
        ("[twice](sql-copy.html) and [twice](sql-copy.html)", "[twice](pg/sql-copy.html) and twice"),
        ("[gone](sql-gone.html)", "gone"),
        ("[here](#PARAMS)", "here"),
        ("[itself](page.html#PARAMS)", "itself"),
        ("[mail](mailto:a@example.org)", "mail"),
        ("[outside](../../etc/passwd)", "outside"),
        ("[site](https://example.org/x)", "[site](https://example.org/x)"),
        ("[broken](http://[::1/x)", "[broken](http://[::1/x)"),
        ("[a [b] c](sql-copy.html)", "[a [b] c](pg/sql-copy.html)"),
        ("x[1] and [y](sql-copy.html)", "x[1] and [y](pg/sql-copy.html)"),
        ("open [ and [y](sql-copy.html)", "open [ and [y](pg/sql-copy.html)"),
        ("`[code](gone.html)` and [gone](gone.html)", "`[code](gone.html)` and gone"),
        ("```\n[code](gone.html)\n```\n[gone](gone.html)", "```\n[code](gone.html)\n```\ngone"),
        (r"literal [x]\(gone.html)", r"literal [x]\(gone.html)"),
        ("![picture]()", "![picture]()"),
        ("no links", "no links"),
    ],
)
def test_links_lead_to_ids_or_are_reduced_to_their_label(text: str, expected: str) -> None:
    assert rewrite_links(text, "pg/page.html", {*KNOWN, "pg/page.html"}) == expected


def test_a_url_leads_to_the_page_fetched_from_it() -> None:
    text = "[x](https://example.org/docs/x.html#a) and [y](https://example.org/y)"
    expected = "[x](web/example.org/docs/x.html#a) and [y](https://example.org/y)"
    assert rewrite_links(text, "web/example.org/docs", KNOWN) == expected


def test_relative_links_of_a_document_without_a_collection_are_reduced() -> None:
    assert rewrite_links("[x](sql-copy.html)", "doc-abc", KNOWN) == "x"


def test_all_ids_that_links_may_mean_are_found() -> None:
    text = "[a](sql-copy.html#x) `[b](code.html)` [c](mailto:x) [d](/d.html)"
    assert find_linked_ids(text, "pg/page.html") == {"pg/sql-copy.html", "pg/d.html"}


def test_a_long_text_of_brackets_and_backticks_is_read_once() -> None:
    for mark in ("[", "`", "[](", "[`", "\\[", "]("):
        text = mark * 50_000
        assert rewrite_links(f"{text}](", "pg/page.html", KNOWN) == f"{text}]("
