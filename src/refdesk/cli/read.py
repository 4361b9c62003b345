"""`refdesk read`: read a file, a URL, a converted document or an indexed document in parts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer
from refdesk.cli.ask import print_answer
from refdesk.cli.inputs import open_file, parse_page_range
from refdesk.cli.load_config import load_settings
from refdesk.documents.conversions import ConversionOptions, unheard
from refdesk.ingest.sources import is_url


def read(arguments: SimpleNamespace) -> int:
    """Run `refdesk read`."""
    file = Path(arguments.document)
    return print_answer(asyncio.run(_read(arguments, file if file.is_file() else None)), arguments.json)


async def _read(arguments: SimpleNamespace, local_file: Path | None) -> Answer:
    async with open_desk(load_settings(arguments), servers=False) as desk:
        doc_id = await _resolve_document_id(desk, arguments.document, local_file)
        tool, tool_arguments = _choose_tool(arguments)
        return await desk.call(tool, {"doc_id": doc_id, **tool_arguments})


async def _resolve_document_id(desk: Desk, document: str, local_file: Path | None) -> str:
    """Return the id to read by, converting a file or URL first."""
    if is_url(document):
        return (await desk.conversions.convert_url(LOCAL.tenant, document, ConversionOptions(), unheard)).handle
    if local_file is None:
        return document
    with open_file(local_file) as file:
        return (await desk.conversions.convert(LOCAL.tenant, file, ConversionOptions(), unheard)).handle


def _choose_tool(arguments: SimpleNamespace) -> tuple[str, dict[str, Any]]:
    cursor = {"cursor": arguments.cursor} if arguments.cursor else {}
    if arguments.section:
        return "read_doc_section", {"section_id": arguments.section, **cursor}
    if arguments.find:
        return "doc_local_search", {"query": arguments.find}
    pages = parse_page_range(arguments.pages)
    if pages is not None:
        return "read_doc_pages", {"page_start": pages.first, "page_end": pages.last, **cursor}
    return "read_doc_metadata", {}
