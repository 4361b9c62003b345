"""Composition root: opens the application and puts the policies around it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path

from refdesk.calls import Policy, chain
from refdesk.components import Desk, open_components, register_console, register_servers, register_tools
from refdesk.config.loading import load
from refdesk.config.models import Config
from refdesk.config.rules import require_support
from refdesk.policy.policies import Deadline, Observe, RecordSpan, ResolveNames, open_authentication
from refdesk.policy.rate_limit import RateLimit, has_limits
from refdesk.resilience.limits import MAX_BUCKETS
from refdesk.telemetry.extras import open_reports, open_spans
from refdesk.telemetry.log import Log, iter_secrets
from refdesk.tools.screening import ScreenAnswers

__all__ = ["Desk", "open_desk"]


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
        enter = stack.enter_async_context
        # A program that uses the library shouldn't get a log line per call on its terminal.
        log = log or stack.enter_context(closing(Log("warning", config.logging.format, config.logging.file)))
        log.mask_secrets(iter_secrets(config))
        log.report = await enter(open_reports(config.monitoring.sentry))
        spans = await enter(open_spans(config.monitoring.opentelemetry))
        authenticate = await enter(open_authentication(config.auth, config.data_path, config.token_audience))
        desk = await open_components(config, log, authenticate, stack, servers=servers)
        await register_tools(desk, stack)
        await register_servers(desk, stack)
        if config.console.enabled:
            await register_console(desk, stack)
        policies: list[Policy] = [ResolveNames(desk.registry.find_tool, desk.registry.find_prompt)]
        if spans:
            policies.append(RecordSpan(spans))
        policies.append(Observe(log, desk.metrics))
        if config.auth.required:
            policies.append(authenticate)
        policies.append(desk.permissions)
        if has_limits(config.rate_limits):
            # All users may belong to one tenant, so a single tenant may use the whole table.
            limiter = desk.create_limiter(MAX_BUCKETS)
            policies.append(RateLimit(config.rate_limits, limiter, desk.metrics.count_rate_limited))
        policies.append(Deadline(config.server.request_timeout_seconds, desk.dispatcher.seconds))
        if not desk.blocklist.is_empty:
            policies.append(ScreenAnswers(desk.blocklist))
        desk.handle = chain(policies, desk.dispatcher)
        yield desk
