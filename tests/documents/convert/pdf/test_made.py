"""What real programs rarely write: turned pages, scans, loops, floods, locks."""

from __future__ import annotations

import pytest

from refdesk.documents.convert.pdf import convert
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.model import Code, Heading, ListItem, Paragraph, Picture, Table
from refdesk.errors import CannotConvert
from tests.documents.convert.pdf.made import FONTS, convert_pdf, lines, pdf, sample, text

IMAGE = (
    "<< /Type /XObject /Subtype /Image /Width 1 /Height 1 /ColorSpace /DeviceGray /BitsPerComponent 8 /Length 1 >>"
    " stream\n0\nendstream"
)
"""One grey dot."""


def texts(data: bytes) -> list[str]:
    return [block.text for block in convert_pdf(data).blocks if isinstance(block, Paragraph)]


def test_only_the_pages_asked_for_are_converted() -> None:
    document = sample("manual.pdf", PageRange(5, 6))
    assert [page.number for page in document.pages] == [5, 6]
    assert document.total_pages > 6
    assert [block.text for block in document.blocks if isinstance(block, Heading)] == [
        "Chapter 2 Watching",
        "2.1 Signals",
    ]


def test_pages_with_hardly_any_text_keep_it_although_it_repeats() -> None:
    invoices = [(f"Invoice 20{number}", f"Total: {number * 7}.50 EUR") for number in (11, 15, 27)]
    assert texts(pdf([lines(*invoice, top=570) for invoice in invoices])) == [" ".join(map(" ".join, invoices))]
    numbered = [lines(*invoice, top=570) + text(290, 20, str(at)) for at, invoice in enumerate(invoices, 1)]
    assert texts(pdf(numbered)) == [" ".join(map(" ".join, invoices))]


def test_pages_beyond_the_last_one_are_refused_by_name() -> None:
    with pytest.raises(CannotConvert, match=r"has pages 1 to \d+; pages 90 to 95 are not among them"):
        sample("manual.pdf", PageRange(90, 95))


def test_progress_is_told_to_the_last_page() -> None:
    told: list[str] = []
    data = pdf([lines("One page of many.")] * 70)
    convert(SourceFile(data, "long.pdf", progress=lambda done, total, doing: told.append(f"{done}/{total} {doing}")))
    assert told == ["32/70 page 32 of 70", "64/70 page 64 of 70", "70/70 page 70 of 70"]


def test_what_is_no_pdf_is_refused() -> None:
    with pytest.raises(CannotConvert, match="not a PDF or is damaged"):
        convert_pdf(b"once upon a time")


def test_a_file_that_needs_a_password_is_refused() -> None:
    lock = "<< /Filter /Standard /V 1 /R 2 /O <" + "41" * 32 + "> /U <" + "42" * 32 + "> /P -4 >>"
    data = pdf([lines("secret")], objects=[lock], trailer="/Encrypt 10 0 R /ID [<00> <00>]")
    with pytest.raises(CannotConvert, match="protected by a password"):
        convert_pdf(data)


def test_a_file_without_pages_is_refused() -> None:
    with pytest.raises(CannotConvert, match="is not a PDF or is damaged"):
        convert_pdf(pdf([]))


def test_a_file_whose_table_of_objects_is_wrong_is_still_read() -> None:
    data = pdf([lines("This line survives.")])
    assert texts(data.replace(b"startxref\n", b"startxref\n7")) == ["This line survives."]


def test_pictures_of_text_are_named_as_such() -> None:
    data = pdf(
        ["q 400 0 0 600 0 0 cm /Im Do Q"] * 3,
        objects=[IMAGE],
        page=f"/Resources << {FONTS} /XObject << /Im 10 0 R >> >>",
    )
    document = convert(SourceFile(data, "made.pdf"), recognition_seconds=0)
    assert [page.scanned for page in document.pages] == [True, True, True]
    assert [warning for warning in document.warnings if warning.startswith("Pages 1–3 are pictures ")]


def test_a_picture_takes_the_caption_below_it() -> None:
    operators = "\n".join(
        (
            lines("A line of text above the picture."),
            "q 200 0 0 100 50 400 cm /Im Do Q",
            lines("Figure 1: A grey box.", top=380),
            lines("A line of text below the picture.", top=340),
        )
    )
    data = pdf([operators], objects=[IMAGE], page=f"/Resources << {FONTS} /XObject << /Im 10 0 R >> >>")
    (picture,) = [block for block in convert_pdf(data).blocks if isinstance(block, Picture)]
    assert picture.caption == "Figure 1: A grey box."
    assert texts(data) == ["A line of text above the picture.", "A line of text below the picture."]


