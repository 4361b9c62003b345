"""Files that real programs made, one of each format, with the tool that converts each and words that it must hold."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FILES = Path(__file__).parent / "files"


class RealFile(NamedTuple):
    """A file and what is known to be in it."""

    path: Path
    tool: str
    words: str


OFFICE, HTML, TEXT, PDF = FILES / "office", FILES / "html", FILES / "text", FILES / "pdf"

REAL_FILES = [
    RealFile(PDF / "manual.pdf", "convert_pdf", "## 1.1 Before dusk"),
    RealFile(PDF / "groff.pdf", "convert_pdf", "# DESCRIPTION"),
    RealFile(PDF / "office.pdf", "convert_pdf", "| Aurora | 4 | leaves at dawn |"),
    RealFile(PDF / "tagged.pdf", "convert_pdf", "  - very slow in fog"),
    RealFile(PDF / "untagged.pdf", "convert_pdf", "dock --list"),
    RealFile(OFFICE / "guide.docx", "convert_docx", "def f(x):"),
    RealFile(OFFICE / "guide-libreoffice.docx", "convert_docx", "def f(x):"),
    RealFile(OFFICE / "guide.odt", "convert_docx", "def f(x):"),
    RealFile(OFFICE / "guide.rtf", "convert_docx", "a quote here"),
    RealFile(OFFICE / "guide.epub", "convert_docx", "def f(x):"),
    RealFile(OFFICE / "guide.doc", "convert_docx", "def f(x):"),
    RealFile(OFFICE / "deck.pptx", "convert_pptx", "Say this aloud."),
    RealFile(OFFICE / "deck.odp", "convert_pptx", "First slide"),
    RealFile(OFFICE / "book.xlsx", "convert_xlsx", "| --- |"),
    RealFile(OFFICE / "book.ods", "convert_xlsx", "| --- |"),
    RealFile(OFFICE / "book.xls", "convert_xlsx", "| --- |"),
    RealFile(FILES / "sheets" / "parts.csv", "convert_xlsx", "| nut, hex | 0.08 | 900 |"),
    RealFile(HTML / "sphinx.html", "convert_docx", "```"),
    RealFile(TEXT / "guide.md", "convert_docx", "def f():"),
    RealFile(TEXT / "manual.rst", "convert_docx", "x = 1"),
    RealFile(TEXT / "notes.txt", "convert_docx", "make install"),
]
