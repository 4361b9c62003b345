"""What leads to a heading within its page, wherever the page's generator put it."""

from __future__ import annotations

import pytest

from refdesk.documents.convert import html, markdown, rst
from refdesk.documents.convert.html.titles import MAX_ANCHOR
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Document, Heading


def anchors(document: Document) -> dict[str, str]:
    return {block.text: block.anchor for block in document.blocks if isinstance(block, Heading)}


def in_page(body: str, title: str = "") -> dict[str, str]:
    return anchors(html.convert(SourceFile(f"<title>{title}</title><body>{body}".encode(), "page.html")))


@pytest.mark.parametrize(
    "body",
    [
        "<h2 id=here>A</h2>",
        "<section id=here><h2>A</h2></section>",
        "<section id=here>\n <!-- c --> <h2>A</h2></section>",
        "<div class=sect2 id=here><div class=titlepage><div><div><h3 class=title>A</h3></div></div></div><p>x</div>",
        "<div class=refentry id=here><div></div><a id=i class=indexterm></a><div><h2>A</h2></div></div>",
        "<section id=here><span id=label></span><h2>A</h2></section>",
        "<section id=here><nav>Next page</nav><h2>A</h2></section>",
        "<a name=here></a><h2>A</h2>",
        "<p><a id=here></a></p>\n<h2>A</h2>",
        "<h2><a name=here></a>A</h2>",
        "<h2><span class=mw-headline id=here>A</span></h2>",
        "<div id=content><a id=here></a><h2>A</h2></div>",
        "<div role=heading aria-level=2 id=here>A</div>",
    ],
)
def test_an_anchor_is_found_on_the_heading_around_it_or_beside_it(body: str) -> None:
    assert in_page(f"<p>Before.</p>{body}<p>After.</p>") == {"A": "here"}


@pytest.mark.parametrize(
    "body",
    [
        "<h2>A</h2>",
        "<section id=other><p>Text.</p><h2>A</h2></section>",
        "<a id=other></a><p>Text.</p><h2>A</h2>",
        "<div id=content><h2>A</h2></div>",
        "<h2 id=''>A</h2>",
        f"<h2 id={'x' * (MAX_ANCHOR + 1)}>A</h2>",
    ],
)
def test_what_stands_for_something_else_is_not_taken(body: str) -> None:
    assert in_page(f"{body}<p>After.</p>") == {"A": ""}


def test_only_the_first_heading_of_an_element_takes_its_id() -> None:
    assert in_page("<div id=both><h2>A</h2><p>x</p><h2>B</h2><p>y</p></div>") == {"A": "both", "B": ""}


def test_a_title_outside_of_the_main_part_keeps_its_anchor() -> None:
    body = f"<h1 id=top>Guide</h1><main><h2>Part</h2><p>{'text ' * 50}</p></main>"
    assert in_page(body, "Guide")["Guide"] == "top"


def test_a_title_of_the_same_level_as_its_sections_stands_above_them() -> None:
    body = "<h2>CREATE INDEX</h2><p>Make one.</p><h2>Description</h2><p>x</p><h3>Methods</h3><p>y</p>"
    document = html.convert(SourceFile(f"<title>CREATE INDEX</title><body>{body}".encode(), "page.html"))
    assert [(block.text, block.level) for block in document.blocks if isinstance(block, Heading)] == [
        ("CREATE INDEX", 1),
        ("Description", 2),
        ("Methods", 3),
    ]


@pytest.mark.parametrize("title", ["Something else", "CREATE INDEXES", ""])
def test_a_first_heading_that_is_not_the_title_keeps_its_level(title: str) -> None:
    body = "<h2>CREATE INDEX</h2><p>x</p><h2>Description</h2><p>y</p>"
    document = html.convert(SourceFile(f"<title>{title}</title><body>{body}".encode(), "page.html"))
    assert {block.level for block in document.blocks if isinstance(block, Heading)} == {2}


def test_markdown_has_the_anchors_that_its_author_states() -> None:
    text = "# Guide {#top}\n\n## Setup {: #set-up .wide }\n\n<a id=here></a>\n\n## Use\n\n## Sets {a}\n\n## Plain\n\nx"
    assert anchors(markdown.convert(SourceFile(text.encode(), "guide.md"))) == {
        "Guide": "top",
        "Setup": "set-up",
        "Use": "here",
        "Sets {a}": "",
        "Plain": "",
    }


def test_restructured_text_has_the_anchors_that_docutils_gives_it() -> None:
    text = "Guide\n=====\n\nx\n\n.. _label:\n\nSetting up\n----------\n\ny\n"
    assert anchors(rst.convert(SourceFile(text.encode(), "guide.rst"))) == {
        "Guide": "guide",
        "Setting up": "setting-up",
    }
