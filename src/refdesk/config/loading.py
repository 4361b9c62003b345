"""Puts the layers together: defaults, the file, the well-known variables, `REFDESK__` variables, flags; the last wins.

Every layer is an argument; nothing here reads the process's own environment.
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
from refdesk.config.rules import broken_rules
from refdesk.config.server_entries import Entries, read_entries
from refdesk.config.servers import McpServerConfig, ToolRules
from refdesk.config.settings import SERVERS, SETTINGS, Given, place
from refdesk.config.types import MASK, is_encodable, mask_url
from refdesk.config.wording import Fault, explain, quoted, suggestion, unknown
from refdesk.config.yaml_file import read_yaml
from refdesk.errors import ConfigError

FILE_NAME = "refdesk.yaml"
DEFAULT = "default"
COMMAND_LINE = "command line"


ITEMS: Mapping[str, type[BaseModel]] = {"auth.keys": ApiKey, "downstream.presets": ToolRules}
"""What the settings hold that are more than a value."""


def find(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """The file to read when none is named: `REFDESK_CONFIG`, or `refdesk.yaml` in the folder if it is there."""
    if named := environ.get("REFDESK_CONFIG", "").strip():
        return cwd / named
    return cwd / FILE_NAME if (cwd / FILE_NAME).is_file() else None


def load(
    path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any] | None = None, *, serves: bool = True
) -> Config:
    """The configuration that the layers give together, or a ConfigError that lists all that is wrong with them.

    Where nothing `serves`, it need not say who is let in: the first key is made before it can be asked for.
    """
    layers = chain(
        read_yaml(path, environ) if path else (),
        read_environment(environ),
        _read_flags(overrides or {}),
    )
    values, faults = _gather(layers)
    entries = _servers(values, environ)
    faults += entries.faults
    invalid = list(_invalid(values))
    unusable = {fault.key for fault in faults} | {key for key, _ in invalid}
    faults += [fault for _, fault in invalid]
    config = _build({key: given for key, given in values.items() if key not in unusable}, path, entries.warnings)
    faults += broken_rules(config, unusable, serves=serves)
    if faults:
        raise ConfigError(list(dict.fromkeys(map(str, faults))))
    return config


def _read_flags(overrides: Mapping[str, Any]) -> Iterator[Given | Fault]:
    for key, value in overrides.items():
        yield from place(key, value, COMMAND_LINE)


def _gather(items: Iterable[Given | Fault]) -> tuple[dict[str, Given], list[Fault]]:
    values: dict[str, Given] = {}
    faults: list[Fault] = []
    for item in items:
        if isinstance(item, Fault):
            faults.append(item)
        elif isinstance(item.value, str) and not is_encodable(item.value):
            faults.append(Fault(item.source, item.key, "not UTF-8 text"))
        elif item.key in values and values[item.key].source == item.source:
            faults.append(Fault(item.source, item.key, "given in two ways; keep one"))
        else:
            values[item.key] = item
    return values, faults


def read_servers_again(path: Path, environ: Mapping[str, str]) -> Mapping[str, McpServerConfig]:
    """The `mcpServers` of a file that may have changed; a ConfigError when anything in it cannot be read.

    A file that is empty is one that somebody is about to write.
    """
    values, faults = _gather(read_yaml(path, environ))
    if not values and not faults:
        faults = [Fault(path.name, "", f"is empty; write `{SERVERS}: {{}}` to have no servers")]
    faults += _servers(values, environ).faults
    if faults:
        raise ConfigError(list(dict.fromkeys(map(str, faults))))
    servers: Mapping[str, McpServerConfig] = values[SERVERS].value if SERVERS in values else {}
    return servers


def _servers(values: dict[str, Given], environ: Mapping[str, str]) -> Entries:
    """What is given as servers, read and put in its place."""
    given = values.get(SERVERS)
    if given is None:
        return Entries()
    entries = read_entries(given.value, environ, source=given.source, folder=Path.cwd())
    values[SERVERS] = Given(SERVERS, entries.servers, given.source)
    return entries


def _build(values: Mapping[str, Given], file: Path | None = None, warnings: Iterable[Fault] = ()) -> Config:
    sources = {key: values[key].source if key in values else DEFAULT for key in SETTINGS}
    known_of_itself = {"sources": sources, "config_file": file, "warnings": tuple(map(str, warnings))}
    return Config.model_validate({**_nested(values), **known_of_itself})


def _nested(values: Mapping[str, Given]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, given in values.items():
        *sections, name = key.split(".")
        branch = tree
        for section in sections:
            branch = branch.setdefault(section, {})
        branch[name] = given.value
    return tree


def _invalid(values: Mapping[str, Given]) -> Iterator[tuple[str, Fault]]:
    """The settings whose value cannot be used, with the reason."""
    try:
        _build(values)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = _setting_at(detail["loc"])
            yield key, _fault(key, values[key].source, detail)


def _setting_at(location: tuple[int | str, ...]) -> str:
    """The setting that a place in the configuration is, or is inside of."""
    keys = (".".join(map(str, location[:length])) for length in range(1, len(location) + 1))
    return next(key for key in keys if key in SETTINGS)


def _fault(key: str, source: str, detail: ErrorDetails) -> Fault:
    inside = detail["loc"][key.count(".") + 1 :]
    place = key + "".join(f"[{step}]" if isinstance(step, int) else f".{quoted(step)}" for step in inside)
    if detail["type"] in ("extra_forbidden", "invalid_key"):
        known = list(ITEMS[key].model_fields)
        return Fault(source, place, unknown(suggestion(str(inside[-1]), known), known))
    return Fault(source, place, explain(detail, _masked(key, detail["input"]), SETTINGS[key].choices))


def _masked(key: str, value: Any) -> str:
    if SETTINGS[key].is_secret:
        return MASK
    return quoted(mask_url(value) if SETTINGS[key].is_url and isinstance(value, str) else value)
