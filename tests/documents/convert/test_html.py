from __future__ import annotations

from pathlib import Path

import pytest

from refdesk.documents.convert import html
from refdesk.documents.convert.html import walk
from refdesk.documents.convert.html.page import MAX_CHARACTERS, MAX_DEPTH
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Block, Code, Document, Heading, ListItem, Paragraph, Picture, Span, Table, Term
from refdesk.errors import CannotConvert

PAGES = Path(__file__).parents[2] / "files" / "html"


def page(name: str) -> Document:
    return html.convert(SourceFile((PAGES / name).read_bytes(), name))


def blocks(body: str, url: str = "") -> tuple[Block, ...]:
    return html.convert(SourceFile(f"<body>{body}".encode(), "page.html", url=url)).blocks


def texts(document: Document) -> str:
    return "\n".join(getattr(block, "text", "") for block in document.blocks)


def spans_of(block: Block) -> list[tuple[str, str, str]]:
    assert isinstance(block, Paragraph | ListItem)
    return [(block.text[span.start : span.end], span.kind, span.target) for span in block.spans]


def test_a_page_of_sphinx_keeps_its_headings_without_permalinks() -> None:
    document = page("sphinx.html")
    assert document.title == "Queues"
    assert [block for block in document.blocks if isinstance(block, Heading)] == [
        Heading("Queues", 1, anchor="queues"),
        Heading("Sizes", 2, anchor="sizes"),
    ]


def test_what_stands_around_the_content_is_left_out() -> None:
    text = texts(page("sphinx.html"))
    assert text.startswith("Queues\nA Queue hands values")
    for furniture in ("Navigation", "Skip", "index", "Contents", "Created using", "script text"):
        assert furniture not in text


def test_a_page_says_who_wrote_it_and_what_it_is_about() -> None:
    document = page("sphinx.html")
    assert document.properties == {"language": "en", "description": "How queues work.", "author": "Jo Doe"}
    assert document.tags == ("queues", "threads")


def test_line_numbers_are_no_part_of_code_and_its_language_is_known() -> None:
    assert Code("import queue\nq = queue.Queue()", "python") in page("sphinx.html").blocks


def test_a_signature_is_code_and_an_admonition_a_quote_with_its_title() -> None:
    found = page("sphinx.html").blocks
    signature = next(block for block in found if isinstance(block, Term))
    assert (signature.text, signature.spans) == ("put(item, block=True)", (Span(0, 21, "code"),))
    assert (signature.title, signature.anchor) == ("put()", "put")
    assert Paragraph("Note", (Span(0, 4, "strong"),), "quote") in found
    assert Paragraph("It blocks when it is full.", (), "quote") in found


def test_a_table_keeps_its_spans_its_headers_and_its_caption() -> None:
    table = next(block for block in page("sphinx.html").blocks if isinstance(block, Table))
    assert table.grid() == [
        ["Kind", "Items", "Items"],
        ["Kind", "least", "most"],
        ["small", "1", "10"],
        ["large", "11", "any"],
    ]
    assert table.header_rows() == 2
    assert table.caption == "How large"


def test_items_know_their_depth_and_their_number() -> None:
    items = [block for block in page("sphinx.html").blocks if isinstance(block, ListItem)]
    assert [(item.text, item.depth, item.ordered) for item in items] == [
        ("third", 0, True),
        ("inner x", 1, False),
        ("fourth", 0, True),
    ]
    assert [item.number for item in items if item.ordered] == [3, 4]


def test_a_page_of_docbook_is_read_in_its_own_encoding_without_its_navigation() -> None:
    document = page("docbook.html")
    assert document.title == "3.2. Backups"
    text = texts(document)
    assert "A café keeps backups; see Section 3.3." in text
    assert "Prev" not in text
    assert "Chapter 3" not in text
    assert document.warnings == ()


def test_a_table_around_an_admonition_is_no_table() -> None:
    found = page("docbook.html").blocks
    assert not any(isinstance(block, Table | Picture) for block in found)
    assert Paragraph("Test them.", (), "quote") in found
    assert Code("dump --all \\\n    > file") in found


