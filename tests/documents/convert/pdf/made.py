"""Small PDFs written by hand: pages of drawing operators, with the oddities that real programs rarely write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from refdesk.documents.convert.pdf import convert
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.model import Document

FILES = Path(__file__).parents[3] / "files" / "pdf"

FONTS = "/Font << /F1 5 0 R /F2 6 0 R /F3 7 0 R >>"
"""Helvetica, bold Helvetica and Courier."""


def sample(name: str, pages: PageRange | None = None) -> Document:
    """A stored sample, converted."""
    return convert(SourceFile((FILES / name).read_bytes(), name, pages=pages))


def convert_pdf(data: bytes, name: str = "made.pdf") -> Document:
    """Convert the bytes of a PDF."""
    return convert(SourceFile(data, name))


def pdf(
    pages: Sequence[str], *, page: str = "", catalog: str = "", trailer: str = "", objects: Sequence[str] = ()
) -> bytes:
    """A file of pages of operators; `page` and `catalog` are added to those dictionaries, `objects` start at 10."""
    first = 10 + len(objects)
    kids = " ".join(f"{first + 2 * at} 0 R" for at in range(len(pages)))
    bodies = {
        1: f"<< /Type /Catalog /Pages 2 0 R {catalog} >>",
        2: f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        5: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        6: "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
        7: "<< /Type /Font /Subtype /Type1 /BaseFont /Courier /Encoding /WinAnsiEncoding >>",
    }
    bodies |= {10 + at: body for at, body in enumerate(objects)}
    box = "" if "/MediaBox" in page else "/MediaBox [0 0 400 600]"
    resources = "" if "/Resources" in page else f"/Resources << {FONTS} >>"
    for at, operators in enumerate(pages):
        number = first + 2 * at
        bodies[number] = f"<< /Type /Page /Parent 2 0 R {box} {resources} /Contents {number + 1} 0 R {page} >>"
        bodies[number + 1] = f"<< /Length {len(operators)} >> stream\n{operators}\nendstream"
    return _file(bodies, trailer)


def _file(bodies: dict[int, str], trailer: str) -> bytes:
    written = b"%PDF-1.7\n"
    places: dict[int, int] = {}
    for number, body in sorted(bodies.items()):
        places[number] = len(written)
        written += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    size = max(bodies) + 1
    table = "".join(
        f"{places[number]:010d} 00000 n \n" if number in places else "0000000000 65535 f \n" for number in range(size)
    )
    end = (
        f"xref\n0 {size}\n{table}trailer\n<< /Size {size} /Root 1 0 R {trailer} >>\nstartxref\n{len(written)}\n%%EOF\n"
    )
    return written + end.encode("latin-1")


def text(x: float, y: float, words: str, *, font: str = "F1", size: float = 10) -> str:
    """Operators that set words at a place, measured from the bottom left."""
    escaped = words.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return f"BT /{font} {size} Tf 1 0 0 1 {x} {y} Tm ({escaped}) Tj ET"


def lines(*words: str, x: float = 50, top: float = 550, font: str = "F1", size: float = 10, step: float = 12) -> str:
    """Operators that set lines one under the other."""
    return "\n".join(text(x, top - step * at, line, font=font, size=size) for at, line in enumerate(words))
