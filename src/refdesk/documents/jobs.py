"""Jobs of the conversion workers: convert, chunk and pack a file, or export a packed document.

Runs in the worker process, with two open files and plain values. `ingest.ingest_pipeline` describes the whole pipeline.
"""

from __future__ import annotations

import os
from typing import Any

from refdesk.documents.chunking import chunks
from refdesk.documents.convert import PageRange, SourceFile, convert_source, detect_format
from refdesk.documents.convert.formats import describe_wrong_format
from refdesk.documents.convert.source import Progress
from refdesk.documents.model import Document
from refdesk.documents.packed_document import PackedDocument, pack, paginate
from refdesk.errors import CannotConvert


def run(job: dict[str, Any], source: int, output: int, progress: Progress) -> dict[str, Any]:
    """Run one job. The result is small; large data goes to the output."""
    match job["do"]:
        case "convert":
            document, format = _convert_source(job, source, progress)
            _write(output, chunk_and_pack(document, format, size=os.fstat(source).st_size))
            return {}
        case "convert_and_export":  # for the command line
            document, _ = _convert_source(job, source, progress)
            _write(output, _render_document(document, job["to"]))
            return {"title": document.title, "pages": len(document.pages), "warnings": list(document.warnings)}
        case "export":
            with PackedDocument.of(_read(source)) as packed:
                _write(output, _render_document(packed.document(), job["to"]))
            return {}
    raise ValueError(f"there is no job {job['do']!r}")


def chunk_and_pack(document: Document, format: str = "", *, size: int = 0) -> bytes:
    """Chunk a converted document and return it packed."""
    blocks = paginate(document)
    return pack(document, chunks(blocks), format=format, size=size, blocks=blocks)


def _convert_source(job: dict[str, Any], source: int, progress: Progress) -> tuple[Document, str]:
    """Return the converted document and the key of its format."""
    data, name = _read(source), job["name"]
    format = detect_format(data, name, job.get("media_type", ""))
    expected: list[str] = job.get("expected") or []
    if expected and format.key not in expected:
        raise CannotConvert(describe_wrong_format(name, format.key, expected))
    pages = PageRange(*job["pages"]) if job.get("pages") else None
    given = SourceFile(data, name, job.get("charset"), job.get("url", ""), pages, progress)
    return convert_source(given, format), format.key


def _render_document(document: Document, to: str) -> bytes:
    """Render Markdown, HTML or DoclingDocument JSON; writers are imported on demand."""
    match to:
        case "markdown":
            from refdesk.documents.export.markdown import to_markdown

            return to_markdown(document).encode("utf-8", "replace")
        case "html":
            from refdesk.documents.export.html import to_html

            return to_html(document).encode("utf-8", "replace")
        case _:
            from refdesk.documents.convert.docling import to_json

            return to_json(document)


def _read(source: int) -> bytes:
    with open(source, "rb", closefd=False) as file:
        file.seek(0)
        return file.read()


def _write(output: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(output, view) :]