def test_a_list_of_the_own_headings_is_left_out_but_one_of_other_pages_is_kept() -> None:
    assert [block.text for block in page("docbook.html").blocks if isinstance(block, ListItem)] == []
    found = blocks("<h1>Part</h1><dl class=toc><dt><a href=a.html>One</a><dd><dl><dt><a href=b.html>Two</a></dl></dl>")
    assert [(block.text, block.depth) for block in found if isinstance(block, ListItem)] == [("One", 0), ("Two", 1)]


def test_tabs_are_named_where_they_begin_and_the_hidden_ones_are_kept() -> None:
    found = page("docusaurus.html").blocks
    start = found.index(Paragraph("npm", (Span(0, 3, "strong"),)))
    assert found[start : start + 4] == (
        Paragraph("npm", (Span(0, 3, "strong"),)),
        Code("npm install\nnpm start", "bash"),
        Paragraph("Yarn", (Span(0, 4, "strong"),)),
        Code("yarn add", "bash"),
    )


def test_a_page_of_docusaurus_keeps_quotes_figures_formulas_and_line_breaks() -> None:
    document = page("docusaurus.html")
    assert Paragraph("Pick a tool1.\nThen run it.") in document.blocks
    assert Paragraph("Quoted.", (), "quote") in document.blocks
    assert Picture("The parts.") in document.blocks
    assert Paragraph("a^2+b is small.", (Span(0, 5, "code"),)) in document.blocks
    assert document.properties["modified"] == "2024-05-01"
    for furniture in ("Edit this page", "Copyright", "Copy", "Next", "Home", "Docs"):
        assert furniture not in texts(document)


def test_a_page_of_pandoc_keeps_its_title_block_and_its_footnote() -> None:
    document = page("pandoc.html")
    assert document.title == "A guide"
    assert document.blocks[0] == Heading("A guide", 1, anchor="title-block-header")
    assert Code("def f():\n    return 1", "python") in document.blocks
    assert Paragraph("A note.[1]") in document.blocks
    assert any("The footnote." in getattr(block, "text", "") for block in document.blocks)
    assert "↩" not in texts(document)


def test_links_are_resolved_and_those_that_do_things_are_dropped() -> None:
    body = (
        "<p><a href='../b.html?x=1'>b</a> <a href='javascript:alert(1)'>j</a> <a href='data:text/html,x'>d</a> "
        "<a href='#here'>here</a> <a href='https://else.example/'>else</a> <a href='http://[bad'>bad</a></p>"
    )
    (paragraph,) = blocks(body, "https://docs.example/guide/a.html")
    assert isinstance(paragraph, Paragraph)
    assert paragraph.text == "b j d here else bad"
    assert spans_of(paragraph) == [
        ("b", "link", "https://docs.example/b.html?x=1"),
        ("else", "link", "https://else.example/"),
        ("bad", "link", "http://[bad"),
    ]


def test_a_stated_base_moves_relative_links() -> None:
    data = b"<head><base href='/v2/'></head><p><a href=x>x</a>"
    (paragraph,) = html.convert(SourceFile(data, "p", url="https://docs.example/guide/a")).blocks
    assert spans_of(paragraph) == [("x", "link", "https://docs.example/v2/x")]


def test_spans_nest_with_code_innermost_and_neighbours_join() -> None:
    (paragraph,) = blocks("<p><a href=x><code>f</code></a> <b>a</b><b>b</b> <i> c </i></p>")
    assert spans_of(paragraph) == [("f", "link", "x"), ("f", "code", ""), ("ab", "strong", ""), ("c", "emphasis", "")]


def test_emphasis_around_blocks_goes_on_in_each_of_them() -> None:
    found = blocks("<div><b><p>one</p><p>two</p></b></div>")
    assert [spans_of(block) for block in found] == [[("one", "strong", "")], [("two", "strong", "")]]


def test_blanks_collapse_and_characters_without_width_vanish() -> None:
    assert blocks("<p>  a\n\tb&nbsp;c &shy;d&#8203;e </p>") == (Paragraph("a b c de"),)


def test_the_paragraphs_after_an_items_first_are_paragraphs() -> None:
    assert blocks("<ul><li><p>one</p><p>more</p><pre>x</pre></li><li>two</ul>") == (
        ListItem("one", has_more=True),
        Paragraph("more"),
        Code("x"),
        ListItem("two", number=2),
    )


def test_two_breaks_part_paragraphs() -> None:
    assert blocks("one<br><br>two<hr>three") == (Paragraph("one"), Paragraph("two"), Paragraph("three"))


