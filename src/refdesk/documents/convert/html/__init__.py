"""Conversion of web pages."""

from __future__ import annotations

from refdesk.documents.convert.html.page import convert, parse_fragment

__all__ = ["convert", "parse_fragment"]
