"""PDF pipeline: from bytes to a Document, page by page.

    read_page (PageRecognizer) → build_lines → Survey (boilerplate, outline, measures) → tables, headings
    → DraftBuilder → Assembly → blocks

Long files are read in batches, so that a manual of thousands of pages needs little more memory than a chapter.
"""

from __future__ import annotations

from collections.abc import Sequence

from refdesk.documents.convert.pdf import metadata
from refdesk.documents.convert.pdf.aligned import find_aligned_tables
from refdesk.documents.convert.pdf.block_drafts import Assembly, DraftBuilder, PageLines
from refdesk.documents.convert.pdf.layout import Line, compute_area
from refdesk.documents.convert.pdf.ocr import SCANNED_COVER, PageRecognizer, format_pages
from refdesk.documents.convert.pdf.page_reader import PageContent
from refdesk.documents.convert.pdf.pdfium import open_pdf
from refdesk.documents.convert.pdf.survey import AnalyzedPage, Survey
from refdesk.documents.convert.pdf.tables import TableDraft, find_ruled_tables, find_tagged_tables
from refdesk.documents.convert.pdf.tags import is_tagged
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Box, Document, Page
from refdesk.errors import CannotConvert

MAX_PAGES = 20_000
"""Pages per conversion, some minutes of work; the longest manuals have 5,000."""

BATCH = 32
"""Pages per batch and per progress report."""


def convert(source: SourceFile, *, max_pages: int = MAX_PAGES, recognition_seconds: float | None = None) -> Document:
    """Convert a PDF.

    `recognition_seconds` limits OCR; None means a share of this process's CPU time limit.
    """
    with open_pdf(source.data, source.name) as document:
        total = len(document)
        wanted = _select_pages(source, total, max_pages)

        def report_ocr(number: int) -> None:
            """Report OCR progress; it takes seconds per page, mostly before the first batch ends."""
            source.progress(number - 1 - wanted[0], len(wanted), f"recognising page {number} of {total}")

        recognition = PageRecognizer(document, wanted, report_ocr, seconds=recognition_seconds)
        survey = Survey(document, wanted[0], wanted[-1], is_tagged(document), recognition)
        drafting = DraftBuilder(survey.measures)
        assembly = Assembly(drafting, survey.measures, wraps_code=metadata.is_code_wrapped(document))
        pages: list[Page] = []
        cut: list[int] = []
        for start in range(0, len(wanted), BATCH):
            for page in survey.read(wanted[start : start + BATCH]):
                content = page.content
                pages.append(Page(content.number, content.width, content.height, content.scanned))
                if content.cut:
                    cut.append(content.number)
                drafting.add_page(_prepare_page(page, survey))
                assembly.learn(content, page.lines)
            assembly.finish_all_but_last()
            source.progress(len(pages), len(wanted), f"page {pages[-1].number} of {total}")
        blocks = assembly.finish()
        warnings = [*recognition.list_warnings()]
        if source.pages is None and wanted[-1] + 1 < total:
            others = "ask for the others by their page numbers"
            warnings.insert(0, f"Only the first {max_pages:,} of {total:,} pages were converted; {others}.")
        if cut:
            warnings.append(f"{format_pages(cut)} too full or damaged; part of the content was left out.")
        return Document(
            metadata.choose_title(document, survey.displayed_title, blocks, source.name),
            blocks,
            tuple(pages),
            total_pages=total if len(pages) < total else 0,
            tags=metadata.read_keywords(document),
            properties=metadata.read_properties(document),
            warnings=tuple(warnings),
        )


def _select_pages(source: SourceFile, total: int, most: int) -> range:
    """Return the pages to convert, counted from 0."""
    if total < 1:
        raise CannotConvert(f"{source.name} has no pages; give another copy.")
    if source.pages is None:
        return range(min(total, most))
    first, last = source.pages.first, min(source.pages.last, total)
    if not 1 <= first <= last:
        raise CannotConvert(
            f"{source.name} has pages 1 to {total}; pages {first} to {source.pages.last} are not among them."
        )
    return range(first - 1, min(last, first - 1 + most))


def _prepare_page(page: AnalyzedPage, survey: Survey) -> PageLines:
    found = _find_tables(page, survey)
    starts = {id(inside[0]): table for table, inside in found if inside}
    taken = frozenset(id(line) for _, inside in found for line in inside)
    headings = page.headings | survey.find_styled(page, taken)
    content = page.content
    return PageLines(content.number, content.height, page.lines, headings, starts, taken, _select_pictures(content))


def _find_tables(page: AnalyzedPage, survey: Survey) -> list[tuple[TableDraft, Sequence[Line]]]:
    content, lines = page.content, page.lines
    if content.tags:
        tagged = find_tagged_tables(content.words, content.tags, content.number)
        return [
            (table, [line for line in lines if line.tag and line.tag.cell and line.tag.cell.table == table.key])
            for table in tagged
        ]
    found = [(table, _find_lines_inside(table.box, lines)) for table in find_ruled_tables(content)]
    taken = {id(line) for _, inside in found for line in inside}
    free = [line for line in lines if id(line) not in taken and id(line) not in page.headings]
    return [*found, *find_aligned_tables(free, content.across, survey.measures.leading)]


def _find_lines_inside(box: Box, lines: Sequence[Line]) -> list[Line]:
    left, top, right, bottom = box
    return [
        line
        for line in lines
        if top <= line.base - 0.3 * line.size <= bottom and left - 3 <= (line.left + line.right) / 2 <= right + 3
    ]


def _select_pictures(content: PageContent) -> list[Box]:
    """Return the pictures from top to bottom, without icons and page backgrounds."""
    whole = content.width * content.height
    return sorted(
        (box for box in content.pictures if MIN_PICTURE_AREA <= compute_area(box) <= SCANNED_COVER * 1.6 * whole),
        key=lambda box: box[1],
    )


MIN_PICTURE_AREA = 2_500.0
"""Square points; smaller pictures are icons and logos."""
