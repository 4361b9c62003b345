"""Bringing in what was named: taken on by the engine first, which is quick and lasts, then watched until it is in.

Who does the work does not matter: this process, or a server that has the same data open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from refdesk.calls import TenantId
from refdesk.cli.inputs import Failure
from refdesk.cli.progress import ProgressBar
from refdesk.cli.sources import Folder, Label, Named, Objects, Single
from refdesk.engines.base import (
    UNDER_WAY,
    DocumentStatus,
    Engine,
    FileSource,
    Listing,
    NewDocument,
    ShelfSource,
    TextSource,
    UrlSource,
)
from refdesk.errors import Overloaded, ToolFailure

BATCH = 500
"""Documents that are handed over at once: few enough for memory, enough that the disk is not asked for each."""

PAUSE_SECONDS = 0.5
"""Before a full queue is tried again, where it does not say itself how long."""

ALL_OF_THEM = 10_000_000
"""More documents than a collection can hold."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What bringing something in came to; documents by their ids."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: int = 0
    removed: tuple[str, ...] = ()
    failed: tuple[Failure, ...] = ()

    def __add__(self, other: Outcome) -> Outcome:
        return Outcome(
            self.new + other.new,
            self.changed + other.changed,
            self.unchanged + other.unchanged,
            self.removed + other.removed,
            self.failed + other.failed,
        )

    def is_nothing(self) -> bool:
        """Whether all is as it was."""
        return not (self.new or self.changed or self.removed or self.failed)

    def after(self, statuses: Iterable[DocumentStatus]) -> Outcome:
        """As it turned out in the end: what failed is neither new nor changed."""
        failed = {status.id: status.error or "It failed." for status in statuses if status.status == "failed"}
        return replace(
            self,
            new=tuple(id for id in self.new if id not in failed),
            changed=tuple(id for id in self.changed if id not in failed),
            failed=self.failed + tuple(Failure(id, cause) for id, cause in failed.items()),
        )

    def sentence(self) -> str:
        """For people."""
        counts = {
            "new": len(self.new),
            "changed": len(self.changed),
            "unchanged": self.unchanged,
            "removed": len(self.removed),
            "failed": len(self.failed),
        }
        return ", ".join(f"{count:,} {what}" for what, count in counts.items())

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Intake:
    """The way in, for one command."""

    engine: Engine
    tenant: TenantId
    label: Label
    waits: bool = True
    _origins: dict[tuple[str, str], str] = field(default_factory=dict)
    """Where the document of a name in a collection came from, so that no two take each other's place."""

    async def bring_in(self, things: Sequence[Named]) -> Outcome:
        """All of it; what cannot be brought in does not keep the rest out."""
        outcome = Outcome(failed=tuple(thing for thing in things if isinstance(thing, Failure)))
        folders = [thing for thing in things if isinstance(thing, Folder)]
        for folder in folders:
            outcome += await self._synchronise(folder)
        others = [thing for thing in things if isinstance(thing, Objects | Single)]
        for name in dict.fromkeys(thing.collection for thing in others):
            outcome += await self._ingest(name, [thing for thing in others if thing.collection == name])
        return await self._settled(outcome, folders)

    async def settled(self, outcome: Outcome) -> Outcome:
        """What was taken on elsewhere, once it is in."""
        return await self._settled(outcome, [])

    async def update(self, folder: Folder) -> Outcome:
        """Bring the collection into step with its folder once more."""
        return await self._settled(await self._synchronise(folder), [folder])

    async def _synchronise(self, folder: Folder) -> Outcome:
        collection = await self.engine.create_collection(self.tenant, folder.collection, version=self.label.version)
        found, left_out = await asyncio.to_thread(folder.documents, collection.id, self.label)
        documents, clashes = self._without_clashes(found)
        unseen = [one.relative for one in left_out]
        done = await self.engine.sync_folder(self.tenant, collection.id, folder.path, documents, unseen=unseen)
        failed = (*map(folder.failure, left_out), *clashes)
        return Outcome(tuple(done.new), tuple(done.changed), done.unchanged, tuple(done.removed), failed)

    async def _ingest(self, name: str, things: Sequence[Single | Objects]) -> Outcome:
        collection = await self.engine.create_collection(self.tenant, name)
        known = set(await self.engine.document_ids(self.tenant, prefix=f"{collection.id}/", limit=ALL_OF_THEM))
        found = (document for thing in things for document in thing.documents(collection.id, self.label))
        outcome = Outcome()
        while batch := list(islice(found, BATCH)):
            broken = [document for document in batch if isinstance(document, Failure)]
            own, clashes = self._without_clashes(document for document in batch if isinstance(document, NewDocument))
            outcome += await self._take(own, known) + Outcome(failed=(*broken, *clashes))
        return outcome

    def _without_clashes(self, documents: Iterable[NewDocument]) -> tuple[list[NewDocument], list[Failure]]:
        """Those with a name of their own; one that would take another's place is told."""
        own, clashes = [], []
        for document in documents:
            name, origin = _name(document), _origin(document)
            first = self._origins.setdefault((document.collection, name), origin) if name else origin
            if first == origin:
                own.append(document)
            else:
                cause = f"It would take the place of {first}; bring it into another collection."
                clashes.append(Failure(origin, cause))
        return own, clashes

    async def _take(self, documents: Sequence[NewDocument], known: Set[str]) -> Outcome:
        """Hand documents over; when one of them is refused, the others one by one."""
        while True:
            try:
                return _told_apart(await self.engine.ingest(self.tenant, documents), known)
            except Overloaded as full:
                await asyncio.sleep(full.retry_after or PAUSE_SECONDS)
            except ToolFailure as failure:
                if len(documents) == 1:
                    return Outcome(failed=(Failure(_origin(documents[0]), failure.detail),))
                return sum([await self._take([document], known) for document in documents], Outcome())

    async def _settled(self, outcome: Outcome, folders: Sequence[Folder]) -> Outcome:
        """The outcome, once everything is in that is under way."""
        if not self.waits:
            return outcome
        left = [id for folder in folders if outcome.unchanged for id in await self._under_way(folder)]
        ids = list(dict.fromkeys((*outcome.new, *outcome.changed, *left)))
        return outcome.after(await watch_until_in(self.engine, self.tenant, ids, ProgressBar(len(ids))))

    async def _under_way(self, folder: Folder) -> list[str]:
        """What an earlier command took on and nobody has finished yet."""
        collection = await self.engine.create_collection(self.tenant, folder.collection)
        listing = Listing(collection.id, UNDER_WAY, limit=ALL_OF_THEM)
        return [status.id for status in (await self.engine.documents(self.tenant, listing))[0]]


