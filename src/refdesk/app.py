"""The composition root: what a desk is made of, in the order in which it is opened.

Only this module sees the whole configuration and every part.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

from refdesk.answers import open_answers
from refdesk.calls import LOCAL, Answer, Call, Caller, Handler, Policy
from refdesk.config import Config, load, require_support
from refdesk.documents.conversions import Conversions, open_conversions
from refdesk.engines.embedded.embedding import embed_at_once, open_embedder
from refdesk.engines.embedded.embedding.port import Embedder
from refdesk.engines.embedded.engine import EmbeddedEngine, open_embedded
from refdesk.engines.port import Engine
from refdesk.errors import EngineError
from refdesk.manual import bring_in_manual, manual_index_folder
from refdesk.policy.authenticate import Authenticate, callers_by_key
from refdesk.policy.chain import chain
from refdesk.policy.deadline import Deadline
from refdesk.policy.observe import Observe
from refdesk.telemetry import Log, Metrics
from refdesk.tools.announcements import Announcements
from refdesk.tools.answer_cache import AnswerCache
from refdesk.tools.budget import Blocklist
from refdesk.tools.catalogue import Catalogue
from refdesk.tools.conversion import Conversion
from refdesk.tools.documentation import Documentation
from refdesk.tools.ingestion import Ingesting
from refdesk.tools.knowledge import Knowledge
from refdesk.tools.knowledge_resources import KnowledgeResources
from refdesk.tools.projects import Projects
from refdesk.tools.prompts import KnowledgePrompts
from refdesk.tools.reader import Reader
from refdesk.tools.registry import Registry
from refdesk.tools.scopes import Scopes
from refdesk.tools.shelves import Shelves
from refdesk.tools.sources import OpenFolders, Sources, default_roots
from refdesk.tools.windows import LocalWindows, open_windows


@asynccontextmanager
async def open_desk(
    config: Config | str | os.PathLike[str] | None = None, *, log: Log | None = None
) -> AsyncIterator[Desk]:
    """A desk that answers calls; `config` is a configuration, the path of one, or None for the defaults."""
    if not isinstance(config, Config):
        config = load(Path(config) if config is not None else None, os.environ)
    require_support(config)
    metrics = Metrics()
    registry = Registry()
    authenticate = Authenticate(callers_by_key(config.auth.keys), required=config.auth.required)
    async with AsyncExitStack() as stack:
        # A program that uses the library is not to find a log line a call on its terminal.
        log = log or stack.enter_context(closing(Log("warning", config.logging.format, config.logging.file)))
        catalogue = Catalogue(registry, config.toolsets, config.server.page_size)
        conversions = await stack.enter_async_context(open_conversions(config.convert, config.data_path, metrics))
        embedder = await stack.enter_async_context(open_embedder(config.embedding))
        engine = await stack.enter_async_context(_open_engine(config, embedder, conversions, log, metrics))
        await bring_in_manual(engine)
        shelves = Shelves(conversions, engine)
        local = LocalWindows(shelves, engine)
        windows = await stack.enter_async_context(open_windows(config.reader, local))
        cache = AnswerCache(config.cache)
        Documentation(engine, cache, config.cache.ttl.search).register(registry)
        blocklist = Blocklist(config.reader.blocklist_keywords, config.reader.blocklist_action)
        Reader(shelves, windows, local, config.reader, blocklist, catalogue.tools).register(registry)
        sources = Sources(conversions, config.convert, _open_folders(config))
        Conversion(conversions, sources, blocklist).register(registry)
        answers = await stack.enter_async_context(
            open_answers(config.answers, partial(embed_at_once, embedder) if embedder else None)
        )
        projects = Projects(engine, config.projects, config.data_path, config.project)
        scopes = Scopes(engine, projects)
        Knowledge(engine, scopes, answers, cache, config.cache.ttl).register(registry)
        Ingesting(engine, scopes, sources, conversions).register(registry)
        KnowledgePrompts(engine, scopes).register(registry)
        registry.add_resources(KnowledgeResources(engine, projects))
        engine.listen(Announcements(engine, registry).changed)
        policies: list[Policy] = [
            Observe(log, metrics, registry.tools),
            *([authenticate] if config.auth.required else []),
            Deadline(config.server.request_timeout_seconds, catalogue.seconds),
        ]
        yield Desk(registry, catalogue, chain(policies, catalogue), authenticate, engine, conversions, metrics)


def _open_folders(config: Config) -> OpenFolders:
    """The folders whose files tools may name, less what is this desk's own."""
    return OpenFolders(default_roots(config.convert, Path.cwd(), Path.home()), _own_files(config))


def _own_files(config: Config) -> list[Path]:
    return [path for path in (config.data_path, config.config_file, config.logging.file) if path]


def _open_engine(
    config: Config, embedder: Embedder | None, conversions: Conversions, log: Log, metrics: Metrics
) -> AbstractAsyncContextManager[EmbeddedEngine]:
    return open_embedded(
        config.data_path / "tenants",
        manual_index_folder(config.data_path),
        embedder,
        conversions,
        log=log,
        metrics=metrics,
        readers=config.convert.workers,
        closed=_own_files(config),
    )


class Desk:
    """An open desk: what the ways in, the command line and programs call."""

    def __init__(
        self,
        registry: Registry,
        catalogue: Catalogue,
        handle: Handler,
        authenticate: Authenticate,
        engine: Engine,
        conversions: Conversions,
        metrics: Metrics,
    ) -> None:
        self.registry = registry
        self.handle = handle
        self.has_keys = authenticate.has_keys
        self.identify = authenticate.identify
        self.listen = registry.listen
        self.is_plain = catalogue.is_plain
        self.input_schema = catalogue.input_schema
        self.engine = engine
        self.conversions = conversions
        self.metrics = metrics

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, caller: Caller = LOCAL) -> Answer:
        """Call a tool by its name, as the owner of this process unless a caller is given."""
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        params = {"name": tool, "arguments": given}
        return await self.handle(Call(method="tools/call", params=params, caller=caller))

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the desk can do its work, and how each part of it is."""
        try:
            engine = {"state": "ok", "detail": await self.engine.check()}
        except EngineError as error:
            return False, {"engine": {"state": "down", "detail": error.detail}}
        return True, {"engine": engine, "convert": self.conversions.check()}
