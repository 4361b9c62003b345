"""Composition root: builds the application and its policies."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from refdesk.calls import LOCAL, Answer, Call, Caller, Handler, Policy, chain
from refdesk.components import Components, open_components, register_console, register_servers, register_tools
from refdesk.config import Config, load, require_support
from refdesk.console.console import Console
from refdesk.errors import DependencyError
from refdesk.inbound.access import LOOPBACK_NAMES
from refdesk.policy.authenticate import Authenticate, open_authentication
from refdesk.policy.keys import FILE_NAME
from refdesk.policy.policies import Deadline, Observe, RecordSpan, ResolveNames
from refdesk.policy.rate_limit import RateLimit, has_limits
from refdesk.resilience.limits import MAX_BUCKETS
from refdesk.telemetry import Log, Spans, iter_secrets, open_reports, open_spans
from refdesk.tools.gateway import Gateway


@asynccontextmanager
async def open_desk(
    config: Config | str | os.PathLike[str] | None = None, *, log: Log | None = None, servers: bool = True
) -> AsyncIterator[Desk]:
    """Open Refdesk. `config` is a configuration, the path of one, or None for the defaults.

    Without `servers`, downstream servers aren't started, and their tools aren't available.
    """
    if not isinstance(config, Config):
        config = load(Path(config) if config is not None else None, os.environ)
    require_support(config)
    async with AsyncExitStack() as stack:
        # A program that uses the library shouldn't get a log line per call on its terminal.
        log = log or stack.enter_context(closing(Log("warning", config.logging.format, config.logging.file)))
        log.mask_secrets(iter_secrets(config))
        log.set_reporter(await stack.enter_async_context(open_reports(config.monitoring.sentry)))
        spans = await stack.enter_async_context(open_spans(config.monitoring.opentelemetry))
        audience = config.token_audience
        authenticate = await stack.enter_async_context(open_authentication(config.auth, config.data_path, audience))
        trusts_all_callers = partial(_trusts_all_callers, config, authenticate)
        components = await open_components(config, log, stack, servers=servers, trusts_all_callers=trusts_all_callers)
        await register_tools(components, stack)
        gateway = await register_servers(components, stack)
        console = await register_console(components, authenticate, stack) if config.console.enabled else None
        policies = _build_policies(components, authenticate, spans)
        yield Desk(components, chain(policies, components.dispatcher), authenticate, gateway, console)


def _trusts_all_callers(config: Config, authenticate: Authenticate) -> bool:
    """Return whether every caller is an administrator: without keys, on loopback only."""
    server = config.server
    is_private = server.is_loopback and LOOPBACK_NAMES.issuperset(server.allowed_hosts)
    has_keys = authenticate.has_keys or (config.data_path / FILE_NAME).exists()
    return is_private and not config.auth.required and not has_keys


def _build_policies(components: Components, authenticate: Authenticate, spans: Spans | None) -> Sequence[Policy]:
    """Build the policies, outermost first."""
    config = components.config
    # All users may belong to one tenant, so a single tenant may use the whole table.
    limited = has_limits(config.rate_limits)
    limits = partial(RateLimit, config.rate_limits, refused=components.metrics.count_rate_limited)
    return [
        ResolveNames(components.registry.find_tool, components.registry.find_prompt),
        *([RecordSpan(spans)] if spans else []),
        Observe(components.log, components.metrics),
        *([authenticate] if config.auth.required else []),
        components.permissions,
        *([limits(components.limits(MAX_BUCKETS))] if limited else []),
        Deadline(config.server.request_timeout_seconds, components.dispatcher.seconds),
    ]


class Desk:
    """The open application, used by transports, the CLI and programs."""

    def __init__(
        self,
        components: Components,
        handle: Handler,
        authenticate: Authenticate,
        gateway: Gateway,
        console: Console | None,
    ) -> None:
        self.registry = components.registry
        self.handle = handle
        self.identify = authenticate.identify
        self.scopes_for = components.permissions.scopes_for
        self.listen = components.registry.listen
        self.has_header_params = components.dispatcher.has_header_params
        self.input_schema = components.dispatcher.input_schema
        self.engine = components.engine
        self.conversions = components.conversions
        self.console = console
        self.metrics = components.metrics
        self.subscribe = gateway.subscribe
        self.unsubscribe = gateway.unsubscribe
        self.set_level = gateway.set_level
        self.instructions = gateway.instructions
        self._authenticate = authenticate
        self._parts = components

    @property
    def has_keys(self) -> bool:
        """Whether callers are authenticated. Keys can be created while the application is open."""
        return self._authenticate.has_keys

    async def call(self, tool: str, arguments: Mapping[str, Any] | None = None, *, caller: Caller = LOCAL) -> Answer:
        """Call a tool by name, as the local user unless a caller is given."""
        given = dict(arguments) if isinstance(arguments, Mapping) else arguments
        params = {"name": tool, "arguments": given}
        return await self.handle(Call(method="tools/call", params=params, caller=caller))

    async def measure(self) -> None:
        """Update the metrics that are only measured on request."""
        with suppress(DependencyError):  # reported by `readiness`, and the last values stay
            for status, documents in (await self.engine.waiting()).items():
                self.metrics.set_queue_length(status, documents)

    async def readiness(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the server is ready, and the state of each component."""
        checks: dict[str, Any] = {dependency.name: dependency.describe() for dependency in self._parts.dependencies}
        checks |= {
            "convert": self.conversions.check(),
            "cache": self._describe_cache(),
            **self._authenticate.describe(),
        }
        if servers := self._parts.fleet.describe():
            checks["downstream"] = {"state": _summarize_servers(servers), "servers": self._redact_servers(servers)}
        try:
            engine = {"state": "ok", "detail": await self.engine.check()}
        except DependencyError as error:
            return False, {"engine": {"state": "down", "detail": error.detail}, **checks}
        return True, {"engine": engine, **checks}

    def _redact_servers(self, servers: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        """Reduce servers to their states if authentication is required, because the endpoint is public."""
        if not self._parts.config.auth.required:
            return servers
        return {name: {"state": server["state"]} for name, server in servers.items()}

    def _describe_cache(self) -> dict[str, Any]:
        """Return the cache's state. It's ok even if Redis is down, since only speed depends on it."""
        cache, redis = self._parts.cache, self._parts.redis
        where = {} if redis is None else {"redis": redis.describe()}
        return {"state": "ok", "entries": len(cache), "bytes": cache.bytes, **where}


def _summarize_servers(servers: Mapping[str, Mapping[str, Any]]) -> str:
    """Summarize the downstream servers. Refdesk works without them, so an error only means `degraded`."""
    is_healthy = all(server["state"] != "Error" for server in servers.values())
    return "ok" if is_healthy else "degraded"