def test_a_turned_page_is_read_as_it_is_seen() -> None:
    operators = "\n".join(
        f"BT /F1 10 Tf 0 1 -1 0 {60 + 12 * at} 50 Tm ({words}) Tj ET"
        for at, words in enumerate(("upper line", "lower line"))
    )
    document = convert_pdf(pdf([operators], page="/Rotate 90"))
    assert (document.pages[0].width, document.pages[0].height) == (600, 400)
    assert [block.text for block in document.blocks if isinstance(block, Paragraph)] == ["upper line lower line"]


def test_text_that_runs_upwards_on_an_upright_page_is_read_too() -> None:
    operators = "\n".join(
        f"BT /F1 10 Tf 0 1 -1 0 {60 + 12 * at} 50 Tm ({words}) Tj ET"
        for at, words in enumerate(("upper line", "lower line"))
    )
    assert texts(pdf([operators])) == ["upper line lower line"]


def test_words_printed_twice_for_weight_are_read_once() -> None:
    operators = text(50, 500, "Heavy words") + text(50.2, 500, "Heavy words")
    assert texts(pdf([operators])) == ["Heavy words"]


def test_invisible_text_counts_as_text() -> None:
    assert texts(pdf(["3 Tr " + text(50, 500, "Recognised before.")])) == ["Recognised before."]


def test_an_outline_that_leads_back_to_itself_ends() -> None:
    loop = [
        "<< /First 11 0 R /Last 11 0 R /Count 1 >>",
        "<< /Title (Chapter) /Parent 10 0 R /Next 11 0 R /First 11 0 R /Dest [12 0 R /Fit] >>",
    ]
    data = pdf([lines("Chapter", font="F2", size=16)], objects=loop, catalog="/Outlines 10 0 R")
    document = convert_pdf(data)
    assert [block.text for block in document.blocks] == ["Chapter"]  # type: ignore[union-attr]


def test_an_outline_without_pages_does_not_hide_the_pages_asked_for() -> None:
    count = 3_000
    outline = [f"<< /First 11 0 R /Last {10 + count} 0 R /Count {count} >>"]
    outline += (f"<< /Title (Link) /Parent 10 0 R /Next {number} 0 R >>" for number in range(12, 11 + count))
    outline.append("<< /Title (Link) /Parent 10 0 R >>")
    pages = [text(50, 300, f"Page {letter}.") for letter in "abcdefghij"]
    data = pdf(pages, objects=outline, catalog="/Outlines 10 0 R")
    document = convert(SourceFile(data, "made.pdf", pages=PageRange(6, 6)))
    assert [block.text for block in document.blocks] == ["Page f."]  # type: ignore[union-attr]


def test_a_form_that_draws_itself_ends() -> None:
    form = (
        "<< /Type /XObject /Subtype /Form /BBox [0 0 400 600] /Resources << /XObject << /Fm 10 0 R >> >> /Length 6 >>"
        " stream\n/Fm Do\nendstream"
    )
    data = pdf(
        ["/Fm Do " + text(50, 500, "Still here.")],
        objects=[form],
        page=f"/Resources << {FONTS} /XObject << /Fm 10 0 R >> >>",
    )
    assert texts(data) == ["Still here."]


@pytest.mark.parametrize(
    "box", ["/MediaBox [0 0 0 0]", "/MediaBox [9 9 9 9]", "/MediaBox [0 0 1e30 1e30]", "/MediaBox [x]"]
)
def test_a_page_of_impossible_size_does_no_harm(box: str) -> None:
    document = convert_pdf(pdf([lines("Anything.")], page=box))
    assert len(document.pages) == 1


def test_letters_and_lines_at_impossible_places_do_no_harm() -> None:
    wild = "1e38 0 0 1e38 1e38 1e38 cm 0 0 1e38 1e38 re S 1 w 0 0 m 1e38 1e38 l S " + text(1e30, 1e30, "lost")
    data = pdf([f"q {wild} Q " + text(50, 500, "Found.") + text(-1e37, 500, "lost")])
    assert texts(data) == ["Found."]


