"""Downloads and refusals of a fetcher, with name servers that a test scripts."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import pytest

from refdesk.documents.fetch import Fetched, FetchRules, open_fetcher
from refdesk.documents.ssrf import Resolver, parse_networks, resolve
from refdesk.errors import CannotFetch

LOOPBACK = parse_networks(["127.0.0.1/32"])
OPEN = FetchRules(allow=LOOPBACK, respect_robots=False, seconds=60)


def answering(*answers: Sequence[str]) -> Resolver:
    """A name server that gives one answer after the other, and the last one for ever."""
    left = list(answers)

    async def resolver(host: str, port: int) -> Sequence[str]:
        return left.pop(0) if len(left) > 1 else left[0]

    return resolver


async def download(url: str, rules: FetchRules = OPEN, resolver: Resolver = resolve) -> tuple[Fetched, bytes]:
    async with open_fetcher(rules, resolver=resolver) as fetcher:
        fetched = await fetcher.fetch(url)
        with fetched.file:
            return fetched, fetched.file.read()


async def refusal(url: str, rules: FetchRules = OPEN, resolver: Resolver = resolve) -> str:
    with pytest.raises(CannotFetch) as caught:
        await download(url, rules, resolver)
    return str(caught.value)


def connections(listener: socket.socket) -> int:
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1


def reaching(listener: socket.socket) -> FetchRules:
    """Rules under which only the address can be what is wrong."""
    return FetchRules(ports=(listener.getsockname()[1],), seconds=60)
