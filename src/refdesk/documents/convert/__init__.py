"""A file's bytes to a Document: one module per format, chosen by what the bytes are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from refdesk.documents.convert.formats import FORMATS, Format, detect_format
from refdesk.documents.convert.source import PageRange, SourceFile
from refdesk.documents.model import Block, Document, Heading
from refdesk.errors import CannotConvert

__all__ = ["FORMATS", "Format", "PageRange", "SourceFile", "convert", "convert_source", "detect_format"]

NOTICES = frozenset(("note", "tip", "hint", "caution", "warning", "important", "danger"))
"""What stands above a box and is not the title of a section."""


def convert(data: bytes, name: str, *, pages: PageRange | None = None) -> Document:
    """The document in a file's bytes. Not for files from strangers: those are converted in the sandbox."""
    return convert_source(SourceFile(data, name, pages=pages), detect_format(data, name))


def convert_source(source: SourceFile, format: Format) -> Document:
    """The document in a source of a known format."""
    converter: Callable[[SourceFile], Document] = import_module(f"{__name__}.{format.module}").convert
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
    """A heading that only says "Note" belongs to a box, whatever the file makes of it."""
    if isinstance(block, Heading) and block.text.strip(" :!").lower() in NOTICES:
        return replace(block, is_notice=True)
    return block
