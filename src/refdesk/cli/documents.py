"""`refdesk documents`, `refdesk collections` and `refdesk reindex`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from refdesk.calls import LOCAL
from refdesk.cli.arguments import Misuse
from refdesk.cli.load_config import open_local_desk
from refdesk.cli.terminal import print_json, print_message, print_result, print_table
from refdesk.console.document_methods import STATUSES
from refdesk.engines.base import IN_PROGRESS, CollectionInfo, DocumentStatus, Engine, Listing, Status
from refdesk.errors import InvalidArguments, Problem
from refdesk.tools.collection_versions import find_collection
from refdesk.validation import nearest_name

PAGE_SIZE = 1000
"""Documents fetched per page."""


async def documents(arguments: SimpleNamespace) -> int:
    """Run `refdesk documents`."""
    if arguments.action == "remove":
        ids = _require_arguments(arguments.ids, "ID")
        async with open_local_desk(arguments) as desk:
            removed = {id: await desk.engine.delete(LOCAL.tenant, id) for id in ids}
        return _print_removed(removed, "document", arguments.json)
    if arguments.ids:
        raise Misuse("ID: only `refdesk documents remove` takes IDs")
    async with open_local_desk(arguments) as desk:
        collection = arguments.collection and await _find_collection(desk.engine, arguments.collection)
        found = await _list_documents(desk.engine, collection, STATUSES[arguments.status])
    if arguments.json:
        print_json([_document_to_dict(one) for one in found])
        return 0
    rows = []
    for one in found:
        status = f"{one.status} {one.progress:.0%}" if one.status in IN_PROGRESS else one.status
        rows.append((status, f"{one.size_bytes:,}", one.id, one.error or one.warning or one.title))
    print_table(("STATUS", "BYTES", "ID", "TITLE"), rows)
    return 0


async def collections(arguments: SimpleNamespace) -> int:
    """Run `refdesk collections`."""
    if arguments.action == "list" and arguments.names:
        raise Misuse("NAME: only `create` and `remove` take names")
    names = _require_arguments(arguments.names, "NAME") if arguments.action != "list" else ()
    async with open_local_desk(arguments) as desk:
        if arguments.action == "remove":
            ids = [await _find_collection(desk.engine, name, or_newest=False) for name in names]
            removed = {id: await desk.engine.delete_collection(LOCAL.tenant, id) for id in ids}
            return _print_removed(removed, "collection", arguments.json)
        about = {"description": arguments.description, "version": arguments.version}
        found: Sequence[CollectionInfo] = (
            [await desk.engine.create_collection(LOCAL.tenant, name, **about) for name in names]
            if names
            else await desk.engine.collections(LOCAL.tenant)
        )
    if arguments.json:
        print_json([_collection_to_dict(one) for one in found])
        return 0
    rows = [
        (one.id, f"{one.documents:,}", one.version, f"{one.updated_at:%Y-%m-%d %H:%M}", one.description or one.name)
        for one in found
    ]
    print_table(("ID", "DOCUMENTS", "VERSION", "UPDATED", "DESCRIPTION"), rows)
    return 0


async def reindex(arguments: SimpleNamespace) -> None:
    """Run `refdesk reindex`. Search keeps working meanwhile."""
    async with open_local_desk(arguments) as desk:
        count = sum(one.documents for one in await desk.engine.collections(LOCAL.tenant) if not one.shared)
        if sys.stderr.isatty():
            print_message(f"rebuilding the indexes of {count:,} documents")
        await desk.engine.reindex(LOCAL.tenant)
    print_result({"documents": count}, f"Rebuilt the indexes of {count:,} documents.", arguments.json)


def _require_arguments(words: Sequence[str], argument: str) -> Sequence[str]:
    if not words:
        raise Misuse(f"Missing argument '{argument}'.")
    return words


async def _list_documents(engine: Engine, collection: str | None, statuses: tuple[Status, ...]) -> list[DocumentStatus]:
    found: list[DocumentStatus] = []
    while True:
        page, total = await engine.documents(LOCAL.tenant, Listing(collection, statuses, len(found), PAGE_SIZE))
        found += page
        if not page or len(found) >= total:
            return found


async def _find_collection(engine: Engine, name: str, *, or_newest: bool = True) -> str:
    """Return the id of an existing collection, given its id or name; with `or_newest`, also a family's name."""
    known = await engine.collections(LOCAL.tenant)
    found = find_collection(known, name, or_newest=or_newest)
    if found is None:
        nearest = nearest_name(name, [one.id for one in known])
        hint = f"did you mean {nearest!r}?" if nearest else "`refdesk collections` lists them"
        raise InvalidArguments([Problem(name, f"no such collection; {hint}")])
    return found.id


def _print_removed(removed: Mapping[str, bool], what: str, as_json: bool) -> int:
    missing = [id for id, was_there in removed.items() if not was_there]
    for id in missing:
        print_message(f"no such {what}: {id!r}")
    facts = {"removed": [id for id in removed if removed[id]], "missing": missing}
    print_result(facts, f"{len(facts['removed']):,} removed", as_json)
    return 1 if missing else 0


def _document_to_dict(one: DocumentStatus) -> dict[str, Any]:
    return {
        "document_id": one.id,
        "collection_id": one.collection,
        "title": one.title,
        "ingestion_status": one.status,
        "progress": round(one.progress, 4),
        "chunks": one.chunks,
        "embedded": one.embedded,
        "size_bytes": one.size_bytes,
        "source": one.source,
        "metadata": dict(one.metadata),
        "created_at": one.created_at.isoformat(),
        "updated_at": one.updated_at.isoformat(),
        **({"error": one.error} if one.error else {}),
        **({"warning": one.warning} if one.warning else {}),
    }


def _collection_to_dict(one: CollectionInfo) -> dict[str, Any]:
    return {
        "collection_id": one.id,
        "name": one.name,
        "description": one.description,
        "document_count": one.documents,
        "version": one.version,
        "shared": one.shared,
        "created_at": one.created_at.isoformat(),
        "updated_at": one.updated_at.isoformat(),
    }
