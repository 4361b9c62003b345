"""What this version can do of what can be set: the rest is refused where it would change answers, else pointed out."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

from refdesk.config.models import Config
from refdesk.errors import ConfigError

NO_EFFECT_YET = ("downstream.",)
"""Settings, or whole sections, whose parts of the product are not there yet."""

TOOLSETS_WITH_TOOLS = ("docs", "r2r", "reader", "convert")
_THERE = ", ".join(TOOLSETS_WITH_TOOLS)


def has_no_effect_yet(key: str) -> bool:
    """Whether a setting is known but does nothing in this version."""
    return key.startswith(NO_EFFECT_YET)


def without_effect(config: Config) -> list[str]:
    """A sentence for every setting that somebody has set in vain."""
    given = (key for key, _, source in config.describe() if source != "default" and has_no_effect_yet(key))
    return [f"{config.sources[key]}: {key} has no effect in this version" for key in given]


def require_support(config: Config) -> None:
    """Raise for what would make this desk answer from something else than was asked for."""
    source = config.sources.get("toolsets", "configuration")
    empty = [toolset for toolset in config.toolsets if toolset not in TOOLSETS_WITH_TOOLS]
    problems = [f"{source}: toolsets: {toolset} has no tools in this version; there are {_THERE}" for toolset in empty]
    if not config.toolsets:
        problems.append(f"{source}: toolsets: none is switched on; there are {_THERE}")
    problems += _missing_extras(config)
    if problems:
        raise ConfigError(problems)


def _missing_extras(config: Config) -> Iterator[str]:
    """What is switched on and not installed."""
    asked_for = {
        "cache.type": (config.cache.type == "redis", "redis", "redis"),
        "rate_limits.type": (config.rate_limits.type == "redis", "redis", "redis"),
        "monitoring.opentelemetry.enabled": (config.monitoring.opentelemetry.enabled, "opentelemetry.sdk", "otel"),
        "monitoring.sentry.enabled": (config.monitoring.sentry.enabled, "sentry_sdk", "sentry"),
    }
    for key, (is_on, package, extra) in asked_for.items():
        if is_on and not _is_installed(package):
            source = config.sources.get(key, "configuration")
            yield f"{source}: {key}: needs an extra that is not installed; run: pip install 'refdesk[{extra}]'"


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
