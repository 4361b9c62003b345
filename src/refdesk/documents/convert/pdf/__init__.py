"""PDF conversion: PDFium reads the pages, this package reconstructs their structure."""

from __future__ import annotations

from refdesk.documents.convert.pdf.pipeline import convert

__all__ = ["convert"]
