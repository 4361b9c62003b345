"""HTML that a browser shows as the document, and that cannot run anything."""

from __future__ import annotations

from hypothesis import given, settings
from selectolax.lexbor import LexborHTMLParser, LexborNode
from tests.documents.blocks import EVERY_KIND, documents

from refdesk.documents.export.html import to_html
from refdesk.documents.model import Document, Heading, ListItem, Paragraph, Span


def first(page: LexborHTMLParser, selector: str) -> LexborNode:
    node = page.css_first(selector)
    assert node is not None, f"no {selector} in the page"
    return node


def test_a_document_of_every_kind_of_block() -> None:
    page = LexborHTMLParser(to_html(EVERY_KIND))
    assert first(page, "title").text() == "The manual"
    assert [node.attributes["id"] for node in page.css("h1, h2")] == ["the-manual", "INSTALL-STEPS"]
    assert first(page, "pre code.language-python").text() == "if a < b:\n    print(`x`)"
    assert [node.text() for node in page.css("body > ol > li > ul > li")] == ["inner"]
    assert first(page, "th[colspan='2']").text() == "Both"
    assert first(page, "caption").text() == "Table 1: sizes"
    assert first(page, "a").attributes["href"] == "https://example.org/x"
    assert first(page, "blockquote").text() == "So they say."


def test_an_id_made_of_a_title_is_never_the_anchor_of_another_heading() -> None:
    document = Document("t", (Heading("Install", 1), Heading("Other", 1, anchor="install")))
    ids = [node.attributes["id"] for node in LexborHTMLParser(to_html(document)).css("h1")]
    assert ids == ["install-2", "install"]


def test_nothing_from_the_file_becomes_markup() -> None:
    hostile = '<script>alert(1)</script>" onload="x'
    document = Document(
        hostile,
        (
            Heading(hostile, 1, anchor=hostile),
            Paragraph(hostile, (Span(0, 8, "link", 'x" onclick="y'),)),
            ListItem(hostile),
        ),
        properties={"language": hostile},
    )
    page = LexborHTMLParser(to_html(document))
    assert page.css("script") == []
    assert all(set(node.attributes) <= {"id", "href", "lang", "charset"} for node in page.css("*"))


def test_a_script_link_is_left_as_text() -> None:
    text = "click"
    for target in ("javascript:alert(1)", " JavaScript:alert(1)", "data:text/html,x", "vbscript:x", "http://[bad"):
        document = Document("t", (Paragraph(text, (Span(0, 5, "link", target),)),))
        assert "<a" not in to_html(document), target


@settings(max_examples=100, deadline=None)
@given(documents)
def test_no_word_of_a_document_is_lost(document: Document) -> None:
    body = first(LexborHTMLParser(to_html(document)), "body").text()
    shown = "".join(body.split())
    for block in document.blocks:
        if isinstance(block, Heading | Paragraph | ListItem):
            assert "".join(block.text.split()) in shown
