"""Ingestion pipeline of every document, whether a command, a tool or a recipe adds it:

1. convert: a sandboxed worker parses the file into blocks (`documents.convert`).
2. chunk: the same worker splits the blocks into chunks (`documents.chunking`).
3. pack: the same worker writes blocks, sections and chunks as one SQLite file (`documents.packed_document`).
4. index: the engine stores the packed document and adds its chunks to the full-text index.
5. embed: the engine adds the vectors of the chunks. Until then, they are found by full-text search.

`documents.jobs` runs steps 1 to 3 for one file. `engines.embedded.ingest_worker` runs all five for queued documents;
`engines.r2r.ingest` leaves the last two to R2R.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from refdesk.config.models import Config
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.base import Engine
from refdesk.engines.embedded.embedding import Embedder, open_embedder
from refdesk.engines.embedded.engine import open_embedded
from refdesk.manual import find_manual_index_folder
from refdesk.telemetry.log import Log
from refdesk.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True)
class IngestPipeline:
    """The open parts of the pipeline."""

    conversions: Conversions
    embedder: Embedder | None
    engine: Engine


@asynccontextmanager
async def open_pipeline(config: Config, log: Log, metrics: Metrics) -> AsyncIterator[IngestPipeline]:
    """Open the conversion workers, the embedding model and the engine."""
    async with (
        open_conversions(config.convert, config.data_path, metrics) as conversions,
        open_embedder(config.embedding) as embedder,
        _open_engine(config, embedder, conversions, log, metrics) as engine,
    ):
        yield IngestPipeline(conversions, embedder, engine)


def _open_engine(
    config: Config, embedder: Embedder | None, conversions: Conversions, log: Log, metrics: Metrics
) -> AbstractAsyncContextManager[Engine]:
    readers, closed = config.convert.workers, list_own_files(config)
    if config.r2r.api_url is not None:
        # Slow to import, and most installations have no R2R.
        from refdesk.engines.r2r.engine import open_r2r

        return open_r2r(
            config.r2r, config.circuit_breaker, find_engine_folder(config), conversions,
            log=log, metrics=metrics, readers=readers, closed=closed,
        )  # fmt: skip
    shared = find_manual_index_folder(config.data_path, config.embedding)
    return open_embedded(
        find_engine_folder(config), shared, embedder, conversions,
        log=log, metrics=metrics, readers=readers, closed=closed,
    )  # fmt: skip


def find_engine_folder(config: Config) -> Path:
    """Return the folder of the tenants' folders."""
    return config.data_path / ("r2r" if config.r2r.api_url is not None else "tenants")


def list_own_files(config: Config) -> list[Path]:
    """List the files and folders of Refdesk itself, which are never ingested."""
    return [path for path in (config.data_path, config.servers_path, config.config_file, config.logging.file) if path]
