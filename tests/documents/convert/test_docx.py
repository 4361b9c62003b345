from __future__ import annotations

import pytest

from refdesk.documents.convert.docx import convert
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.model import Code, Document, Heading, ListItem, Paragraph, Picture, Span, Table
from refdesk.errors import CannotConvert
from tests.documents.convert.office import convert_file, pack_zip, paragraph, source, unpack_zip, word

HEADING = (
    '<w:style w:type="paragraph" w:styleId="H1"><w:name w:val="heading 1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Ttl"><w:name w:val="Title"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Mine"><w:name w:val="My own"/><w:basedOn w:val="H1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Src"><w:name w:val="Source Code"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Toc"><w:name w:val="toc 1"/></w:style>'
    '<w:style w:type="paragraph" w:styleId="Cap"><w:name w:val="caption"/></w:style>'
)
LISTS = (
    '<w:abstractNum w:abstractNumId="0">'
    '<w:lvl w:ilvl="0"><w:start w:val="1"/><w:numFmt w:val="decimal"/><w:lvlText w:val="%1."/></w:lvl>'
    '<w:lvl w:ilvl="1"><w:numFmt w:val="bullet"/><w:lvlText w:val="•"/></w:lvl></w:abstractNum>'
    '<w:abstractNum w:abstractNumId="1"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/><w:lvlText w:val=" "/></w:lvl>'
    "</w:abstractNum>"
    '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    '<w:num w:numId="2"><w:abstractNumId w:val="0"/>'
    '<w:lvlOverride w:ilvl="0"><w:startOverride w:val="5"/></w:lvlOverride></w:num>'
    '<w:num w:numId="3"><w:abstractNumId w:val="1"/></w:num>'
)


def item(text: str, list_id: int = 1, depth: int = 0) -> str:
    place = f'<w:numPr><w:ilvl w:val="{depth}"/><w:numId w:val="{list_id}"/></w:numPr>'
    return paragraph(text, properties=place)


def cell(text: str, properties: str = "") -> str:
    return f"<w:tc><w:tcPr>{properties}</w:tcPr>{paragraph(text)}</w:tc>"


def only_table(document: Document) -> Table:
    (table,) = document.blocks
    assert isinstance(table, Table)
    return table


@pytest.mark.parametrize("name", ["guide.docx", "guide-libreoffice.docx", "guide.odt", "guide.doc", "guide.epub"])
def test_a_guide_keeps_its_structure_whatever_wrote_it(name: str) -> None:
    document = convert_file(name)

    assert [(block.level, block.text) for block in document.blocks if isinstance(block, Heading)] == [
        (1, "The Guide"),
        (2, "Install"),
        (5, "Deep"),
    ]
    assert document.title == "The Guide"
    items = [(block.depth, block.text) for block in document.blocks if isinstance(block, ListItem)]
    assert items[:3] == [(0, "first"), (0, "second"), (1, "nested one")]
    assert [block.text for block in document.blocks if isinstance(block, Code)] == [
        "def f(x):\n    return x\n\nprint(f(1))"
    ]
    (table,) = [block for block in document.blocks if isinstance(block, Table)]
    assert table.grid() == [["Name", "Value"], ["a", "1"], ["b", "2"]]
    assert table.header_rows() == 1
    assert any(isinstance(block, Picture) for block in document.blocks)


@pytest.mark.parametrize("name", ["guide.docx", "guide-libreoffice.docx"])
def test_a_word_document_reads_as_it_was_written(name: str) -> None:
    written = to_markdown(convert_file(name))

    assert "Intro *leaning* **loud** `code x` [link](https://example.org/a) text[1].\n\n[1] a note here" in written
    assert "   - nested two\n     \n     more of nested two\n3. third" in written
    assert "> a quote here" in written
    assert "`term`\n\nwhat it means" in written


def test_an_rtf_file_is_read_with_its_typed_markers() -> None:
    written = to_markdown(convert_file("guide.rtf"))

    assert "# The Guide" in written
    assert "1. first\n2. second\n   - nested one" in written
    assert "| a | 1 |" in written