def test_a_table_that_lays_out_is_flattened_and_one_without_header_cells_is_not() -> None:
    laid_out = blocks("<table><tr><td><h2>A</h2><p>x</p></td><td>y</td></tr><tr><td>z</td></tr></table>")
    assert laid_out == (Heading("A", 2), Paragraph("x"), Paragraph("y"), Paragraph("z"))
    (table,) = blocks("<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>")
    assert isinstance(table, Table)
    assert table.grid() == [["a", "b"], ["c", "d"]]
    assert table.header_rows() == 0


def test_spans_of_cells_end_where_the_table_does() -> None:
    (table,) = blocks("<table><tr><th colspan=99999 rowspan=0>a</th></tr><tr><td>b</td></tr><tr><td>c<td>d</table>")
    assert isinstance(table, Table)
    assert table.columns <= walk.MAX_COLUMNS
    assert table.rows == 3
    assert all(
        cell.row + cell.row_span <= 3 and cell.column + cell.column_span <= table.columns for cell in table.cells
    )


def test_a_table_beyond_the_bound_is_cut_with_a_warning() -> None:
    most = walk.MAX_GRID_CELLS // walk.MAX_COLUMNS
    widest = f"<tr><td colspan={walk.MAX_COLUMNS - 1}>1<td>2"
    document = html.convert(SourceFile(f"<table><tr><th>a<th>b{widest * (most + 10)}".encode(), "p"))
    (table,) = document.blocks
    assert isinstance(table, Table)
    assert table.rows == most
    assert document.warnings == (f"A table was cut after {table.rows:,} rows; 11 more are left out.",)


@pytest.mark.parametrize(
    ("markup", "language"),
    [
        ("<pre><code class='language-rust'>x</code></pre>", "rust"),
        ("<pre class='brush: js'>x</pre>", "javascript"),
        ("<div class='highlight-default notranslate'><pre>x</pre></div>", ""),
        ("<div class='highlight highlight-source-shell'><pre>x</pre></div>", "shell"),
        ("<pre class='src src-emacs-lisp'>x</pre>", "emacs-lisp"),
        ("<pre class='sourceCode bash'><code>x</code></pre>", "bash"),
        ("<pre class='programlisting'>x</pre>", ""),
    ],
)
def test_the_language_of_code_is_read_from_its_class(markup: str, language: str) -> None:
    assert blocks(markup) == (Code("x", language),)


def test_lines_that_are_elements_are_lines_of_code() -> None:
    assert blocks("<pre><div>a</div><div>\n</div><div>  b\n</div></pre>") == (Code("a\n\n  b"),)


def test_only_the_heading_that_an_admonition_begins_with_opens_no_section() -> None:
    assert blocks("<div class=note><h3>Note</h3><p>x</p><h4>Part</h4></div>") == (
        Heading("Note", 3, is_notice=True),
        Paragraph("x", (), "quote"),
        Heading("Part", 4),
    )


def test_the_word_link_in_a_sentence_is_kept() -> None:
    assert blocks("<h2>Part<a href='#part'>#</a></h2><p>A <a href='#part'>link</a> to it.</p>") == (
        Heading("Part", 2),
        Paragraph("A link to it."),
    )


def test_the_lowest_heading_of_texinfo_is_below_the_one_above_it() -> None:
    found = blocks("<h4 class=subsection>1.1.1 A</h4><h4 class=subsubsection>1.1.1.1 B</h4>")
    assert found == (Heading("1.1.1 A", 4), Heading("1.1.1.1 B", 5))


def test_a_role_makes_a_heading() -> None:
    assert blocks("<div role=heading aria-level=3>Part</div><p>x") == (Heading("Part", 3), Paragraph("x"))


def test_the_title_of_a_site_gives_way_to_that_of_the_page() -> None:
    data = b"<title>Models | Site</title><body><div><h1>Site docs</h1></div><h1>Models</h1><p>x"
    document = html.convert(SourceFile(data, "p"))
    assert document.title == "Models"
    assert document.blocks == (Heading("Models", 1), Paragraph("x"))


def test_a_title_outside_of_the_main_part_is_kept() -> None:
    data = b"<title>Models - Site</title><body><header><h1>Models</h1></header><main><p>text of the page</main>"
    assert html.convert(SourceFile(data, "p")).blocks == (Heading("Models", 1), Paragraph("text of the page"))