def test_a_page_of_too_many_shapes_is_cut_with_a_warning() -> None:
    data = pdf(["0 0 5 5 re f " * 31_000 + text(50, 500, "Words are read all the same.")])
    document = convert_pdf(data)
    assert "Page 1 is too full or damaged; part of the content was left out." in document.warnings
    assert texts(data) == ["Words are read all the same."]


def test_a_file_of_too_many_pages_is_cut_with_a_warning() -> None:
    document = convert(SourceFile(pdf([lines("A page.")] * 5), "made.pdf"), max_pages=2)
    assert [page.number for page in document.pages] == [1, 2]
    assert document.total_pages == 5
    assert document.warnings == (
        "Only the first 2 of 5 pages were converted; ask for the others by their page numbers.",
    )


def test_a_line_of_code_that_runs_off_the_page_is_kept_whole() -> None:
    long = "x = " + " + ".join(f"term{number}" for number in range(12))
    data = pdf([lines("Some words of text above.", "And some more of them.") + lines(long, top=500, font="F3", x=60)])
    (code,) = [block for block in convert_pdf(data).blocks if isinstance(block, Code)]
    assert code.text == long


def test_dots_drawn_as_shapes_are_bullets() -> None:
    dots = "".join(f"40 {552 - 12 * at} 3 3 re f\n" for at in range(2))
    found = [
        block.text
        for block in convert_pdf(pdf([dots + lines("first", "second")])).blocks
        if isinstance(block, ListItem)
    ]
    assert found == ["first", "second"]


def draw_ruled(rows: list[list[str]], top: float, left: float = 50, width: float = 90, height: float = 20) -> str:
    """Return the operators that draw a grid of rules with a word in each cell."""
    columns = len(rows[0])
    across = [
        f"{left} {top - height * at} m {left + width * columns} {top - height * at} l S" for at in range(len(rows) + 1)
    ]
    down = [
        f"{left + width * at} {top} m {left + width * at} {top - height * len(rows)} l S" for at in range(columns + 1)
    ]
    cells = [
        text(left + 5 + width * column, top - 14 - height * row, cell)
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
    ]
    return "\n".join([*across, *down, *cells])


def test_a_table_goes_on_over_the_page_under_its_repeated_head() -> None:
    head = ["Key", "Value"]
    first = lines("Before the table.") + draw_ruled([head, ["a", "1"], ["b", "2"]], 500)
    second = draw_ruled([head, ["c", "3"]], 560) + lines("After the table.", top=480)
    (table,) = [block for block in convert_pdf(pdf([first, second])).blocks if isinstance(block, Table)]
    assert table.grid() == [head, ["a", "1"], ["b", "2"], ["c", "3"]]


def test_columns_that_line_up_without_rules_are_a_table() -> None:
    rows = [("Name", "Type", "Size"), ("alpha", "text", "10"), ("beta", "number", "20"), ("gamma", "text", "30")]
    operators = "\n".join(
        text(50 + 100 * column, 500 - 14 * row, cell, font="F1" if row else "F2")
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
    )
    (table,) = [block for block in convert_pdf(pdf([operators])).blocks if isinstance(block, Table)]
    assert table.grid() == [list(row) for row in rows]


def test_terms_with_their_meanings_beside_them_are_no_table() -> None:
    rows = [("-a", "show all of them"), ("-b", "show the best of them"), ("-c", "count them")]
    operators = "\n".join(
        text(50 + 60 * column, 500 - 14 * row, cell)
        for row, cells in enumerate(rows)
        for column, cell in enumerate(cells)
    )
    assert not [block for block in convert_pdf(pdf([operators])).blocks if isinstance(block, Table)]


def test_a_table_head_that_repeats_on_every_page_is_no_running_head() -> None:
    pages = []
    for page in range(4):
        rows = [("Name", "Kind", "Size"), *((f"row{page}{at}", "text", f"{page}{at}") for at in range(5))]
        cells = [
            text(50 + 100 * column, 550 - 14 * row, cell, font="F1" if row else "F2")
            for row, cells in enumerate(rows)
            for column, cell in enumerate(cells)
        ]
        pages.append("\n".join([text(150, 585, "The running head"), *cells]))
    (table,) = convert_pdf(pdf(pages)).blocks
    assert isinstance(table, Table)
    assert table.grid()[0] == ["Name", "Kind", "Size"]
    assert [row[0] for row in table.grid()[1:]] == [f"row{page}{at}" for page in range(4) for at in range(5)]
