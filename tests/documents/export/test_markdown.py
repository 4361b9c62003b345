"""Markdown that a reader of Markdown reads as the document it came from."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from tests.documents.blocks import EVERY_KIND, WORDS

from refdesk.documents.export.markdown import MATH, block_to_markdown, escape_markdown, to_markdown
from refdesk.documents.model import Code, Document, Heading, ListItem, Paragraph, Picture, Span, table_from_rows

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def test_a_document_of_every_kind_of_block() -> None:
    assert to_markdown(EVERY_KIND) == (
        "# The manual\n\nSee the [index page](https://example.org/x).\n\n## Install\n\n"
        "1. first\n   - inner\n2. second\n\n"
        "```python\nif a < b:\n    print(`x`)\n```\n\n"
        "Table 1: sizes\n\n| Name | Both | Both |\n| --- | --- | --- |\n| a\\|b | 1 | 2 |\n\n"
        "> So they say.\n\n> **Notes:** Speak slowly.\n\n1\\. A note below.\n\n![A drawing]()\n\n"
        "**--all**\n**-a**\n\nTake all of it.\n"
    )


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("snake_case and SELECT * FROM t", "snake_case and SELECT * FROM t"),
        ("*bold* and _this_", r"\*bold\* and \_this\_"),
        ("a <b> c < d", r"a \<b> c < d"),
        ("[text](url)", r"[text]\(url)"),
        ("C:\\new &amp; R&D", "C:\\new \\&amp; R&D"),
        (r"*a* $\{x_{1}*y*\}$ *b*", r"\*a\* $\{x_{1}*y*\}$ \*b\*"),
        (r"$$\sum_{i}^*a_*$$ and $a_*b$$*c_*$", r"$$\sum_{i}^*a_*$$ and $a_*b$$*c_*$"),
        (r"$a \$ *b*$", r"$a \$ *b*$"),
        ("$a<b *c*$", "$a< b *c*$"),
        ("$5 *a* or $6 *b*$7", r"$5 \*a\* or $6 \*b\*$7"),
        ("$ *a* $, $`*a*`$", r"$ \*a\* $, $\`\*a\*\`$"),
    ],
)
def test_only_what_would_be_misread_is_escaped(text: str, written: str) -> None:
    assert escape_markdown(text) == written


@pytest.mark.parametrize(
    "text", ["# no heading", "- no item", "+ no item", "12. no item", "> no quote", "---", "===", "a\n- b", "a\n# b"]
)
def test_a_paragraph_stays_a_paragraph(text: str) -> None:
    html = READER.render(block_to_markdown(Paragraph(text)))
    assert re.fullmatch(r"<p>[^<]*</p>\n", html), html


def test_a_fence_is_longer_than_any_in_the_code() -> None:
    code = Code("```\ninner\n````", "text")
    tokens = READER.parse(block_to_markdown(code))
    assert [(token.type, token.content) for token in tokens] == [("fence", code.text + "\n")]


def test_spans_nest_and_are_trimmed() -> None:
    paragraph = Paragraph(
        "see the `run` call now", (Span(3, 18, "link", "a (b).html"), Span(8, 13, "code"), Span(8, 18, "strong"))
    )
    assert block_to_markdown(paragraph) == "see [the **`` `run` `` call**](<a (b).html>) now"


def test_a_picture_without_words_leaves_nothing() -> None:
    assert to_markdown(Document("", (Picture(), Heading("x", 2)))) == "## x\n"


def test_an_item_deeper_than_any_above_it_is_still_an_item() -> None:
    assert to_markdown(Document("", (ListItem("a", depth=3), ListItem("b", depth=3)))) == "- a\n  - b\n"


@settings(max_examples=200, deadline=None)
@given(st.lists(WORDS.map(str.strip).filter(lambda text: text and not MATH.search(text)), min_size=1, max_size=5))
def test_table_cells_come_back_as_they_were(row: list[str]) -> None:
    tokens = READER.parse(block_to_markdown(table_from_rows([["h"] * len(row), row])))
    cells = [token.children for token in tokens if token.type == "inline"][len(row) :]
    read = ["".join(part.content for part in children or []) for children in cells]
    assert [" ".join(text.split()) for text in read] == [" ".join(text.split()) for text in row]
