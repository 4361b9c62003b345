"""Collects the secrets of a configuration, to be masked in the log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from refdesk.config import McpServerConfig, types
from refdesk.config.secrets import find_url_secrets


def iter_secrets(part: BaseModel) -> Iterator[str]:
    """Yield every secret in a configuration or a part of it: keys, passwords, and secrets in URLs."""
    for _, value in part:
        yield from _iter_value_secrets(value)
    if isinstance(part, McpServerConfig):
        yield from part.hidden


def _iter_value_secrets(value: Any) -> Iterator[str]:
    match value:
        case types.Url():
            yield from find_url_secrets(value.get_secret_value())
        case SecretStr():
            yield value.get_secret_value()
        case BaseModel():
            yield from iter_secrets(value)
        case Mapping():
            for each in value.values():
                yield from _iter_value_secrets(each)
        case tuple() | list():
            for each in value:
                yield from _iter_value_secrets(each)
