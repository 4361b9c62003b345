"""What a configuration holds in confidence, so that a log can be told to keep it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, SecretStr

from refdesk.config import kinds


def secrets_of(part: BaseModel) -> Iterator[str]:
    """Every secret in a part of the configuration, or in the whole of it: keys, passwords, and those inside of URLs."""
    for _, value in part:
        yield from _secrets_in(value)


def _secrets_in(value: Any) -> Iterator[str]:
    match value:
        case kinds.Url():
            yield from _passwords_in(value.get_secret_value())
        case SecretStr():
            yield value.get_secret_value()
        case BaseModel():
            yield from secrets_of(value)
        case Mapping():
            for each in value.values():
                yield from _secrets_in(each)
        case tuple() | list():
            for each in value:
                yield from _secrets_in(each)


def _passwords_in(url: str) -> Iterator[str]:
    """As it is written in the address, and as it is meant; an address itself is no secret, but what it asks may be."""
    parts = urlsplit(url)
    if parts.password:
        yield from {parts.password, unquote(parts.password)}
    if parts.query:
        yield parts.query
