"""Merges the configuration layers: defaults, YAML file, well-known variables, `REFDESK__` variables, flags.

Later layers win. Every layer is an argument: nothing here reads the process environment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from refdesk.config.environment import read_environment
from refdesk.config.models import ApiKey, Config
from refdesk.config.rules import check_rules
from refdesk.config.server_entries import ServerEntries, read_entries
from refdesk.config.server_model import McpServerConfig, ToolRules
from refdesk.config.settings import SERVERS, SETTINGS, Setting, SettingValue, assign
from refdesk.config.types import MASK, is_encodable, mask_url
from refdesk.config.wording import Fault, describe_unknown_key, explain, quoted, suggest
from refdesk.config.yaml_file import read_yaml
from refdesk.errors import ConfigError

FILE_NAME = "refdesk.yaml"
DEFAULT = "default"
COMMAND_LINE = "command line"

ITEM_MODELS: Mapping[str, type[BaseModel]] = {"auth.keys": ApiKey, "downstream.presets": ToolRules}
"""Models of the items in settings that hold more than plain values."""


def find_config_file(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the default configuration file: `REFDESK_CONFIG`, else `refdesk.yaml` in the folder if it exists."""
    if explicit := environ.get("REFDESK_CONFIG", "").strip():
        return cwd / explicit
    return cwd / FILE_NAME if (cwd / FILE_NAME).is_file() else None


def load(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None, *, serves: bool = True
) -> Config:
    """Merge the layers into a configuration; raise a ConfigError that lists every problem.

    With `serves=False`, access rules are skipped: the first key is created before any key can be required.
    """
    layers = chain(
        read_yaml(path, environ) if path else (),
        read_environment(environ),
        *(assign(key, value, COMMAND_LINE) for key, value in (overrides or {}).items()),
    )
    values, faults = _gather(layers)
    entries = _read_servers(values, environ)
    faults += entries.faults
    invalid = list(_find_invalid(values))
    unusable = {fault.key for fault in faults} | {key for key, _ in invalid}
    faults += [fault for _, fault in invalid]
    config = _build({key: setting for key, setting in values.items() if key not in unusable}, path, entries.warnings)
    faults += check_rules(config, unusable, serves=serves)
    if faults:
        raise ConfigError(list(dict.fromkeys(map(str, faults))))
    return config


def _gather(items: Iterable[SettingValue | Fault]) -> tuple[dict[str, SettingValue], list[Fault]]:
    values: dict[str, SettingValue] = {}
    faults: list[Fault] = []
    for item in items:
        if isinstance(item, Fault):
            faults.append(item)
        elif isinstance(item.value, str) and not is_encodable(item.value):
            faults.append(Fault(item.source, item.key, "not UTF-8 text"))
        elif item.key in values and values[item.key].source == item.source:
            faults.append(Fault(item.source, item.key, "set twice under different names; keep one"))
        else:
            values[item.key] = item
    return values, faults


def load_servers_again(path: Path, environ: Mapping[str, str]) -> Mapping[str, McpServerConfig]:
    """Reload the `mcpServers` of a file that may have changed; raise a ConfigError if any part of it is invalid.

    An empty file is an error: an editor may be about to write it.
    """
    values, faults = _gather(read_yaml(path, environ))
    if not values and not faults:
        faults = [Fault(path.name, "", f"is empty; write `{SERVERS}: {{}}` for no servers")]
    faults += _read_servers(values, environ).faults
    if faults:
        raise ConfigError(list(dict.fromkeys(map(str, faults))))
    servers: Mapping[str, McpServerConfig] = values[SERVERS].value if SERVERS in values else {}
    return servers


def _read_servers(values: dict[str, SettingValue], environ: Mapping[str, str]) -> ServerEntries:
    """Parse the `mcpServers` setting and replace its raw value in place."""
    setting = values.get(SERVERS)
    if setting is None:
        return ServerEntries()
    entries = read_entries(setting.value, environ, source=setting.source, folder=Path.cwd())
    values[SERVERS] = SettingValue(SERVERS, entries.servers, setting.source)
    return entries


def _build(values: Mapping[str, SettingValue], file: Path | None = None, warnings: Iterable[Fault] = ()) -> Config:
    tree: dict[str, Any] = {
        "sources": {key: values[key].source if key in values else DEFAULT for key in SETTINGS},
        "config_file": file,
        "warnings": tuple(map(str, warnings)),
    }
    for key, setting in values.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = setting.value
    return Config.model_validate(tree)


def _find_invalid(values: Mapping[str, SettingValue]) -> Iterator[tuple[str, Fault]]:
    """Yield each setting whose value fails validation, with the reason."""
    try:
        _build(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            location = detail["loc"]
            keys = (".".join(map(str, location[:length])) for length in range(1, len(location) + 1))
            key = next(key for key in keys if key in SETTINGS)
            yield key, _to_fault(SETTINGS[key], values[key].source, detail)


def _to_fault(setting: Setting, source: str, detail: ErrorDetails) -> Fault:
    inside, value = detail["loc"][setting.key.count(".") + 1 :], detail["input"]
    location = setting.key + "".join(f"[{step}]" if isinstance(step, int) else f".{quoted(step)}" for step in inside)
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        known = list(ITEM_MODELS[setting.key].model_fields)
        return Fault(source, location, describe_unknown_key(suggest(str(inside[-1]), known), known))
    shown = quoted(mask_url(value) if setting.is_url and isinstance(value, str) else value)
    return Fault(source, location, explain(detail, MASK if setting.is_secret else shown, setting.choices))
