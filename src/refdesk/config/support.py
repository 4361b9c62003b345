"""What this version can do of what can be set: the rest is refused where it would change answers, else pointed out."""

from __future__ import annotations

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
    if problems:
        raise ConfigError(problems)
