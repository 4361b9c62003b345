"""Survey of sample pages: measures, columns, boilerplate, headings.

A long manual is read in batches, and a caller may want a single page. What repeats and what is usual has to be known
from a sample before the first page is analyzed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from refdesk.documents.convert.pdf import metadata
from refdesk.documents.convert.pdf.boilerplate import BoilerplateDetector, drop_contents_entries, find_page_edge
from refdesk.documents.convert.pdf.headings import (
    HeadingMap,
    HeadingStyles,
    find_candidates,
    find_outline_headings,
    find_styled_headings,
    find_tagged_headings,
)
from refdesk.documents.convert.pdf.layout import (
    Line,
    Measures,
    build_lines,
    find_common_gutters,
    find_gutters,
    group_rows,
    measure,
)
from refdesk.documents.convert.pdf.metadata import Bookmark
from refdesk.documents.convert.pdf.ocr import PageRecognizer
from refdesk.documents.convert.pdf.page_reader import PageContent, read_page

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


@dataclass(slots=True)
class AnalyzedPage:
    """Content of a page, its lines in reading order without boilerplate, and its certain headings."""

    content: PageContent
    lines: list[Line]
    headings: HeadingMap


class Survey:
    """Reads pages with what the sample has shown."""

    def __init__(self, document: Any, first: int, last: int, tagged: bool, recognition: PageRecognizer) -> None:
        self._document = document
        self._tagged = tagged
        self._recognition = recognition
        outline = metadata.read_outline(document, max(0, first - SAMPLE_NEIGHBOURS), last + SAMPLE_NEIGHBOURS)
        self.has_outline = outline.total >= max(2, len(document) / PAGES_PER_ENTRY)
        """Whether the outline names the headings."""
        self._entries: dict[int, list[Bookmark]] = {}
        for entry in outline.entries:
            self._entries.setdefault(entry.page, []).append(entry)
        sample = choose_sample(first, last, len(document))
        self._sample_pages = {index: self._read(index) for index in sample}
        self._gutters = find_common_gutters(
            [find_gutters(group_rows(page.words)) for page in self._sample_pages.values()]
        )
        lines = {index: build_lines(page, self._gutters) for index, page in self._sample_pages.items()}
        self.measures: Measures = measure(lines.values())
        self._boilerplate = BoilerplateDetector()
        for index, page in self._sample_pages.items():
            self._boilerplate.learn(find_page_edge(page.number, page.height, lines[index]))
        self._lines = lines
        analyzed = [self._analyze(page, lines[index]) for index, page in self._sample_pages.items()]
        front = next((page for page in analyzed if page.content.number == 1 and not page.headings), None)
        self.displayed_title = metadata.find_displayed_title(front.lines, self.measures.body_size) if front else ""
        """Title on the first page, unless it is a heading known from the outline or tags."""
        matched = any(page.headings for page in analyzed) or not self._entries
        self._styles = HeadingStyles(self.measures, known_only=self.has_outline and matched)
        for sampled in analyzed:
            if not sampled.content.tags:
                self._styles.learn_known(sampled.lines, sampled.headings)
                self._styles.learn_candidates(self._find_candidates(sampled, frozenset()))
        for index in sample:
            if not first <= index <= last:
                del self._sample_pages[index], self._lines[index]

    def read(self, indices: Iterable[int]) -> list[AnalyzedPage]:
        """Read a batch of pages; what repeats in it is boilerplate, too."""
        pages = [
            (index, self._sample_pages.pop(index) if index in self._sample_pages else self._read(index))
            for index in indices
        ]
        batch: list[tuple[PageContent, list[Line]]] = []
        for index, page in pages:
            lines = self._lines.pop(index, None)
            if lines is None:
                lines = build_lines(page, self._gutters)
                self._boilerplate.learn(find_page_edge(page.number, page.height, lines))
            batch.append((page, lines))
        return [self._analyze(page, lines) for page, lines in batch]

    def find_styled(self, page: AnalyzedPage, taken: frozenset[int]) -> HeadingMap:
        """Return headings recognized by their typography alone."""
        # A page with a title before the outline: other large text on it is author and date.
        precedes_outline = page.content.number == 1 and bool(self._entries) and 0 not in self._entries
        if page.content.tags or (self.displayed_title and precedes_outline):
            return {}
        return find_styled_headings(self._find_candidates(page, taken), self._styles)

    def _find_candidates(self, page: AnalyzedPage, taken: frozenset[int]) -> list[Line]:
        free = [line for line in page.lines if id(line) not in taken]
        return find_candidates(free, page.headings, self.measures)

    def _analyze(self, page: PageContent, lines: list[Line]) -> AnalyzedPage:
        boilerplate = self._boilerplate.find_lines(find_page_edge(page.number, page.height, lines))
        kept = [line for line in lines if id(line) not in boilerplate]
        kept = drop_contents_entries(kept) if self.has_outline else kept
        entries = self._entries.get(page.number - 1, ())
        return AnalyzedPage(page, kept, find_tagged_headings(kept) or find_outline_headings(kept, entries, page.height))

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
