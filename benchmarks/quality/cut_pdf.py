"""Cut a range of pages out of a PDF with its part of the outline: `cut_pdf.py SOURCE FIRST END TARGET`.

Runs in the environment that has pypdf: PDFium drops the outline when it copies pages.
"""

from __future__ import annotations

import sys

from pypdf import PdfWriter


def main() -> None:
    """Copy the pages [FIRST, END), counted from 0."""
    source, first, end, target = sys.argv[1:]
    writer = PdfWriter()
    writer.append(source, pages=(int(first), int(end)), import_outline=True)
    writer.write(target)


if __name__ == "__main__":
    main()