def test_properties_and_keywords_are_kept() -> None:
    document = convert(source("guide.docx"))

    assert document.properties["author"] == "Ann Author"
    assert document.properties["created"]
    assert document.tags == ("alpha", "beta")


def test_a_title_is_a_heading_unless_the_first_heading_repeats_it() -> None:
    alone = convert(word(paragraph("Report", style="Ttl") + paragraph("Summary", style="H1"), styles=HEADING))
    repeated = convert(
        word(paragraph("Install – Book", style="Ttl") + paragraph("Install", style="H1"), styles=HEADING)
    )

    assert alone.blocks == (Heading("Report", 1), Heading("Summary", 1))
    assert repeated.blocks == (Heading("Install", 1),)
    assert repeated.title == "Install – Book"


def test_a_style_built_on_a_heading_is_one() -> None:
    assert convert(word(paragraph("Mine", style="Mine"), styles=HEADING)).blocks == (Heading("Mine", 1),)


def test_an_outline_level_makes_a_heading() -> None:
    body = paragraph("Deep", properties='<w:outlineLvl w:val="3"/>') + paragraph(
        "x", properties='<w:outlineLvl w:val="9"/>'
    )
    assert convert(word(body)).blocks == (Heading("Deep", 4), Paragraph("x"))


def test_list_items_carry_their_numbers_across_what_stands_between() -> None:
    body = item("one") + item("inner", depth=1) + paragraph("between") + item("two") + item("anew", list_id=2)
    assert convert(word(body, numbering=LISTS)).blocks == (
        ListItem("one", ordered=True),
        ListItem("inner", depth=1),
        Paragraph("between"),
        ListItem("two", ordered=True, number=2),
        ListItem("anew", ordered=True, number=5),
    )


def test_an_item_without_a_marker_continues_the_one_before() -> None:
    body = item("one") + item("more", list_id=3)
    assert convert(word(body, numbering=LISTS)).blocks == (ListItem("one\n\nmore", ordered=True),)


def test_a_numbered_heading_shows_its_number() -> None:
    place = '<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>'
    body = paragraph("Scope", style="H1", properties=place) + paragraph("Terms", style="H1", properties=place)
    assert convert(word(body, styles=HEADING, numbering=LISTS)).blocks == (
        Heading("1. Scope", 1),
        Heading("2. Terms", 1),
    )


def test_lines_of_code_become_one_block_with_their_blank_lines() -> None:
    body = paragraph("a:", style="Src") + "<w:p/>" + paragraph("  b", style="Src").replace("<w:t>", "<w:t>  ", 1)
    (code,) = convert(word(body, styles=HEADING)).blocks
    assert isinstance(code, Code)
    assert code.text.startswith("a:\n\n")
    assert code.text.endswith("  b")


def test_one_word_in_a_typewriter_font_is_a_name_and_several_are_a_listing() -> None:
    font = '<w:rFonts w:ascii="Consolas"/>'
    alone = convert(word(paragraph("name", run=font) + paragraph("what it is")))
    several = convert(word(paragraph("begin", run=font) + paragraph("x = 1", run=font)))

    assert alone.blocks == (Paragraph("name", (Span(0, 4, "code"),)), Paragraph("what it is"))
    assert several.blocks == (Code("begin\nx = 1"),)


def test_a_document_typed_in_a_typewriter_font_is_no_code() -> None:
    normal = (
        '<w:style w:type="paragraph" w:default="1" w:styleId="N"><w:name w:val="Normal"/>'
        '<w:rPr><w:rFonts w:ascii="Courier New"/></w:rPr></w:style>'
    )
    run = '<w:rFonts w:ascii="Courier New"/>'
    body = paragraph("Dear Sir", run=run) + paragraph("Hello", run=run)
    assert convert(word(body, styles=normal)).blocks == (Paragraph("Dear Sir"), Paragraph("Hello"))


