"""`refdesk documents`, `refdesk collections` and `refdesk reindex`."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from refdesk.app import open_desk
from refdesk.calls import LOCAL
from refdesk.cli.load_config import load_settings
from refdesk.cli.parser.arguments import Misuse
from refdesk.cli.terminal import print_message, print_table
from refdesk.config import Config
from refdesk.engines.base import IN_PROGRESS, CollectionInfo, DocumentStatus, Engine, Listing, Status
from refdesk.errors import InvalidArguments, Problem
from refdesk.validation import nearest_name

PAGE_SIZE = 1000
"""Documents fetched per page."""

STATUSES: Mapping[str, tuple[Status, ...]] = {
    "all": (),
    "pending": IN_PROGRESS,
    "success": ("success",),
    "failed": ("failed",),
}
"""Engine statuses by their names on the command line."""


def documents(arguments: SimpleNamespace) -> int:
    """Run `refdesk documents`."""
    config = load_settings(arguments)
    if arguments.action == "remove":
        return asyncio.run(_remove_documents(config, _require_arguments(arguments.ids, "ID"), arguments.json))
    if arguments.ids:
        raise Misuse("ID: only `refdesk documents remove` takes IDs")
    return asyncio.run(_list_documents(config, arguments))


def collections(arguments: SimpleNamespace) -> int:
    """Run `refdesk collections`."""
    config = load_settings(arguments)
    if arguments.action == "create":
        return asyncio.run(_create_collections(config, _require_arguments(arguments.names, "NAME"), arguments))
    if arguments.action == "remove":
        return asyncio.run(_remove_collections(config, _require_arguments(arguments.names, "NAME"), arguments.json))
    if arguments.names:
        raise Misuse("NAME: only `create` and `remove` take names")
    return asyncio.run(_list_collections(config, arguments.json))


def reindex(arguments: SimpleNamespace) -> int:
    """Run `refdesk reindex`."""
    count = asyncio.run(_reindex(load_settings(arguments)))
    print(json.dumps({"documents": count}) if arguments.json else f"Rebuilt the indexes of {count:,} documents.")
    return 0


async def _reindex(config: Config) -> int:
    """Rebuild the indexes and return the number of documents. Search keeps working meanwhile."""
    async with open_desk(config, servers=False) as desk:
        count = sum(one.documents for one in await desk.engine.collections(LOCAL.tenant) if not one.shared)
        if sys.stderr.isatty():
            print_message(f"rebuilding the indexes of {count:,} documents")
        await desk.engine.reindex(LOCAL.tenant)
    return count


def _require_arguments(words: Sequence[str], argument: str) -> Sequence[str]:
    if not words:
        raise Misuse(f"Missing argument '{argument}'.")
    return words


async def _list_documents(config: Config, arguments: SimpleNamespace) -> int:
    async with open_desk(config, servers=False) as desk:
        collection = arguments.collection and (await _find_collection(desk.engine, arguments.collection)).id
        found = [one async for one in _iter_documents(desk.engine, collection, STATUSES[arguments.status])]
    if arguments.json:
        print(json.dumps([_document_to_dict(one) for one in found], indent=2, ensure_ascii=False))
    else:
        _print_documents(found)
    return 0


async def _iter_documents(
    engine: Engine, collection: str | None, statuses: tuple[Status, ...]
) -> AsyncIterator[DocumentStatus]:
    offset = 0
    while True:
        page, total = await engine.documents(LOCAL.tenant, Listing(collection, statuses, offset, PAGE_SIZE))
        for one in page:
            yield one
        offset += len(page)
        if not page or offset >= total:
            return


async def _find_collection(engine: Engine, name: str) -> CollectionInfo:
    """Return an existing collection by its id or name."""
    known = await engine.collections(LOCAL.tenant)
    found = next((one for one in known if name in (one.id, one.name)), None)
    if found is None:
        nearest = nearest_name(name, [one.id for one in known])
        hint = f"did you mean {nearest!r}?" if nearest else "`refdesk collections` lists them"
        raise InvalidArguments([Problem(name, f"no such collection; {hint}")])
    return found


async def _remove_documents(config: Config, ids: Sequence[str], as_json: bool) -> int:
    async with open_desk(config, servers=False) as desk:
        return _print_removed({id: await desk.engine.delete(LOCAL.tenant, id) for id in ids}, "document", as_json)


async def _remove_collections(config: Config, names: Sequence[str], as_json: bool) -> int:
    async with open_desk(config, servers=False) as desk:
        ids = [(await _find_collection(desk.engine, name)).id for name in names]
        removed = {id: await desk.engine.delete_collection(LOCAL.tenant, id) for id in ids}
        return _print_removed(removed, "collection", as_json)


def _print_removed(removed: Mapping[str, bool], what: str, as_json: bool) -> int:
    missing = [id for id, was_there in removed.items() if not was_there]
    for id in missing:
        print_message(f"no such {what}: {id!r}")
    if as_json:
        print(json.dumps({"removed": [id for id in removed if removed[id]], "missing": missing}, ensure_ascii=False))
    else:
        print(f"{len(removed) - len(missing):,} removed")
    return 1 if missing else 0


async def _create_collections(config: Config, names: Sequence[str], arguments: SimpleNamespace) -> int:
    async with open_desk(config, servers=False) as desk:
        created = [
            await desk.engine.create_collection(
                LOCAL.tenant, name, description=arguments.description, version=arguments.version
            )
            for name in names
        ]
    _print_collections(created, arguments.json)
    return 0


async def _list_collections(config: Config, as_json: bool) -> int:
    async with open_desk(config, servers=False) as desk:
        found = await desk.engine.collections(LOCAL.tenant)
    _print_collections(found, as_json)
    return 0


def _print_collections(found: Sequence[CollectionInfo], as_json: bool) -> None:
    if as_json:
        print(json.dumps([_collection_to_dict(one) for one in found], indent=2, ensure_ascii=False))
        return
    rows = [
        (one.id, f"{one.documents:,}", one.version, f"{one.updated_at:%Y-%m-%d %H:%M}", one.description or one.name)
        for one in found
    ]
    print_table(("ID", "DOCUMENTS", "VERSION", "UPDATED", "DESCRIPTION"), rows)


def _print_documents(found: Sequence[DocumentStatus]) -> None:
    rows = [(_format_status(one), f"{one.size_bytes:,}", one.id, one.error or one.title) for one in found]
    print_table(("STATUS", "BYTES", "ID", "TITLE"), rows)


def _format_status(one: DocumentStatus) -> str:
    return f"{one.status} {one.progress:.0%}" if one.status in IN_PROGRESS else one.status


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
