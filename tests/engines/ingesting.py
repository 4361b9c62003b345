"""A process that brings documents in, changes and removes them without end, to be killed at it.

    python -m tests.engines.ingesting <folder> <seed> [<where to die>]

Before each step it writes to `<folder>/journal` what it is about to do, and after the acknowledgement that it is done.
For each line of the journal it writes a line to its standard output.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import orjson

from refdesk.calls import TenantId
from refdesk.engines.base import IN_PROGRESS, FileSource, Listing, NewDocument, TextSource
from refdesk.engines.embedded.engine import EmbeddedEngine
from refdesk.engines.embedded.fulltext import FullTextWriter
from tests.engines.desks import lone_engine_on
from tests.waiting import eventually

ACME = TenantId("acme")
COLLECTIONS = ("birds", "fish")
NAMES = 12
"""Documents of each kind in a collection: few enough that most steps meet one that is there."""

MOST_UNDER_WAY = 6
"""Documents that wait, so that a kill meets each stage of the work and not only a long queue."""

WHERE_TO_DIE = {
    "vector segment": ("open", "*/vectors/*.segment"),
    "vector manifest": ("os.rename", "*/vectors/.new-*"),
    "vector sweep": ("os.remove", "*/vectors/*.segment"),
    "within a full-text commit": ("commit", "within"),
    "after a full-text commit": ("commit", "after"),
}
"""Moments at which what is on the disk is halfway: the audited event, and the file that it is about."""


def unique_word(*numbers: int) -> str:
    """A word that no other text has, which no stemmer shortens and nothing splits."""
    return "zq" + "vx".join("".join("bdfgjklmnp"[int(digit)] for digit in str(number)) for number in numbers) + "qz"


def text_of(word: str) -> str:
    """A document of two sections, with a word of its own in each."""
    return f"# About {word}\n\nThe {word}one lives in the north.\n\n## Food\n\nThe {word}two is what it eats.\n"


def die() -> None:
    """As abruptly as a process can."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(place: str, after: int) -> None:
    """Die at the next such moment but `after`."""
    event, pattern = WHERE_TO_DIE[place]
    left = [after]

    def count_down(doing: str, arguments: tuple[Any, ...]) -> None:
        if doing == event and fnmatch(str(arguments[0]), pattern):
            left[0] -= 1
            if left[0] < 0:
                die()

    if event == "commit":
        _die_at_commit(pattern, left)
    else:
        sys.addaudithook(count_down)


def _die_at_commit(moment: str, left: list[int]) -> None:
    """Tantivy tells nobody what it is doing: die some milliseconds into a commit, or right after one."""
    commit = FullTextWriter.commit

    def dying(self: FullTextWriter, mark: int) -> None:
        left[0] -= 1
        if left[0] < 0 and moment == "within":
            threading.Timer(Random(mark).uniform(0, 0.03), die).start()
        commit(self, mark)
        if left[0] < 0 and moment == "after":
            die()

    FullTextWriter.commit = dying  # type: ignore[method-assign]


class Ingesting:
    """The steps, and the journal of them."""

    def __init__(self, engine: EmbeddedEngine, folder: Path, random: Random, seed: int) -> None:
        self._engine = engine
        self._files = folder / "files"
        self._files.mkdir(exist_ok=True)
        self._random = random
        self._seed = seed
        self._count = 0
        self._journal = os.open(folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    async def run(self) -> None:
        """One step after another."""
        steps = [self._text] * 5 + [self._file] * 5 + [self._delete] * 2 + [self._sync] + [self._delete_collection]
        while True:
            collection = self._random.choice(COLLECTIONS)
            await self._engine.create_collection(ACME, collection, description=unique_word(self._count))
            await self._random.choice(steps)(collection)
            self._count += 1
            await eventually(self._has_room)

    async def _has_room(self) -> bool:
        return (await self._engine.documents(ACME, Listing(statuses=IN_PROGRESS)))[1] <= MOST_UNDER_WAY

    async def _text(self, collection: str) -> None:
        name, word = f"text-{self._random.randrange(NAMES)}", self._word()
        source = TextSource(name, text_of(word), name)
        await self._step(
            partial(self._engine.ingest, ACME, [NewDocument(source, collection)]), {f"{collection}/{name}": word}
        )

    async def _file(self, collection: str) -> None:
        name, word = f"file-{self._random.randrange(NAMES)}.md", self._word()
        path = self._files / f"{collection}-{name}"

        async def bring() -> None:
            _write(path, text_of(word))
            await self._engine.ingest(ACME, [NewDocument(FileSource(path, name), collection)])

        await self._step(bring, {f"{collection}/{name}": word})

    async def _sync(self, collection: str) -> None:
        """A folder of three files, of which one comes, one changes and one goes."""
        folder = self._files / f"{collection}-folder"
        folder.mkdir(exist_ok=True)
        names = self._random.sample(["sync-a.md", "sync-b.md", "sync-c.md", "sync-d.md"], 3)
        words = {name: self._word() for name in names}
        expected: dict[str, str | None] = {f"{collection}/sync-{one}.md": None for one in "abcd"}
        expected |= {f"{collection}/{name}": word for name, word in words.items()}

        async def sync() -> None:
            for name, word in words.items():
                _write(folder / name, text_of(word))
            given = [NewDocument(FileSource(folder / name, name), collection) for name in names]
            await self._engine.sync_folder(ACME, collection, folder, given)

        await self._step(sync, expected)

    async def _delete(self, collection: str) -> None:
        kind = self._random.choice(["text-{}", "file-{}.md"])
        id = f"{collection}/{kind.format(self._random.randrange(NAMES))}"
        await self._step(partial(self._engine.delete, ACME, id), {id: None})

    async def _delete_collection(self, collection: str) -> None:
        await self._step(partial(self._engine.delete_collection, ACME, collection), {f"{collection}/*": None})

    async def _step(self, take: Callable[[], Awaitable[Any]], expected: dict[str, str | None]) -> None:
        self._note("about", expected)
        await take()
        self._note("done", expected)

    def _word(self) -> str:
        self._count += 1
        return unique_word(self._seed, self._count)

    def _note(self, what: str, expected: dict[str, str | None]) -> None:
        os.write(self._journal, orjson.dumps([what, expected]) + b"\n")
        sys.stdout.write("noted\n")
        sys.stdout.flush()


def _write(path: Path, text: str) -> None:
    """In one step, so that nobody reads half of it."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)


async def main(folder: Path, seed: int, place: str | None) -> None:
    random = Random(seed)
    if place is not None:
        die_at(place, random.randrange(4))
    async with lone_engine_on(folder) as engine:
        await Ingesting(engine, folder, random, seed).run()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
