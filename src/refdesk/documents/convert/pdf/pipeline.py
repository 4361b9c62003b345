"""PDF pipeline: from bytes to a Document, page by page.

    read_page (PageRecognizer) → build_lines → Survey (boilerplate, outline, measures) → tables, headings
    → DraftBuilder → Assembly → blocks

Long files are read in batches, so that a manual of thousands of pages needs little more memory than a chapter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Box, Document, Page
from refdesk.errors import CannotConvert

from . import metadata
from .block_drafts import HELD_DRAFTS, Assembly, DraftBuilder, PageLines
from .boilerplate import BoilerplateDetector, drop_contents_entries
from .headings import HeadingStyles, find_candidates, find_outline_headings, find_styled_headings, find_tagged_headings
from .layout import Line, Measures, build_lines, compute_area, find_common_gutters, find_gutters, group_rows, measure
from .metadata import Bookmark
from .ocr import SCANNED_COVER, PageRecognizer, format_pages
from .page_reader import PageContent, read_page
from .pdfium import open_pdf
from .tables import TableDraft, find_aligned_tables, find_ruled_tables, find_tagged_tables
from .tags import is_tagged

MAX_PAGES = 20_000
"""Pages per conversion, some minutes of work; the longest manuals have 5,000."""

BATCH = 32
"""Pages per batch and per progress report."""

SAMPLE_SPREAD = 6
"""Pages sampled across a document for its usual letter size; more change nothing."""

SAMPLE_NEIGHBOURS = 3
"""Pages sampled around the wanted ones, for what repeats on left and right pages."""

SAMPLE_WHOLE = 40
"""Documents up to this size are sampled in full."""

TAGGED_SHARE = 0.6
"""Share of a page's words in the structure tree below which the tree is ignored."""

PAGES_PER_ENTRY = 25
"""An outline with fewer bookmarks per page names parts of the book, not its headings."""

MIN_PICTURE_AREA = 2_500.0
"""Square points; smaller pictures are icons and logos."""


def convert(source: SourceFile, *, max_pages: int = MAX_PAGES, recognition_seconds: float | None = None) -> Document:
    """Convert a PDF.

    `recognition_seconds` limits OCR; None means a share of this process's CPU time limit.
    """
    with open_pdf(source.data, source.name) as document:
        total = len(document)
        wanted = _select_pages(source, total, max_pages)
        recognition = PageRecognizer(document, wanted, source.progress, seconds=recognition_seconds)
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
                drafting.add_page(_add_tables_and_pictures(page, survey))
                assembly.learn(content, page.lines)
            assembly.finish(HELD_DRAFTS)
            source.progress(len(pages), len(wanted), f"page {pages[-1].number} of {total}")
        assembly.finish()
        blocks = tuple(assembly.blocks)
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


def _add_tables_and_pictures(page: PageLines, survey: Survey) -> PageLines:
    """Complete a page: its tables, the headings outside of them, and its pictures."""
    found = _find_tables(page, survey)
    page.tables = {id(inside[0]): table for table, inside in found if inside}
    page.taken = frozenset(id(line) for _, inside in found for line in inside)
    survey.add_styled_headings(page)
    # Smaller pictures are icons, and larger ones the background of the page.
    largest = SCANNED_COVER * 1.6 * (page.content.width * page.content.height)
    pictures = (box for box in page.content.pictures if MIN_PICTURE_AREA <= compute_area(box) <= largest)
    page.pictures = sorted(pictures, key=lambda box: box[1])
    return page


def _find_tables(page: PageLines, survey: Survey) -> list[tuple[TableDraft, Sequence[Line]]]:
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