def test_tracked_deletions_are_gone_and_insertions_are_there() -> None:
    body = (
        "<w:p><w:del><w:r><w:delText>old</w:delText></w:r></w:del><w:ins><w:r><w:t>new</w:t></w:r></w:ins>"
        "<w:moveFrom><w:r><w:t>away</w:t></w:r></w:moveFrom></w:p>"
    )
    assert convert(word(body)).blocks == (Paragraph("new"),)


def test_hidden_text_and_tables_of_contents_are_left_out() -> None:
    contents = (
        '<w:sdt><w:sdtPr><w:docPartObj><w:docPartGallery w:val="Table of Contents"/></w:docPartObj></w:sdtPr>'
        f"<w:sdtContent>{paragraph('Chapter 1 ... 3')}</w:sdtContent></w:sdt>"
    )
    body = contents + paragraph("Chapter", style="Toc") + paragraph("secret", run="<w:vanish/>") + paragraph("seen")
    assert convert(word(body, styles=HEADING)).blocks == (Paragraph("seen"),)


def test_text_in_content_controls_and_boxes_is_kept() -> None:
    box = (
        f"<w:p><w:r><w:t>around</w:t></w:r><w:r><w:pict><w:txbxContent>{paragraph('boxed')}</w:txbxContent></w:pict>"
        "</w:r></w:p>"
    )
    body = f"<w:sdt><w:sdtContent>{paragraph('controlled')}</w:sdtContent></w:sdt>" + box
    assert convert(word(body)).blocks == (Paragraph("controlled"), Paragraph("around"), Paragraph("boxed"))


def test_links_are_kept_whether_by_relationship_or_by_field() -> None:
    body = (
        '<w:p><w:hyperlink r:id="hyperlink_1"><w:r><w:t>here</w:t></w:r></w:hyperlink></w:p>'
        '<w:p><w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText> HYPERLINK "https://b.org" </w:instrText>'
        '</w:r><w:r><w:fldChar w:fldCharType="separate"/></w:r><w:r><w:t>there</w:t></w:r>'
        '<w:r><w:fldChar w:fldCharType="end"/></w:r><w:r><w:t> now</w:t></w:r></w:p>'
    )
    assert convert(word(body, hyperlink_1="https://a.org")).blocks == (
        Paragraph("here", (Span(0, 4, "link", "https://a.org"),)),
        Paragraph("there now", (Span(0, 5, "link", "https://b.org"),)),
    )


def test_merged_cells_span_what_they_cover() -> None:
    body = (
        "<w:tbl><w:tr>" + cell("wide", '<w:gridSpan w:val="2"/>') + "</w:tr>"
        "<w:tr>" + cell("tall", '<w:vMerge w:val="restart"/>') + cell("1") + "</w:tr>"
        "<w:tr>" + cell("", "<w:vMerge/>") + cell("2") + "</w:tr></w:tbl>"
    )
    table = only_table(convert(word(body)))

    assert table.grid() == [["wide", "wide"], ["tall", "1"], ["tall", "2"]]
    assert [(cell.row_span, cell.column_span) for cell in table.cells] == [(1, 2), (2, 1), (1, 1), (1, 1)]


def test_a_caption_above_a_table_belongs_to_it() -> None:
    body = paragraph("Table 1", style="Cap") + f"<w:tbl><w:tr>{cell('a')}{cell('b')}</w:tr></w:tbl>"
    assert only_table(convert(word(body, styles=HEADING))).caption == "Table 1"


def test_a_table_of_one_cell_is_only_a_frame() -> None:
    assert convert(word(f"<w:tbl><w:tr>{cell('framed')}</w:tr></w:tbl>")).blocks == (Paragraph("framed"),)


def test_a_table_inside_a_cell_is_read_as_its_text() -> None:
    inner = f"<w:tbl><w:tr>{cell('x')}{cell('y')}</w:tr></w:tbl>"
    table = only_table(convert(word(f"<w:tbl><w:tr>{cell('a')}<w:tc>{inner}</w:tc></w:tr></w:tbl>")))
    assert table.grid() == [["a", "x\ny"]]


