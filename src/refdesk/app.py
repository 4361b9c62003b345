"""The composition root: what a desk is made of, in the order in which it is opened.

Only this module sees the whole configuration and every part.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any

from refdesk.calls import LOCAL, Answer, Call, Caller, Handler, Policy, TenantId, UserId
from refdesk.config import AuthConfig, Config, load
from refdesk.engines.embedded import EmbeddedEngine, SourceDocument, open_embedded
from refdesk.engines.embedded.engine import SHARED
from refdesk.engines.port import DocumentationSet, Engine
from refdesk.errors import ConfigError, EngineError
from refdesk.policy.authenticate import Authenticate
from refdesk.policy.chain import chain
from refdesk.policy.deadline import Deadline
from refdesk.policy.observe import Observe
from refdesk.telemetry import Log, Metrics
from refdesk.tools.catalogue import Catalogue
from refdesk.tools.documentation import Documentation
from refdesk.tools.registry import Registry
from refdesk.version import __version__


@asynccontextmanager
async def open_desk(
    config: Config | str | os.PathLike[str] | None = None, *, log: Log | None = None
) -> AsyncIterator[Desk]:
    """A desk that answers calls; `config` is a configuration, the path of one, or None for the defaults."""
    if not isinstance(config, Config):
        config = load(Path(config) if config is not None else None, os.environ)
    if config.r2r.api_url is not None:
        raise ConfigError(["r2r.api_url: this version keeps documents in its embedded engine only; unset it to start"])
    metrics = Metrics()
    registry = Registry()
    authenticate = Authenticate(_callers(config.auth), required=config.auth.required)
    async with AsyncExitStack() as stack:
        # A program that uses the library is not to find a log line a call on its terminal.
        log = log or stack.enter_context(closing(Log("warning", config.logging.format, config.logging.file)))
        engine = await stack.enter_async_context(open_embedded(config.data_path))
        await _bring_in_manual(engine)
        Documentation(engine).register(registry)
        _check_toolsets(config.toolsets, registry)
        catalogue = Catalogue(registry, config.toolsets, config.server.page_size)
        policies: list[Policy] = [
            Observe(log, metrics),
            *([authenticate] if config.auth.required else []),
            Deadline(config.server.request_timeout_seconds),
        ]
        yield Desk(config, registry, catalogue, chain(policies, catalogue), authenticate, engine, metrics)


class Desk:
    """An open desk: what the ways in, the command line and programs call."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        catalogue: Catalogue,
        handle: Handler,
        authenticate: Authenticate,
        engine: Engine,
        metrics: Metrics,
    ) -> None:
        self.config = config
        self.registry = registry
        self.catalogue = catalogue
        self.handle = handle
        self.identify = authenticate.identify
        self.listen = registry.listen
        self.is_plain = catalogue.is_plain
        self.engine = engine
        self.metrics = metrics

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, caller: Caller = LOCAL) -> Answer:
        """Call a tool by its name, as the owner of this process unless a caller is given."""
        params = {"name": tool, "arguments": dict(arguments or {})}
        return await self.handle(Call(method="tools/call", params=params, caller=caller))

    def input_schema(self, tool: str) -> Mapping[str, Any] | None:
        """A tool's input schema, before live choices are filled in."""
        found = self.catalogue.tool(tool)
        return found.input_schema if found is not None else None

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Whether the desk can do its work, and how each part of it is."""
        try:
            engine = {"state": "ok", "detail": await self.engine.check()}
        except EngineError as error:
            return False, {"engine": {"state": "down", "detail": error.detail}}
        return True, {"engine": engine}


def _callers(auth: AuthConfig) -> dict[bytes, Caller]:
    return {
        bytes.fromhex(key.digest): Caller(
            user=UserId(key.user), tenant=TenantId(key.tenant), roles=frozenset(key.roles), authenticated=True
        )
        for key in auth.keys
    }


def _check_toolsets(wanted: Sequence[str], registry: Registry) -> None:
    there = {tool.toolset for tool in registry.tools.values()}
    if missing := [name for name in wanted if name not in there]:
        raise ConfigError([f"toolsets: {', '.join(missing)} has no tools in this version; there is {', '.join(there)}"])


async def _bring_in_manual(engine: EmbeddedEngine) -> None:
    """Index Refdesk's own documentation, so that a new desk has something to answer from."""
    folder = manual_folder()
    documents = [
        SourceDocument(id=f"refdesk/{path.relative_to(folder).as_posix()}", text=path.read_text("utf-8"))
        for path in sorted(folder.rglob("*.md"))
    ]
    entry = DocumentationSet("refdesk", "docs", "Refdesk manual", __version__, len(documents))
    await engine.replace_set(SHARED, entry, documents)


def manual_folder() -> Path:
    """Where the manual is: inside an installed package, or beside the sources in a checkout."""
    package = Path(__file__).parent
    installed = package / "manual"
    return installed if installed.is_dir() else package.parent.parent / "docs"