def test_links_to_the_pages_before_and_after_are_left_out() -> None:
    body = "<div class=x><p>Next: <a accesskey=n rel=next href=b>B</a>, Up: <a rel=up href=c>C</a></p></div><p>Text."
    assert blocks(body) == (Paragraph("Text."),)


def test_bytes_that_are_not_in_the_stated_encoding_are_told() -> None:
    document = html.convert(SourceFile(b"<meta charset=utf-8><p>caf\xe9 au lait", "p"))
    assert document.blocks == (Paragraph("caf\ufffd au lait"),)
    assert document.warnings == ("1 place of the text could not be read as UTF-8 and hold a replacement character.",)


def test_the_servers_word_on_the_encoding_goes_before_the_pages() -> None:
    document = html.convert(SourceFile("<meta charset=utf-8><p>мир".encode("koi8-r"), "p", charset="koi8-r"))
    assert document.blocks == (Paragraph("мир"),)


@pytest.mark.parametrize("data", [b"", b"<script>x</script>", b"<body><nav>menu</nav>", b"\0\0\0"])
def test_a_page_without_text_is_refused(data: bytes) -> None:
    with pytest.raises(CannotConvert, match="holds no text"):
        html.convert(SourceFile(data, "p"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"<div>" * 200_000, "nests more than"),
        (b"<div " + b" ".join(b"a%d=1" % index for index in range(300_000)) + b">x", "attributes"),
        (b"<p>word</p>" * (MAX_CHARACTERS // 10), "characters, more than"),
    ],
)
def test_a_page_made_to_stall_the_parser_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(CannotConvert, match=reason):
        html.convert(SourceFile(data, "p"))


def test_a_drawing_of_many_strokes_is_not_taken_for_depth() -> None:
    drawing = b"<svg><title>t</title><g>" + b"<path d='M 0 0'/><text>x</text>" * MAX_DEPTH + b"</g></svg>"
    assert html.convert(SourceFile(b"<p>x</p>" + drawing, "p")).blocks == (Paragraph("x"),)


@pytest.mark.parametrize(
    "opening", [b"", b"<svg></svg>", b"<svg><div>", b"<svg><title>", b"<svg><desc>", b"<svg><foreignObject>"]
)
def test_strokes_that_stand_in_no_drawing_are_depth(opening: bytes) -> None:
    with pytest.raises(CannotConvert, match="nests more than"):
        html.convert(SourceFile(opening + b"<path/>" * 200_000, "p"))


@pytest.mark.parametrize(
    "data",
    [
        b"<p><b><i><a href=x><table><tr><td><ul><li><div>x" * 100,
        b"<div class=menu><a href=x>y</a>word " * 1000,
        b"<table><tr><td>x" * 1000,
        b"<img alt=y src='data:image/png;base64," + b"A" * 3_000_000 + b"'><p>x",
        b"a\0b<p>\0c" * 100,
        b"&#xD800;&#0;&#x110000; x",
        b"</p></div></html>x<body><body>",
    ],
)
def test_broken_and_hostile_pages_are_read_as_far_as_can_be(data: bytes) -> None:
    document = html.convert(SourceFile(data, "p"))
    assert document.blocks
    assert "\0" not in texts(document)
    texts(document).encode()


def test_a_fragment_is_content_as_a_whole() -> None:
    assert html.parse_fragment("<p>a</p><p>b</p>") == ([Paragraph("a"), Paragraph("b")], [])


def test_exponents_and_indexes_are_marked_and_ordinals_and_footnotes_are_not() -> None:
    found = blocks(
        "<h1>Up to 2<sup>64</sup></h1><p>2<sup>32</sup> rows, 10<sup>-3</sup> s, 2<sup>n-1</sup>, x<sub>i</sub>, "
        "1<sup>st</sup>, H<sub>2</sub>O, word<sup>1</sup>, word<sup><a href=#f>2</a></sup></p>"
        "<table><tr><th>Name<th>Limit<tr><td>rows<td>2<sup>31</sup></table>"
    )
    assert [block.text for block in found if isinstance(block, Heading | Paragraph)] == [
        "Up to 2^64",
        "2^32 rows, 10^-3 s, 2^(n-1), x_i, 1st, H2O, word1, word[2]",
    ]
    assert isinstance(found[2], Table)
    assert found[2].grid()[1] == ["rows", "2^31"]
