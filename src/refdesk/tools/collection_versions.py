"""Names of versioned collections: `postgresql@15` is one version, and `postgresql` the newest."""

from __future__ import annotations

from collections.abc import Sequence

from refdesk.documents.model import slug_of
from refdesk.engines.base import CollectionInfo
from refdesk.ingest.recipes.recipe import version_key


def find_collection(
    collections: Sequence[CollectionInfo], name: str, *, or_newest: bool = True
) -> CollectionInfo | None:
    """Return the collection with an id, a name, a family and version, or (with `or_newest`) a family."""
    folded = name.casefold()
    by_id = next((info for info in collections if name == info.id or folded == info.external_id), None)
    if by_id is not None:
        return by_id
    by_name = next((info for info in collections if info.name.casefold() == folded), None)
    if by_name is not None:
        return by_name
    family, at, version = folded.rpartition("@")
    if at:
        return _find_newest([info for info in collections if info.version.casefold() == version], family)
    return _find_newest(collections, folded) if or_newest else None


def resolve_document_id(collections: Sequence[CollectionInfo], id: str) -> str:
    """Return the id of a document whose collection is given by any of its names."""
    name, slash, path = id.partition("/")
    found = find_collection(collections, name) if slash else None
    return f"{found.id}/{path}" if found else id


def list_names(collections: Sequence[CollectionInfo]) -> list[str]:
    """Return all names of the collections: their ids, and for versioned ones the family and `family@version`."""
    names: dict[str, None] = {}
    for info in collections:
        family = get_family(info)
        versioned = (family, f"{family}@{info.version}") if family != info.id else ()
        names |= dict.fromkeys((*versioned, info.id))
    return list(names)


def get_family(info: CollectionInfo) -> str:
    """Return the id without the version: `postgresql` for `postgresql-15` of version 15."""
    suffix = slug_of(info.version)
    return (info.id.removesuffix(f"-{suffix}") if suffix else "") or info.id


def _find_newest(collections: Sequence[CollectionInfo], family: str) -> CollectionInfo | None:
    """Return the newest version of a family. One without indexed documents is only returned if all are."""
    members = [info for info in collections if get_family(info) == family]
    # Versions without numbers are ordered by the time they were added.
    return max(members, key=lambda info: (info.documents > 0, version_key(info.version), info.created_at), default=None)
