from __future__ import annotations

from refdesk.documents.convert.pptx import convert
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.model import Code, Heading, ListItem, Page, Paragraph, Picture, Place, Table, get_page
from tests.documents.convert.office import convert_file, deck, pack_zip, shape, source, unpack_zip

RUN = "<a:r><a:t>{}</a:t></a:r>"
BULLET = '<a:pPr lvl="{}"><a:buChar char="•"/></a:pPr><a:r><a:t>{}</a:t></a:r>'
NUMBER = '<a:pPr><a:buAutoNum type="arabicPeriod"/></a:pPr><a:r><a:t>{}</a:t></a:r>'


def test_a_deck_keeps_its_slides_bullets_and_notes() -> None:
    document = convert(source("deck.pptx"))

    assert document.page_kind == "slide"
    assert [page.number for page in document.pages] == [1, 2, 3, 4, 5]
    assert document.pages[0].width == 720
    headings = [(block.level, block.text, get_page(block)) for block in document.blocks if isinstance(block, Heading)]
    assert headings == [(1, "The Deck", 1), (2, "First slide", 2), (2, "Numbers", 3), (2, "Table", 4), (2, "Code", 5)]
    items = [(block.depth, block.ordered, block.text) for block in document.blocks if isinstance(block, ListItem)]
    assert items == [
        (0, False, "one"),
        (1, False, "two"),
        (0, False, "three"),
        (0, True, "eins"),
        (0, True, "zwei"),
    ]
    (note,) = [block for block in document.blocks if isinstance(block, Paragraph) and block.role == "note"]
    assert (note.text, note.place) == ("Say this aloud.\nAnd this.", Place(2))
    (table,) = [block for block in document.blocks if isinstance(block, Table)]
    assert table.grid() == [["Name", "Value"], ["a", "1"]]
    assert [block.text for block in document.blocks if isinstance(block, Code)] == ["x = 1\ny = 2"]


def test_an_opendocument_deck_keeps_the_same() -> None:
    document = convert_file("deck.odp")

    headings = [(block.level, block.text, get_page(block)) for block in document.blocks if isinstance(block, Heading)]
    assert headings == [(1, "The Deck", 1), (2, "First slide", 2), (2, "Numbers", 3), (2, "Table", 4), (2, "Code", 5)]
    items = [(block.depth, block.number, block.text) for block in document.blocks if isinstance(block, ListItem)]
    assert items == [(0, 1, "one"), (1, 1, "two"), (0, 1, "three"), (0, 1, "eins"), (0, 2, "zwei")]
    (note,) = [block for block in document.blocks if isinstance(block, Paragraph) and block.role == "note"]
    assert note.text == "Say this aloud.\nAnd this."
    (table,) = [block for block in document.blocks if isinstance(block, Table)]
    assert table.grid() == [["Name", "Value"], ["a", "1"]]


def test_only_the_slides_asked_for_are_converted() -> None:
    whole = source("deck.pptx")
    document = convert(SourceFile(whole.data, whole.name, pages=PageRange(3, 4)))

    assert [page.number for page in document.pages] == [3, 4]
    assert document.total_pages == 5
    assert {get_page(block) for block in document.blocks} == {3, 4}


def test_the_title_comes_first_wherever_it_stands_in_the_file() -> None:
    document = convert(deck(shape(RUN.format("body")) + shape(RUN.format("Title"), placeholder="title")))
    assert document.blocks == (Heading("Title", 2, Place(1)), Paragraph("body", place=Place(1)))


def test_shapes_are_read_from_top_to_bottom_and_from_left_to_right() -> None:
    def at(x: int, y: int, text: str) -> str:
        box = f'<p:spPr><a:xfrm><a:off x="{x * 12700}" y="{y * 12700}"/><a:ext cx="1" cy="1"/></a:xfrm></p:spPr>'
        return shape(RUN.format(text)).replace("<p:txBody>", f"{box}<p:txBody>")

    document = convert(deck(at(300, 205, "right") + at(0, 400, "below") + at(10, 200, "left") + at(0, 0, "top")))
    assert [block.text for block in document.blocks if isinstance(block, Paragraph)] == [
        "top",
        "left",
        "right",
        "below",
    ]


def test_dates_footers_and_slide_numbers_are_left_out() -> None:
    repeated = "".join(shape(RUN.format("x"), placeholder=kind) for kind in ("dt", "ftr", "sldNum"))
    assert convert(deck(repeated)).blocks == ()


def test_numbers_count_on_through_deeper_bullets() -> None:
    texts = (NUMBER.format("a"), BULLET.format(1, "b"), NUMBER.format("c"))
    assert convert(deck(shape(*texts))).blocks == (
        ListItem("a", ordered=True, number=1, place=Place(1)),
        ListItem("b", depth=1, place=Place(1)),
        ListItem("c", ordered=True, number=2, place=Place(1)),
    )


