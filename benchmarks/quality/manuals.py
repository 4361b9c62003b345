"""Chapters of real manuals: pages of the PDF edition, and the same chapter of the HTML edition as truth."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pypdfium2
from lxml.html import HtmlElement

from .peers import python_with
from .programs import SECONDS
from .score import heading_key
from .sources import Manual, NotToBeHad
from .structure import structure_of
from .truth import markdown_of

CUT = Path(__file__).with_name("cut_pdf.py")
PAGES = range(3, 31)
"""How long a chapter may be: long enough for headers and footers to repeat, short enough that none outweighs others."""
LEAST_WORDS = 400
PER_MANUAL = 4
"""Chapters taken of one manual, so that no typesetter outweighs the others."""

LEVELS = 2
"""Of the outline, where chapters are looked for: a book may hold books."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter in both editions."""

    title: str
    number: int
    first: int
    end: int
    element: HtmlElement

    @property
    def truth(self) -> str:
        """Its text as Markdown."""
        return markdown_of(self.element)


def chapters_of(manual: Manual) -> list[Chapter]:
    """Some chapters of a manual, always the same ones."""
    fitting = [one for one in _all_chapters(manual) if one.end - one.first in PAGES and _is_prose(one)]
    fitting.sort(key=lambda one: hashlib.sha256(f"{manual.name} {one.title}".encode()).digest())
    return sorted(fitting[:PER_MANUAL], key=lambda one: one.number)


def cut(manual: Manual, chapter: Chapter, target: Path) -> None:
    """Write a chapter's pages as a PDF."""
    python = python_with("pypdf")
    with tempfile.NamedTemporaryFile(suffix=".pdf") as whole:
        whole.write(manual.pdf_bytes())
        whole.flush()
        command = [str(python), str(CUT), whole.name, str(chapter.first), str(chapter.end), str(target)]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        except subprocess.SubprocessError as error:
            raise NotToBeHad(f"{manual.name}: pages cannot be cut out: {error}") from error


def _is_prose(chapter: Chapter) -> bool:
    """No licence, no change log, no index: they have words and no structure, or no words."""
    read = structure_of(chapter.truth)
    return len(read.words) >= LEAST_WORDS and len(read.headings) > 1 and "icense" not in chapter.title


def _all_chapters(manual: Manual) -> Iterator[Chapter]:
    """Chapters whose title is in the outline and in the HTML, once in each."""
    entries = _outline(manual.pdf_bytes())
    elements = list(manual.html_chapters())
    times = Counter(heading_key(title) for title, _ in elements)
    pages = Counter(heading_key(entry.title) for entry in entries)
    by_key = {heading_key(title): element for title, element in elements}
    for number, entry in enumerate(entries):
        key = heading_key(entry.title)
        if times[key] == 1 and pages[key] == 1:
            end = next((other.page for other in entries[number + 1 :] if other.level <= entry.level), entry.page)
            yield Chapter(entry.title, number, entry.page, end, by_key[key])


@dataclass(frozen=True, slots=True)
class _Entry:
    title: str
    level: int
    page: int


def _outline(pdf: bytes) -> list[_Entry]:
    """Every entry of the upper levels that leads to a page."""
    document = pypdfium2.PdfDocument(pdf)
    entries = [
        _Entry(entry.get_title(), entry.level, page)
        for entry in document.get_toc()
        if entry.level < LEVELS
        and (destination := entry.get_dest()) is not None
        and (page := destination.get_index()) is not None
    ]
    document.close()
    return entries