def test_notes_stand_at_the_end_of_their_section() -> None:
    note = f'<w:footnote w:id="2">{paragraph("told")}</w:footnote>'
    body = '<w:p><w:r><w:t>said</w:t><w:footnoteReference w:id="2"/></w:r></w:p>'
    body += paragraph("more") + paragraph("Next", style="H1")
    assert convert(word(body, styles=HEADING, footnotes=note)).blocks == (
        Paragraph("said[1]"),
        Paragraph("more"),
        Paragraph("[1] told", role="footnote"),
        Heading("Next", 1),
    )


def test_formulas_are_written_as_latex() -> None:
    formula = (
        "<m:oMath><m:f><m:num><m:r><m:t>a</m:t></m:r></m:num><m:den><m:rad><m:deg/><m:e><m:r><m:t>b</m:t></m:r></m:e>"
        "</m:rad></m:den></m:f></m:oMath>"
    )
    assert convert(word(f"<w:p>{formula}</w:p>")).blocks == (Paragraph(r"$\frac{a}{\sqrt{b}}$"),)


def test_a_span_of_a_million_columns_is_refused() -> None:
    row = "<w:tr>" + cell("x", '<w:gridSpan w:val="999999"/>') + "</w:tr>"
    with pytest.raises(CannotConvert, match="too large"):
        convert(word(f"<w:tbl>{row * 3000}</w:tbl>"))


def test_content_controls_may_be_nested_as_deep_as_they_like() -> None:
    depth = 20_000
    body = "<w:sdt><w:sdtContent>" * depth + paragraph("bottom") + "</w:sdtContent></w:sdt>" * depth
    assert convert(word(body)).blocks == (Paragraph("bottom"),)


def test_a_package_without_a_text_is_refused() -> None:
    with pytest.raises(CannotConvert, match="no text part"):
        convert(SourceFile(word("").data.replace(b"word/document.xml", b"word/documint.xml"), "x.docx"))


@pytest.mark.parametrize("name", ["guide.odt", "guide.epub", "guide.doc"])
def test_a_damaged_file_of_another_format_is_refused(name: str) -> None:
    with pytest.raises(CannotConvert):
        convert_file(name, share=0.5)


def test_plain_runs_beside_others_keep_to_themselves() -> None:
    bold = "<w:r><w:rPr><w:b/></w:rPr><w:t>b</w:t></w:r>"
    plain = '<w:r><w:t xml:space="preserve"> a </w:t></w:r><w:r><w:rPr></w:rPr><w:t>&lt;c&gt;</w:t></w:r>'
    (block,) = convert(word(f"<w:p>{bold}{plain}{bold}{plain}<w:r><w:t>d</w:t></w:r></w:p>")).blocks
    assert block == Paragraph("b a <c>b a <c>d", (Span(0, 1, "strong"), Span(7, 8, "strong")))


def test_a_text_that_looks_like_runs_stays_as_it_is() -> None:
    raw = "<w:r><w:t>a</w:t></w:r><w:r><w:t>b</w:t></w:r><w:rPr></w:rPr>"
    (block,) = convert(word(f"<w:p><w:r><w:t><![CDATA[{raw}]]></w:t></w:r></w:p>")).blocks
    assert block == Paragraph(raw)


def test_looks_that_overlap_are_spans_of_their_own() -> None:
    run = "<w:r><w:rPr>{}</w:rPr><w:t xml:space='preserve'>{}</w:t></w:r>"
    runs = run.format("<w:b/>", " x") + run.format("<w:b/><w:i/>", "y") + run.format("<w:i/>", "z ")
    (block,) = convert(word(f"<w:p>{runs}</w:p>")).blocks
    assert block == Paragraph("xyz", (Span(0, 2, "strong"), Span(1, 3, "emphasis")))


