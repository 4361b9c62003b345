"""PDF pipeline: from bytes to a Document, page by page.

    read_page (PageRecognizer) → build_lines → Survey (boilerplate, outline, measures) → tables, headings
    → DraftBuilder → Assembly → blocks

Long files are read in batches, so that a manual of thousands of pages needs little more memory than a chapter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

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
        return _Conversion(document, source, max_pages, recognition_seconds).run()


class _Conversion:
    def __init__(self, document: Any, source: SourceFile, max_pages: int, recognition_seconds: float | None) -> None:
        self._document = document
        self._source = source
        self._total = len(document)
        self._max_pages = max_pages
        self._first, self._last = _select_pages(source, self._total, max_pages)
        self._warnings: list[str] = []
        self._pages: list[Page] = []
        self._cut: list[int] = []
        self._recognition = PageRecognizer(
            document, range(self._first, self._last + 1), self._report_ocr_progress, seconds=recognition_seconds
        )

    def run(self) -> Document:
        """Read the pages, build the blocks and return the document."""
        survey = Survey(self._document, self._first, self._last, is_tagged(self._document), self._recognition)
        drafting = DraftBuilder(survey.measures)
        assembly = Assembly(drafting, survey.measures, wraps_code=metadata.is_code_wrapped(self._document))
        wanted = range(self._first, self._last + 1)
        for start in range(0, len(wanted), BATCH):
            for page in survey.read(wanted[start : start + BATCH]):
                content = page.content
                self._pages.append(Page(content.number, content.width, content.height, content.scanned))
                if content.cut:
                    self._cut.append(content.number)
                drafting.add_page(_prepare_page(page, survey))
                assembly.learn(page.content, page.lines)
            assembly.finish_all_but_last()
            done = f"page {self._pages[-1].number} of {self._total}"
            self._source.progress(len(self._pages), len(wanted), done)
        return self._build_document(assembly, survey.displayed_title)

    def _report_ocr_progress(self, number: int) -> None:
        """Report OCR progress; it takes seconds per page, mostly before the first batch ends."""
        done = number - 1 - self._first
        self._source.progress(done, self._last - self._first + 1, f"recognising page {number} of {self._total}")

    def _build_document(self, assembly: Assembly, displayed_title: str) -> Document:
        blocks = assembly.finish()
        partial = len(self._pages) < self._total
        return Document(
            metadata.choose_title(self._document, displayed_title, blocks, self._source.name),
            blocks,
            tuple(self._pages),
            total_pages=self._total if partial else 0,
            name=self._source.name,
            tags=metadata.read_keywords(self._document),
            properties=metadata.read_properties(self._document),
            warnings=tuple(self._iter_warnings()),
        )

    def _iter_warnings(self) -> Iterator[str]:
        if self._source.pages is None and self._last + 1 < self._total:
            yield (
                f"Only the first {self._max_pages:,} of {self._total:,} pages were converted; "
                "ask for the others by their page numbers."
            )
        yield from self._recognition.list_warnings()
        if self._cut:
            yield f"{format_pages(self._cut)} too full or damaged; part of the content was left out."


def _select_pages(source: SourceFile, total: int, most: int) -> tuple[int, int]:
    """Return the first and last page to convert, counted from 0."""
    if total < 1:
        raise CannotConvert(f"{source.name} has no pages; give another copy.")
    if source.pages is None:
        return 0, min(total, most) - 1
    first, last = source.pages.first, min(source.pages.last, total)
    if not 1 <= first <= last:
        raise CannotConvert(
            f"{source.name} has pages 1 to {total}; pages {first} to {source.pages.last} are not among them."
        )
    return first - 1, min(last, first - 1 + most) - 1


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
