"""What this version can do of what can be set: the rest is refused where it would change answers, else pointed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

from refdesk.config.models import TOOLSETS, Config
from refdesk.errors import ConfigError


def without_effect(config: Config) -> list[str]:
    """A sentence for everything that somebody has set in vain."""
    return list(config.warnings)


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def require_support(config: Config, *, is_installed: Callable[[str], bool] = is_installed) -> None:
    """Raise for what would make this desk answer from something else than was asked for."""
    problems = list(_missing_extras(config, is_installed))
    if not config.toolsets:
        source = config.sources.get("toolsets", "configuration")
        problems.insert(0, f"{source}: toolsets: none is switched on; there are {', '.join(TOOLSETS)}")
    if problems:
        raise ConfigError(problems)


def _missing_extras(config: Config, is_installed: Callable[[str], bool]) -> Iterator[str]:
    """What is switched on and not installed."""
    asked_for = {
        "cache.type": (config.cache.type == "redis", "redis", "redis"),
        "rate_limits.type": (config.rate_limits.type == "redis", "redis", "redis"),
        "monitoring.opentelemetry.enabled": (config.monitoring.opentelemetry.enabled, "opentelemetry.sdk", "otel"),
        "monitoring.sentry.enabled": (config.monitoring.sentry.enabled, "sentry_sdk", "sentry"),
    }
    for key, (is_on, package, extra) in asked_for.items():
        if is_on and not is_installed(package):
            source = config.sources.get(key, "configuration")
            yield f"{source}: {key}: needs an extra that is not installed; run: pip install 'refdesk[{extra}]'"