class Survey:
    """Reads pages with what a sample has shown: measures, columns, boilerplate, headings.

    A long manual is read in batches, and a caller may want a single page. What repeats and what is usual has to be
    known before the first page is analyzed.
    """

    def __init__(self, document: Any, first: int, last: int, tagged: bool, recognition: PageRecognizer) -> None:
        self._document = document
        self._tagged = tagged
        self._recognition = recognition
        total, entries = metadata.read_outline(document, max(0, first - SAMPLE_NEIGHBOURS), last + SAMPLE_NEIGHBOURS)
        self.has_outline = total >= max(2, len(document) / PAGES_PER_ENTRY)
        """Whether the outline names the headings."""
        self._entries: dict[int, list[Bookmark]] = {}
        for entry in entries:
            self._entries.setdefault(entry.page, []).append(entry)
        pages = [(index, self._read(index)) for index in choose_sample(first, last, len(document))]
        self._gutters = find_common_gutters([find_gutters(group_rows(page.words)) for _, page in pages])
        sample = {index: (page, build_lines(page, self._gutters)) for index, page in pages}
        self.measures: Measures = measure(lines for _, lines in sample.values())
        self._boilerplate = BoilerplateDetector()
        for page, lines in sample.values():
            self._boilerplate.learn(page.height, lines)
        analyzed = [self._analyze(page, lines) for page, lines in sample.values()]
        front = next((page for page in analyzed if page.content.number == 1 and not page.headings), None)
        self.displayed_title = metadata.find_displayed_title(front.lines, self.measures.body_size) if front else ""
        """Title on the first page, unless it is a heading known from the outline or tags."""
        matched = any(page.headings for page in analyzed) or not self._entries
        self._styles = HeadingStyles(self.measures, known_only=self.has_outline and matched)
        for sampled in analyzed:
            if not sampled.content.tags:
                self._styles.learn_known(sampled.lines, sampled.headings)
                self._styles.learn_candidates(self._find_candidates(sampled))
        self._sample = {index: sampled for index, sampled in sample.items() if first <= index <= last}
        """Wanted pages of the sample with their lines, until they are read."""

    def read(self, indices: Iterable[int]) -> list[PageLines]:
        """Read a batch of pages; what repeats in it is boilerplate, too."""
        batch: list[tuple[PageContent, list[Line]]] = []
        for index in indices:
            if index in self._sample:
                batch.append(self._sample.pop(index))
                continue
            page = self._read(index)
            lines = build_lines(page, self._gutters)
            self._boilerplate.learn(page.height, lines)
            batch.append((page, lines))
        return [self._analyze(page, lines) for page, lines in batch]

    def add_styled_headings(self, page: PageLines) -> None:
        """Add the headings recognized by their typography alone."""
        # A page with a title before the outline: other large text on it is author and date.
        precedes_outline = page.content.number == 1 and bool(self._entries) and 0 not in self._entries
        if not page.content.tags and not (self.displayed_title and precedes_outline):
            page.headings = page.headings | find_styled_headings(self._find_candidates(page), self._styles)

    def _find_candidates(self, page: PageLines) -> list[Line]:
        free = [line for line in page.lines if id(line) not in page.taken]
        return find_candidates(free, page.headings, self.measures)

    def _analyze(self, page: PageContent, lines: list[Line]) -> PageLines:
        boilerplate = self._boilerplate.find_lines(page.height, lines)
        kept = [line for line in lines if id(line) not in boilerplate]
        kept = drop_contents_entries(kept) if self.has_outline else kept
        entries = self._entries.get(page.number - 1, ())
        return PageLines(page, kept, find_tagged_headings(kept) or find_outline_headings(kept, entries, page.height))

    def _read(self, index: int) -> PageContent:
        page = read_page(self._document, index, tagged=self._tagged)
        self._recognition.read(page)
        _drop_artifacts(page)
        return page


def choose_sample(first: int, last: int, total: int) -> list[int]:
    """Return the sample pages in order: the first, the wanted ones, neighbours, and some across the document."""
    if total <= SAMPLE_WHOLE:
        return list(range(total))
    wanted = range(
        max(0, first - SAMPLE_NEIGHBOURS), min(total, min(last, first + SAMPLE_WHOLE) + SAMPLE_NEIGHBOURS + 1)
    )
    step = total / SAMPLE_SPREAD
    spread = (int(step * (place + 0.5)) for place in range(SAMPLE_SPREAD))
    return sorted({0, *wanted[:SAMPLE_WHOLE], *spread})


def _drop_artifacts(page: PageContent) -> None:
    """Drop words outside of the structure tree, which are headers, footers and decoration."""
    if not page.tags:
        return
    inside = [word for word in page.words if word.mark in page.tags]
    if len(inside) >= TAGGED_SHARE * len(page.words):
        page.words = inside
    else:
        page.tags = {}