def test_shapes_of_groups_are_read_and_pictures_keep_their_words() -> None:
    picture = (
        '<p:pic><p:nvPicPr><p:cNvPr id="3" name="p" descr="A cat"/><p:cNvPicPr/><p:nvPr/></p:nvPicPr>'
        '<p:spPr><a:xfrm><a:off x="12700" y="25400"/><a:ext cx="127000" cy="127000"/></a:xfrm></p:spPr></p:pic>'
    )
    document = convert(deck(f"<p:grpSp><p:nvGrpSpPr/>{shape(RUN.format('inside'))}</p:grpSp>{picture}"))
    assert document.blocks == (
        Paragraph("inside", place=Place(1)),
        Picture("A cat", Place(1, (1, 2, 11, 12))),
    )


def test_merged_cells_of_a_table_span_what_they_cover() -> None:
    def cell(text: str, attributes: str = "") -> str:
        return f"<a:tc {attributes}><a:txBody><a:p>{RUN.format(text)}</a:p></a:txBody></a:tc>"

    wide = cell("wide", 'gridSpan="2"') + cell("", 'hMerge="1"')
    rows = f"<a:tr>{wide}</a:tr><a:tr>{cell('1')}{cell('2')}</a:tr>"
    frame = (
        "<p:graphicFrame><p:nvGraphicFramePr/><a:graphic><a:graphicData>"
        f'<a:tbl><a:tblPr firstRow="1"/>{rows}</a:tbl></a:graphicData></a:graphic></p:graphicFrame>'
    )
    (table,) = convert(deck(frame)).blocks
    assert isinstance(table, Table)
    assert table.grid() == [["wide", "wide"], ["1", "2"]]
    assert table.header_rows() == 1


def test_a_hidden_slide_is_converted_and_named() -> None:
    document = convert(deck(shape(RUN.format("a")), shape(RUN.format("b")), attributes={2: 'show="0"'}))

    assert len(document.blocks) == 2
    assert document.warnings == ("Hidden in the presentation, but converted like the others: slide 2.",)


def test_notes_follow_their_slide() -> None:
    document = convert(deck(shape(RUN.format("a")), notes={1: shape(RUN.format("say"), placeholder="body")}))
    assert document.blocks[-1] == Paragraph("say", role="note", place=Place(1))


def test_an_empty_slide_is_still_a_page() -> None:
    assert convert(deck("")).pages == (Page(1, 720, 540),)


def test_a_placeholder_stands_where_the_layout_first_puts_its_index_or_kind() -> None:
    layout = (
        shape(placeholder="body", index=3, top=300)
        + shape(placeholder="body", index=1, top=100)
        + shape(placeholder="pic", index=2, top=200)
        + shape(placeholder="pic", index=2, top=900)
    )
    slide = (
        shape(RUN.format("by index"), index=2)
        + shape(RUN.format("by kind"), placeholder="body", index=1)
        + shape(RUN.format("its own"), placeholder="body", index=1, top=50)
    )
    texts = {
        block.text: block.place for block in convert(deck(slide, layout=layout)).blocks if isinstance(block, Paragraph)
    }
    tops = {text: place.box[1] for text, place in texts.items() if place and place.box}
    assert tops == {"its own": 50, "by index": 200, "by kind": 300}


def test_bullets_come_from_the_layout_unless_the_slide_takes_them_away() -> None:
    style = '<a:lstStyle><a:lvl1pPr><a:buAutoNum type="arabicPeriod"/></a:lvl1pPr></a:lstStyle>'
    layout = shape(placeholder="body", index=1).replace("<a:bodyPr/>", f"<a:bodyPr/>{style}")
    lines = RUN.format("one"), "<a:pPr><a:buNone/></a:pPr>" + RUN.format("between"), RUN.format("two")
    blocks = convert(deck(shape(*lines, placeholder="body", index=1), layout=layout)).blocks
    assert blocks == (
        ListItem("one", ordered=True, number=1, place=Place(1)),
        Paragraph("between", place=Place(1)),
        ListItem("two", ordered=True, number=2, place=Place(1)),
    )


def test_a_slide_that_is_listed_twice_is_read_once() -> None:
    usual = deck(shape(RUN.format("first")), shape(RUN.format("second")))
    parts = unpack_zip(usual.data)
    parts["ppt/presentation.xml"] = parts["ppt/presentation.xml"].replace(b'"slide_2"', b'"slide_1"')
    document = convert(SourceFile(pack_zip(parts), "twice.pptx"))
    assert [block.text for block in document.blocks if isinstance(block, Paragraph)] == ["first"]
    assert document.warnings == ("Not in the file although the presentation lists them: slide 2.",)
