"""Reads settings from a YAML file: one document, no duplicate keys, `${VAR}` and `${VAR:-default}` expanded.

Values aren't interpreted here, except that MCP servers have their own variable syntax and are left unexpanded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from refdesk.config.settings import SERVERS, SettingValue, assign
from refdesk.config.variables import expand, map_strings
from refdesk.config.wording import Fault, describe_kind, quoted

MAX_DEPTH = 4
"""No setting nests deeper. Deeper values are rejected later and needn't be visited."""


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
    """Yield the settings of a YAML file."""
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
    for item in assign("", document, source):
        if isinstance(item, Fault) or item.key == SERVERS:
            yield item
            continue
        problems: list[str] = []
        value = map_strings(item.value, partial(expand, environ=environ, problems=problems), MAX_DEPTH)
        yield Fault(source, item.key, "; ".join(problems)) if problems else SettingValue(item.key, value, source)


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
