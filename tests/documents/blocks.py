"""Documents to test with: one by hand that holds a block of every kind, and any number made up by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from refdesk.documents.model import (
    Block,
    Cell,
    Code,
    Document,
    Heading,
    ListItem,
    Page,
    Paragraph,
    ParagraphRole,
    Picture,
    Place,
    Span,
    SpanKind,
    Table,
    Term,
    table_from_rows,
)

EVERY_KIND = Document(
    title="The manual",
    blocks=(
        Heading("The manual", 1, Place(1, (72, 72, 300, 90))),
        Paragraph(
            "See the index page.", (Span(8, 18, "link", "https://example.org/x"),), place=Place(1, (72, 100, 500, 112))
        ),
        Heading("Install", 2, Place(1, (72, 130, 200, 144)), anchor="INSTALL-STEPS"),
        ListItem("first", ordered=True, number=1, place=Place(1)),
        ListItem("inner", depth=1, place=Place(1)),
        ListItem("second", ordered=True, number=2, place=Place(1)),
        Code("if a < b:\n    print(`x`)", "python", Place(2, (72, 72, 400, 120))),
        Table(
            (
                Cell("Name", 0, 0, header=True),
                Cell("Both", 0, 1, column_span=2, header=True),
                Cell("a|b", 1, 0),
                Cell("1", 1, 1),
                Cell("2", 1, 2),
            ),
            2,
            3,
            "Table 1: sizes",
            Place(2, (72, 130, 400, 200)),
        ),
        Paragraph("So they say.", role="quote", place=Place(2)),
        Paragraph("Speak slowly.", role="note", place=Place(2)),
        Paragraph("1. A note below.", role="footnote", place=Place(2)),
        Picture("A drawing", Place(2)),
        Term("--all\n-a", "--all, -a", (Span(0, 5, "strong"), Span(6, 8, "strong")), 1, "ALL", Place(2)),
        Paragraph("Take all of it.", place=Place(2)),
    ),
    pages=(Page(1, 595, 842), Page(2, 595, 842)),
    name="manual.pdf",
    media_type="application/pdf",
    digest="ab" * 32,
    tags=("setup",),
    properties={"author": "A. Writer"},
    warnings=("Page 3 is a picture.",),
)

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=1, max_size=20)
SPAN_KINDS: list[SpanKind] = ["code", "strong", "emphasis"]
ROLES: list[ParagraphRole] = ["text", "quote", "note", "caption", "footnote"]
PLACES = st.none() | st.builds(
    Place,
    st.integers(1, 3),
    st.none() | st.tuples(*[st.integers(0, 500).map(float)] * 4).map(lambda box: _normalize_box(*box)),
)


def _normalize_box(a: float, b: float, c: float, d: float) -> tuple[float, float, float, float]:
    return min(a, c), min(b, d), max(a, c), max(b, d)


@st.composite
def spans(draw: st.DrawFn, text: str) -> tuple[Span, ...]:
    start = draw(st.integers(0, len(text) - 1))
    end = draw(st.integers(start + 1, len(text)))
    kind: SpanKind = draw(st.sampled_from(SPAN_KINDS))
    return draw(st.sampled_from([(), (Span(start, end, kind),), (Span(start, end, "link", "https://example.org"),)]))


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    text, place = draw(WORDS), draw(PLACES)
    marks = draw(spans(text))
    role: ParagraphRole = draw(st.sampled_from(ROLES))
    ordered = draw(st.booleans())
    grid = draw(st.lists(st.lists(WORDS, min_size=2, max_size=2), min_size=1, max_size=3))
    made: list[Block] = [
        Heading(text, draw(st.integers(1, 6)), place, draw(st.booleans()), draw(st.sampled_from(["", "here", text]))),
        Term(text, text, marks, draw(st.integers(0, 5)), draw(st.sampled_from(["", "here"])), place),
        Paragraph(text, marks, role, place),
        ListItem(text, marks, 0, ordered, draw(st.integers(1, 99)) if ordered else 1, place),
        Code(text, draw(st.sampled_from(["", "python", "zig"])), place),
        table_from_rows(grid, caption=draw(st.sampled_from(["", text])), place=place),
        Picture(draw(st.sampled_from(["", text])), place),
    ]
    return draw(st.sampled_from(made))


documents = st.builds(
    Document,
    title=WORDS,
    blocks=st.lists(blocks(), max_size=12).map(tuple),
    pages=st.just(tuple(Page(number, 600, 800) for number in (1, 2, 3))),
    name=st.just("made.pdf"),
    media_type=st.just("application/pdf"),
)
