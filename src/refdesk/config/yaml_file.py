"""Reads a YAML file into settings: one plain document, no key twice, `${VAR}` and `${VAR:-default}` filled in.

The only reader of YAML; knows nothing of what the values mean, but that MCP servers have variables of their own kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from refdesk.config.settings import SERVERS, Given, place
from refdesk.config.variables import fill, map_texts
from refdesk.config.wording import Fault, kind_of, quoted

DEEPEST = 4
"""No setting nests deeper; what does is refused later, and need not be walked."""


class _Loader(yaml.SafeLoader):
    """YAML without dates, which no setting is: `protocol_version: 2025-06-18` is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it so
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError):
            # The base class lets these escape for scalars that do not fit their tag.
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"not a valid {kind}", node.start_mark) from None


def read_yaml(path: Path, environ: Mapping[str, str]) -> Iterator[Given | Fault]:
    """What the file sets."""
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


def _read_text(text: str, source: str, environ: Mapping[str, str]) -> Iterator[Given | Fault]:
    try:
        document, twice = _parse(text)
    except yaml.MarkedYAMLError as error:
        yield Fault(source, _position(error), _complaint(error))
    except yaml.reader.ReaderError as error:
        yield Fault(source, f"character {error.position + 1}", "this character must not stand in YAML")
    except RecursionError:
        yield Fault(source, "", "nested too deeply")
    else:
        yield from (Fault(source, key, f"given twice, on lines {first} and {again}") for key, first, again in twice)
        yield from _settings(document, source, environ)


def _parse(text: str) -> tuple[Any, list[tuple[str, int, int]]]:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return {}, []
        twice = list(_given_twice(node, "", set()))
        return loader.construct_document(node), twice
    finally:
        loader.dispose()


def _given_twice(node: yaml.Node, path: str, seen: set[int]) -> Iterator[tuple[str, int, int]]:
    """The keys that a mapping has more than once, with both lines; what an alias repeats is looked at once."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _given_twice(item, f"{path}[{index}]", seen)
    if isinstance(node, yaml.MappingNode):
        lines: dict[str, int] = {}
        for name, item in node.value:
            key = ".".join(filter(None, (path, quoted(name.value))))
            line = name.start_mark.line + 1
            if isinstance(name, yaml.ScalarNode) and key in lines:
                yield key, lines[key], line
            lines.setdefault(key, line)
            yield from _given_twice(item, key, seen)


def _position(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _complaint(error: yaml.MarkedYAMLError) -> str:
    # What the parser quotes may be a secret: a password that begins with * is an alias to it.
    problem = re.sub(r"\b(alias|anchor|tag|handle) ['\"].*", r"\1 (hidden)", error.problem or "", flags=re.DOTALL)
    return " ".join(f"not valid YAML: {problem}".split()).rstrip(": ")


def _settings(document: Any, source: str, environ: Mapping[str, str]) -> Iterator[Given | Fault]:
    if document is not None and not isinstance(document, Mapping):
        yield Fault(source, "", f"expected sections at the top, not {kind_of(document)}")
        return
    for item in place("", document, source):
        yield _expanded(item, environ) if isinstance(item, Given) else item


def _expanded(given: Given, environ: Mapping[str, str]) -> Given | Fault:
    if given.key == SERVERS:
        return given
    problems: list[str] = []
    value = map_texts(given.value, lambda text: fill(text, environ, problems), DEEPEST)
    if problems:
        return Fault(given.source, given.key, "; ".join(problems))
    return Given(given.key, value, given.source)
