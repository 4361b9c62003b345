"""Merges the configuration layers: defaults, YAML file, well-known variables, `REFDESK__` variables, flags.

Later layers win. Every layer is an argument: nothing here reads the process environment. An empty variable counts as
unset.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from refdesk.config.dotenv import DotEnv
from refdesk.config.environment import find_unknown_variables, read_environment
from refdesk.config.messages import Fault, describe_kind, describe_unknown_key, explain, quoted, suggest
from refdesk.config.models import ApiKey, Config
from refdesk.config.placeholders import expand, map_strings
from refdesk.config.rules import REDIS_SOURCE, check_rules, find_warnings, is_installed
from refdesk.config.server_entries import ServerEntries, read_entries
from refdesk.config.server_model import McpServerConfig, ToolRules
from refdesk.config.setting_keys import SERVERS, SETTINGS, Setting, SettingValue, assign
from refdesk.config.types import MASK, is_encodable, mask_url
from refdesk.errors import ConfigError

FILE_NAME = "refdesk.yaml"
DEFAULT = "default"
COMMAND_LINE = "command line"

MAX_DEPTH = 4
"""No setting nests deeper. Deeper values are rejected later and needn't be visited."""

ITEM_MODELS: Mapping[str, type[BaseModel]] = {"auth.keys": ApiKey, "downstream.presets": ToolRules}
"""Models of the items in settings that hold more than plain values."""


def find_config_file(cwd: Path, environ: Mapping[str, str]) -> Path | None:
    """Return the default configuration file: `REFDESK_CONFIG`, else `refdesk.yaml` in the folder if it exists."""
    if explicit := environ.get("REFDESK_CONFIG", "").strip():
        return cwd / explicit
    return cwd / FILE_NAME if (cwd / FILE_NAME).is_file() else None


def load(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Mapping[str, Any] | None = None,
    *,
    serves: bool = True,
    dotenv: DotEnv | None = None,
) -> Config:
    """Merge the layers into a configuration; raise a ConfigError that lists every problem.

    With `serves=False`, access rules are skipped: the first key is created before any key can be required. `dotenv` has
    the variables of `environ` that come from a `.env` file.
    """
    dotenv = dotenv or DotEnv()
    layers = chain(
        read_yaml(path, environ) if path else (),
        read_environment(environ, dotenv.variables),
        *(assign(key, value, COMMAND_LINE) for key, value in (overrides or {}).items()),
    )
    values, faults = _gather(layers)
    if "cache.type" not in values and "cache.redis.url" in values and is_installed("redis"):
        source = values["cache.redis.url"].source
        if source == REDIS_SOURCE:
            values["cache.type"] = SettingValue("cache.type", "redis", source)
    entries = _read_servers(values, environ)
    faults += entries.faults
    invalid = list(_find_invalid(values))
    unusable = {fault.key for fault in faults} | {key for key, _ in invalid}
    faults += [fault for _, fault in invalid]
    config = _build({key: setting for key, setting in values.items() if key not in unusable}, path)
    faults += check_rules(config, unusable, serves=serves)
    if faults:
        raise ConfigError(list(dict.fromkeys(map(str, faults))))
    mentioned = "".join(_read_if_text(file) for file in (path, config.servers_path) if file)
    unknown = find_unknown_variables(environ, mentioned, dotenv.variables)
    warnings = [*dotenv.faults, *entries.warnings, *find_warnings(config), *unknown]
    return config.model_copy(update={"warnings": tuple(map(str, warnings))})


def _read_if_text(path: Path) -> str:
    """Return the text of a file, empty if it can't be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError):
        return ""


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
    entries = read_entries(setting.value, environ, source=setting.source, folder=Path.cwd(), keep_unresolved=True)
    values[SERVERS] = SettingValue(SERVERS, entries.servers, setting.source)
    return entries


def _build(values: Mapping[str, SettingValue], file: Path | None = None) -> Config:
    tree: dict[str, Any] = {
        "sources": {key: values[key].source if key in values else DEFAULT for key in SETTINGS},
        "config_file": file,
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


# YAML file


class _Loader(yaml.SafeLoader):
    """YAML loader without timestamps: `protocol_version: 2025-06-18` is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it so
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            # SafeLoader lets these escape for scalars that don't match their tag.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"not a valid {kind}", node.start_mark) from None


def read_yaml(path: Path, environ: Mapping[str, str]) -> Iterator[SettingValue | Fault]:
    """Yield the settings of a YAML file: one document, no duplicate keys, variables expanded.

    MCP servers have a variable syntax of their own and are left unexpanded.
    """
    try:
        text = path.read_text("utf-8-sig")
    except FileNotFoundError:
        yield Fault(str(path), "", "no such file")
    except OSError as error:
        yield Fault(str(path), "", f"cannot be read: {error.strerror}")
    except ValueError:
        yield Fault(str(path), "", "not UTF-8 text")
    else:
        yield from _read_text(text, path.name, environ)


def _read_text(text: str, source: str, environ: Mapping[str, str]) -> Iterator[SettingValue | Fault]:
    document: Any = {}
    duplicates: list[Fault] = []
    try:
        loader = _Loader(text)
        if (node := loader.get_single_node()) is not None:
            duplicates, document = list(_find_duplicate_keys(node, source, "", set())), loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The parser may quote a secret: it takes a password that starts with * for an alias.
        problem = re.sub(r"\b(alias|anchor|tag|handle) ['\"].*", r"\1 (hidden)", error.problem or "", flags=re.DOTALL)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        yield Fault(source, where, " ".join(f"not valid YAML: {problem}".split()).rstrip(": "))
    except yaml.reader.ReaderError as error:
        yield Fault(source, f"character {error.position + 1}", "character not allowed in YAML")
    except RecursionError:
        yield Fault(source, "", "nested too deeply")
    yield from duplicates
    if document is not None and not isinstance(document, Mapping):
        yield Fault(source, "", f"expected sections at the top level, not {describe_kind(document)}")
        return
    items = list(assign("", document, source))
    enabled = {key: SETTINGS[key].default != "false" for key in SETTINGS if key.endswith(".enabled")}
    enabled |= {item.key: item.value is not False for item in items if isinstance(item, SettingValue)}
    for item in items:
        if isinstance(item, Fault) or item.key == SERVERS:
            yield item
            continue
        problems: list[str] = []
        value = map_strings(item.value, partial(expand, environ=environ, problems=problems), MAX_DEPTH)
        if not problems:
            yield SettingValue(item.key, value, source)
        elif enabled.get(f"{item.key.rpartition('.')[0]}.enabled", True):
            # A section that is switched off may refer to variables that aren't set.
            yield Fault(source, item.key, "; ".join(problems))


def _find_duplicate_keys(node: yaml.Node, source: str, path: str, seen: set[int]) -> Iterator[Fault]:
    """Yield a fault for each key that occurs twice in a mapping. Aliased nodes are visited once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _find_duplicate_keys(item, source, f"{path}[{index}]", seen)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for name, item in node.value:
            key = ".".join(filter(None, (path, quoted(name.value))))
            line = name.start_mark.line + 1
            if isinstance(name, yaml.ScalarNode) and key in lines:
                yield Fault(source, key, f"duplicate key, on lines {lines[key]} and {line}")
            lines.setdefault(key, line)
            yield from _find_duplicate_keys(item, source, key, seen)
