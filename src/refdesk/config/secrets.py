"""Secrets inside of texts that are no secrets themselves: the arguments of a command, a header's value, an address."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote, urlsplit

from refdesk.config.types import MASK, mask_url
from refdesk.config.variables import sounds_confidential

SHORTEST = 4
"""Characters; to mask shorter ones would garble innocent words and hide nothing."""

_OPTION = re.compile(r"--?[\w.-]+")
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[\w.-]+)(?P<sign>=|:\s*)(?P<value>.+)", re.DOTALL)
_SCHEME = re.compile(r"(?:bearer|basic|token|apikey)\s+(?P<value>\S.*)", re.I | re.DOTALL)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)
_RANDOM = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[\w~.=-]{20,}")
"""A step of a path that no person has written: some services put a key there."""


def secrets_in_arguments(args: Sequence[str]) -> Iterator[str]:
    """What is secret in a command's arguments, by what stands before it."""
    for before, word in zip(("", *args), args, strict=False):
        assigned = _ASSIGNMENT.fullmatch(word)
        if _ADDRESS.match(word):
            yield from secrets_in_address(word)
        elif assigned and sounds_confidential(assigned["name"]):
            yield assigned["value"]
            yield from token_in(assigned["value"])
        elif _OPTION.fullmatch(before) and sounds_confidential(before) and not word.startswith("-"):
            yield word
        else:
            yield from token_in(word)


def secrets_in_address(url: str) -> Iterator[str]:
    """A password as it is written and as it is meant; an address itself is no secret, but what it asks may be."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        yield from {parts.password, unquote(parts.password)}
    if parts.query:
        yield parts.query


def token_in(header: str) -> Iterator[str]:
    """What follows the word `Bearer`, or another such, in the value of a header."""
    if found := _SCHEME.fullmatch(header.strip()):
        yield found["value"]


def without(secrets: Iterable[str], text: str) -> str:
    """The text with these masked, the longest first: one may begin with another."""
    for secret in sorted({secret for secret in secrets if len(secret) >= SHORTEST}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def masked_arguments(args: Sequence[str], secrets: Iterable[str]) -> tuple[str, ...]:
    """The arguments as they may be shown."""
    hidden = list(secrets)
    return tuple(without(hidden, masked_address(word) if _ADDRESS.match(word) else word) for word in args)


def masked_address(url: str) -> str:
    """The address without its credentials, its query, and steps that look like a key."""
    start, separator, path = mask_url(url).partition("://")
    host, slash, steps = path.partition("/")
    return f"{start}{separator}{host}{slash}{_RANDOM.sub(MASK, steps)}"
