"""PDF to Document: PDFium reads the page, this package understands its structure."""

from __future__ import annotations

from refdesk.documents.convert.pdf.conversion import convert

__all__ = ["convert"]