def test_a_style_is_found_by_what_it_builds_on_among_many_that_nobody_uses() -> None:
    unused = "".join(
        f'<w:style w:type="table" w:styleId="T{n}"><w:name w:val="Grid {n}"/></w:style>' for n in range(50)
    )
    styles = (
        f'<w:latentStyles w:count="1"><w:lsdException w:name="x"/></w:latentStyles>{unused}'
        '<w:style w:type="paragraph" w:styleId="Mine"><w:name w:val="mine"/><w:basedOn w:val="Its"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="Its"><w:name w:val="its"/><w:basedOn w:val="H2"/></w:style>'
        '<w:style w:type="paragraph" w:styleId="H2"><w:name w:val="heading 2"/></w:style>'
    )
    assert convert(word(paragraph("Part", style="Mine"), styles=styles)).blocks == (Heading("Part", 2),)


def test_files_with_other_prefixes_are_read_alike() -> None:
    styles = '<w:style w:type="paragraph" w:styleId="H"><w:name w:val="heading 1"/></w:style>'
    body = paragraph("Part", style="H") + paragraph("some") + paragraph("words")
    usual = word(body, styles=styles)
    parts = unpack_zip(usual.data)
    parts["word/document.xml"] = parts["word/document.xml"].replace(b"w:", b"x:").replace(b"xmlns:w=", b"xmlns:x=")
    assert convert(SourceFile(pack_zip(parts), "other.docx")).blocks == convert(usual).blocks


def test_an_item_of_many_paragraphs_keeps_what_is_set_apart_in_each() -> None:
    numbering = (
        '<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="0"><w:numFmt w:val="bullet"/><w:lvlText w:val="-"/>'
        '<w:pPr><w:ind w:left="360"/></w:pPr></w:lvl></w:abstractNum>'
        '<w:num w:numId="1"><w:abstractNumId w:val="0"/></w:num>'
    )
    item = paragraph("one", properties='<w:numPr><w:ilvl w:val="0"/><w:numId w:val="1"/></w:numPr>')
    more = paragraph("two", properties='<w:ind w:left="360"/>', run="<w:b/>")
    (block,) = convert(word(item + more + more, numbering=numbering)).blocks
    assert block == ListItem("one\n\ntwo\n\ntwo", (Span(5, 8, "strong"), Span(10, 13, "strong")))


@pytest.mark.parametrize("number", ["x", "-1", "9" * 5_000])
def test_numbers_that_are_none_do_no_harm(number: str) -> None:
    numbering = (
        f'<w:abstractNum w:abstractNumId="0"><w:lvl w:ilvl="{number}"><w:start w:val="{number}"/></w:lvl>'
        "</w:abstractNum>"
        f'<w:num w:numId="1"><w:abstractNumId w:val="0"/><w:lvlOverride w:ilvl="{number}">'
        f'<w:startOverride w:val="{number}"/></w:lvlOverride></w:num>'
    )
    place = f'<w:numPr><w:ilvl w:val="{number}"/><w:numId w:val="1"/></w:numPr><w:outlineLvl w:val="{number}"/>'
    symbol = f'<w:p><w:r><w:sym w:char="{number}"/><w:t>b</w:t></w:r></w:p>'
    document = convert(word(paragraph("a", properties=place) + symbol, numbering=numbering))
    assert len(document.blocks) == 2


def test_superscripts_and_subscripts_keep_their_meaning() -> None:
    def runs(*texts: tuple[str, str]) -> str:
        made = (
            f'<w:r><w:rPr><w:vertAlign w:val="{script}"/></w:rPr><w:t xml:space="preserve">{text}</w:t></w:r>'
            for text, script in texts
        )
        return f"<w:p>{''.join(made)}</w:p>"

    up, down, flat = "superscript", "subscript", "baseline"
    document = convert(
        word(
            runs(
                ("At most 2", flat),
                ("32", up),
                (" rows, x", flat),
                ("n+1", up),
                (" ", up),
                ("and a", flat),
                ("i", down),
            )
            + runs(("The 1", flat), ("st", up), (" of H", flat), ("2", down), ("O", flat))
        )
    )
    texts = [block.text for block in document.blocks if isinstance(block, Paragraph)]
    assert texts == ["At most 2^32 rows, x^(n+1) and a_i", "The 1st of H2O"]
