"""Conversion of a file's bytes to a Document: one module per format, chosen by content."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from refdesk.documents.convert.formats import Format, detect_format
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.model import Block, Document, Heading
from refdesk.errors import CannotConvert

__all__ = ["PageRange", "SourceFile", "convert", "convert_source", "detect_format"]

NOTICES = frozenset(("note", "tip", "hint", "caution", "warning", "important", "danger"))
"""Titles of boxes, which aren't headings of sections."""


def convert(data: bytes, name: str, *, pages: PageRange | None = None) -> Document:
    """Convert a file in this process. Untrusted files are converted in the sandbox instead."""
    return convert_source(SourceFile(data, name, pages=pages), detect_format(data, name))


def convert_source(source: SourceFile, format: Format) -> Document:
    """Convert a source of a known format."""
    module, _, function = (format.converter or format.key).partition(":")
    converter: Callable[[SourceFile], Document] = getattr(import_module(f"{__name__}.{module}"), function or "convert")
    document = converter(source)
    if not document.blocks and not document.warnings:
        raise CannotConvert(f"{source.name} holds no text; it may be empty, damaged or made of pictures alone.")
    return replace(
        document,
        blocks=tuple(map(_mark_notice, document.blocks)),
        name=source.name,
        media_type=document.media_type or format.media_type,
        digest=hashlib.sha256(source.data).hexdigest(),
    )


def _mark_notice(block: Block) -> Block:
    """Mark a heading that only says "Note" or the like as the title of a box."""
    if isinstance(block, Heading) and block.text.strip(" :!").lower() in NOTICES:
        return replace(block, is_notice=True)
    return block