def _told_apart(statuses: Iterable[DocumentStatus], known: Set[str]) -> Outcome:
    """What was there before is changed when there is work to do, and otherwise unchanged."""
    new, changed, unchanged = [], [], 0
    for status in statuses:
        if status.id not in known:
            new.append(status.id)
        elif status.status == "success":
            unchanged += 1
        else:
            changed.append(status.id)
    return Outcome(tuple(new), tuple(changed), unchanged)


def _name(document: NewDocument) -> str:
    """Its path within its collection, where it has one before the engine gives it one."""
    return document.source.name if isinstance(document.source, FileSource | TextSource) else ""


def _origin(document: NewDocument) -> str:
    """Where it comes from, in words."""
    match document.source:
        case FileSource(path=path):
            return str(path)
        case UrlSource(url=url):
            return url
        case TextSource(title=title):
            return f"the text {title!r}"
        case ShelfSource(handle=handle):
            return handle


async def watch_until_in(
    engine: Engine, tenant: TenantId, document_ids: Sequence[str], bar: ProgressBar
) -> list[DocumentStatus]:
    """How the documents are once none of them is under way any more; raises EngineError when nothing goes on."""
    left, ended = list(document_ids), list[DocumentStatus]()
    try:
        while left:
            statuses = await engine.wait(tenant, left, seconds=0)
            ended += (status for status in statuses if status.status not in UNDER_WAY)
            going = [status for status in statuses if status.status in UNDER_WAY]
            left = [status.id for status in going]
            done = len(document_ids) - len(left)
            bar.report(done, (done + sum(one.progress for one in going)) / len(document_ids), _doing(going, ended))
            await engine.check()
            await asyncio.sleep(_pace_seconds(len(left)))
    finally:
        bar.clear()
    return ended


def _pace_seconds(left: int) -> float:
    """To look at many documents costs more: it is done less often, so that it never costs what the work does."""
    return (0.05 + left / 2000) if left else 0.0


def _doing(going: Sequence[DocumentStatus], ended: Sequence[DocumentStatus]) -> str:
    """Words first, meaning after them: what the person waits for."""
    unread = sum(status.status != "embedding" for status in going)
    if unread:
        return f"reading; {unread:,} still to come"
    passages = sum(status.chunks for status in (*going, *ended))
    embedded = passages - sum(status.chunks - status.embedded for status in going)
    return f"words can be found; meaning of {embedded:,} of {passages:,} passages"
