"""Refdesk's own manual, the shared documentation set of a new installation."""

from __future__ import annotations

import hashlib
from pathlib import Path

from anyio import to_thread
from platformdirs import user_cache_path

from refdesk.config.models import EmbeddingConfig
from refdesk.engines.base import SHARED, DocumentIngest, FileSource, NewDocument
from refdesk.engines.embedded.tenant_store import SCHEMA_VERSION
from refdesk.version import __version__

COLLECTION = "refdesk"
TITLE = "Refdesk manual"


async def index_manual(engine: DocumentIngest) -> None:
    """Index the manual for all tenants. Cheap if it is already indexed."""
    folder = manual_folder()
    pages = await to_thread.run_sync(lambda: sorted(folder.rglob("*.md")))
    documents = [
        NewDocument(FileSource(page, page.relative_to(folder).as_posix()), COLLECTION, version=__version__)
        for page in pages
    ]
    await engine.create_collection(SHARED, COLLECTION, description=TITLE, version=__version__)
    await engine.sync_folder(SHARED, COLLECTION, folder, documents)


def manual_folder() -> Path:
    """Return the folder of the manual: inside an installed package, or next to the sources in a checkout."""
    package = Path(__file__).parent
    installed = package / "manual_pages"
    return installed if installed.is_dir() else package.parent.parent / "docs"


def find_manual_index_folder(data: Path, embedding: EmbeddingConfig) -> Path:
    """Return the folder of the manual's index, which all data folders of an installation share.

    Each embedding model has its own index: a server without a model would otherwise keep others from embedding. The
    index is in the user's cache folder, or next to the data if that isn't writable.
    """
    cache = user_cache_path("refdesk", appauthor=False)
    model = embedding.source, embedding.model_path, embedding.api_url, embedding.api_model
    digest = hashlib.sha256(repr((str(manual_folder()), *map(str, model))).encode()).hexdigest()[:12]
    name = f"manual-{digest}-{SCHEMA_VERSION}"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        probe = cache / f".{name}"
        probe.touch()
        probe.unlink()
    except OSError:
        return data / "manual"
    return cache / name
