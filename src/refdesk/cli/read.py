"""`refdesk read`: a document in parts, whatever it is: a file, a URL, a handle, or an id of the documentation."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import Any

from refdesk.app import Desk, open_desk
from refdesk.calls import LOCAL, Answer
from refdesk.cli.ask import print_answer
from refdesk.cli.inputs import is_url, opened, page_range
from refdesk.cli.settings import load_settings
from refdesk.config import Config
from refdesk.documents.conversions import Wanted, unheard


def read(arguments: Namespace) -> int:
    """`refdesk read`."""
    file = Path(arguments.document)
    own_file = file if file.is_file() else None
    return print_answer(asyncio.run(_read(load_settings(arguments), arguments, own_file)), arguments.json)


async def _read(config: Config, arguments: Namespace, own_file: Path | None) -> Answer:
    async with open_desk(config, servers=False) as desk:
        doc_id = await _document_id(desk, arguments.document, own_file)
        tool, wanted = _asked(arguments)
        return await desk.call(tool, {"doc_id": doc_id, **wanted})


async def _document_id(desk: Desk, document: str, own_file: Path | None) -> str:
    """The id to read by; a file or a URL is converted for it first."""
    if is_url(document):
        return (await desk.conversions.convert_url(LOCAL.tenant, document, Wanted(), unheard)).handle
    if own_file is None:
        return document
    with opened(own_file) as file:
        return (await desk.conversions.convert(LOCAL.tenant, file, Wanted(), unheard)).handle


def _asked(arguments: Namespace) -> tuple[str, dict[str, Any]]:
    cursor = {"cursor": arguments.cursor} if arguments.cursor else {}
    if arguments.section:
        return "read_doc_section", {"section_id": arguments.section, **cursor}
    if arguments.find:
        return "doc_local_search", {"query": arguments.find}
    pages = page_range(arguments.pages)
    if pages is not None:
        return "read_doc_pages", {"page_start": pages.first, "page_end": pages.last, **cursor}
    return "read_doc_metadata", {}
