"""Refdesk's own manual, which comes with it: the documentation set that a new desk answers from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from anyio import to_thread
from platformdirs import user_cache_path

from refdesk.engines.embedded.store import SCHEMA_VERSION
from refdesk.engines.port import SHARED, Engine, FileSource, NewDocument
from refdesk.version import __version__

COLLECTION = "refdesk"
TITLE = "Refdesk manual"


async def bring_in_manual(engine: Engine) -> None:
    """Index the manual for everybody; costs next to nothing when it is indexed already."""
    folder = manual_folder()
    pages = await to_thread.run_sync(lambda: sorted(folder.rglob("*.md")))
    documents = [
        NewDocument(FileSource(page, page.relative_to(folder).as_posix()), COLLECTION, version=__version__)
        for page in pages
    ]
    await engine.create_collection(SHARED, COLLECTION, description=TITLE, version=__version__)
    await engine.sync_folder(SHARED, COLLECTION, folder, documents)


def manual_folder() -> Path:
    """Where the manual is: inside an installed package, or beside the sources in a checkout."""
    package = Path(__file__).parent
    installed = package / "manual_pages"
    return installed if installed.is_dir() else package.parent.parent / "docs"


def manual_index_folder(data: Path) -> Path:
    """Where the manual's index is kept: once for every data folder of this installation, as it can be made anew.

    Beside the data where the user has no folder for such things that can be written to.
    """
    cache = user_cache_path("refdesk", appauthor=False)
    place = hashlib.sha256(str(manual_folder()).encode()).hexdigest()[:12]
    name = f"manual-{place}-{SCHEMA_VERSION}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        probe = cache / f".{name}"
        probe.touch()
        probe.unlink()
    except OSError:
        return data / "manual"
    return cache / name
