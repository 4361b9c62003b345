"""Settings that this installation can't honour: rejected if they would change results, else reported as warnings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

from refdesk.config.models import TOOLSETS, Config
from refdesk.errors import ConfigError


def list_ineffective_settings(config: Config) -> list[str]:
    """List a warning for every setting that has no effect."""
    return list(config.warnings)


def is_installed(package: str) -> bool:
    """Whether a package can be imported."""
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


def require_support(config: Config, *, is_installed: Callable[[str], bool] = is_installed) -> None:
    """Raise a ConfigError if a setting needs an extra that isn't installed, or if no toolset is enabled."""
    problems = list(_find_missing_extras(config, is_installed))
    if not config.toolsets:
        source = config.sources.get("toolsets", "configuration")
        problems.insert(0, f"{source}: toolsets: no toolset is enabled; available: {', '.join(TOOLSETS)}")
    if problems:
        raise ConfigError(problems)


def _find_missing_extras(config: Config, is_installed: Callable[[str], bool]) -> Iterator[str]:
    """Yield a problem for each enabled feature whose package isn't installed."""
    requirements = {
        "cache.type": (config.cache.type == "redis", "redis", "redis"),
        "rate_limits.type": (config.rate_limits.type == "redis", "redis", "redis"),
        "monitoring.opentelemetry.enabled": (config.monitoring.opentelemetry.enabled, "opentelemetry.sdk", "otel"),
        "monitoring.sentry.enabled": (config.monitoring.sentry.enabled, "sentry_sdk", "sentry"),
    }
    for key, (is_on, package, extra) in requirements.items():
        if is_on and not is_installed(package):
            source = config.sources.get(key, "configuration")
            yield f"{source}: {key}: needs an extra that is not installed; run: pip install 'refdesk[{extra}]'"
