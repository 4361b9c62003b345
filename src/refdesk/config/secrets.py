"""Finds and masks secrets inside texts that aren't secret as a whole: command arguments, header values, URLs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import unquote, urlsplit

from refdesk.config.placeholders import is_secret_name
from refdesk.config.types import MASK, mask_url

MIN_SECRET_LENGTH = 4
"""Characters. Masking shorter secrets would garble ordinary words and hide nothing."""

_OPTION = re.compile(r"--?[\w.-]+")
_ASSIGNMENT = re.compile(r"(?P<name>-{0,2}[\w.-]+)(?P<sign>=|:\s*)(?P<value>.+)", re.DOTALL)
_SCHEME = re.compile(r"(?:bearer|basic|token|apikey)\s+(?P<value>\S.*)", re.I | re.DOTALL)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.I)
_RANDOM_SEGMENT = re.compile(r"(?=[^/]*\d)(?=[^/]*[A-Za-z])[\w~.=-]{20,}")
"""A path segment that looks random: some services put a key there."""


def find_argument_secrets(args: Sequence[str]) -> Iterator[str]:
    """Yield the secrets in a command's arguments, judged by the option before them."""
    for before, word in zip(("", *args), args, strict=False):
        assigned = _ASSIGNMENT.fullmatch(word)
        if _URL.match(word):
            yield from find_url_secrets(word)
        elif assigned and is_secret_name(assigned["name"]):
            yield assigned["value"]
            yield from find_token(assigned["value"])
        elif _OPTION.fullmatch(before) and is_secret_name(before) and not word.startswith("-"):
            yield word
        else:
            yield from find_token(word)


def find_url_secrets(url: str) -> Iterator[str]:
    """Yield the secrets in a URL: its query, and its password both raw and percent-decoded."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return
    if parts.password:
        yield from {parts.password, unquote(parts.password)}
    if parts.query:
        yield parts.query


def find_token(header: str) -> Iterator[str]:
    """Yield the credential after `Bearer` or a similar scheme in a header value."""
    if found := _SCHEME.fullmatch(header.strip()):
        yield found["value"]


def without(secrets: Iterable[str], text: str) -> str:
    """Mask secrets in a text, longest first: one secret may be a prefix of another."""
    for secret in sorted({secret for secret in secrets if len(secret) >= MIN_SECRET_LENGTH}, key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def mask_arguments(args: Sequence[str], secrets: Iterable[str]) -> tuple[str, ...]:
    """Return the arguments with secrets masked."""
    hidden = list(secrets)
    return tuple(without(hidden, mask_address(word) if _URL.match(word) else word) for word in args)


def mask_address(url: str) -> str:
    """Return a URL without credentials, query, and path segments that look like keys."""
    start, separator, path = mask_url(url).partition("://")
    host, slash, segments = path.partition("/")
    return f"{start}{separator}{host}{slash}{_RANDOM_SEGMENT.sub(MASK, segments)}"
