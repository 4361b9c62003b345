"""The tools of `docling-mcp` 3.3 by which documents are converted; names, arguments and results are as they are there.

It needs a model library of some gigabytes to convert anything; here a document is its text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from pydantic import Field

server = MCPServer("docling", log_level="ERROR")
documents: dict[str, str] = {}


@dataclass
class ConversionOutput:
    """Where the document is kept."""

    from_cache: bool
    document_key: str


@dataclass
class ExportDocumentMarkdownOutput:
    """The document."""

    document_key: str
    markdown: str


@server.tool()
def convert_document_into_docling_document(
    source: Annotated[str, Field(description="The URL or local file path to the document.")],
) -> ConversionOutput:
    """Convert a document from a URL or local path into a Docling document."""
    key = hashlib.md5(source.encode(), usedforsecurity=False).hexdigest()
    was_there = key in documents
    documents[key] = source if source.startswith("http") else Path(source).read_text("utf-8")
    return ConversionOutput(was_there, key)


@server.tool()
def export_docling_document_to_markdown(
    document_key: Annotated[str, Field(description="The unique identifier of the document in the local cache.")],
    max_size: Annotated[int | None, Field(description="The maximum number of characters to return.")] = None,
) -> ExportDocumentMarkdownOutput:
    """Export a document from the local document cache to markdown format."""
    if document_key not in documents:
        raise ValueError(f"document-key: {document_key} is not found.")
    return ExportDocumentMarkdownOutput(document_key, documents[document_key][:max_size])


if __name__ == "__main__":
    server.run("stdio")
