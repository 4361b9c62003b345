"""SSRF protection: which addresses downloads may connect to.

A name is resolved once, every address in the answer is checked, and the connection goes to one of exactly those. No
second lookup can return something else. Each address is checked again when its socket is created, which also covers
URLs that name an address.
"""

from __future__ import annotations

import socket
import string
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any
from urllib.parse import quote, urlsplit

import anyio.to_thread
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from refdesk.errors import CannotFetch, CannotReach

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a host name as text. Raises `OSError` if it has none."""

MAX_URL_CHARACTERS = 8000
"""Length that RFC 9110 recommends every server to support."""

MAX_HOST_CHARACTERS = 253
"""Longest DNS name."""

MAX_ADDRESSES_TRIED = 4
"""All addresses are checked; this many are tried."""

_NOT_PUBLIC_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; metadata service of a cloud provider
        "127.0.0.0/8",
        "168.63.129.16/32",  # host agent of a cloud provider, on a public address
        "169.254.0.0/16",  # link-local: metadata services
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments; metadata service of a cloud provider
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)

_GLOBAL_V6 = IPv6Network("2000::/3")
"""All global unicast addresses. Loopback, link-local, private, multicast, v4-mapped and -compatible addresses and the
well-known NAT64 prefix are outside."""

_NOT_PUBLIC_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
        "2001:db8::/32",
        "2002::/16",  # 6to4: carries any IPv4 address
        "3fff::/20",
    )
)

_ISATAP_MARKS = (0x00005EFE, 0x02005EFE)
"""Upper half of an interface identifier whose lower half is an IPv4 address."""


def is_public(address: Address) -> bool:
    """Whether an address is globally reachable; tunnels to IPv4 addresses aren't."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    if address.scope_id or address not in _GLOBAL_V6 or any(address in network for network in _NOT_PUBLIC_V6):
        return False
    return int(address) >> 32 & 0xFFFFFFFF not in _ISATAP_MARKS


def parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse networks such as `10.1.0.0/16`, or single addresses. Raises `ValueError`."""
    return tuple(ip_network(text) for text in texts)


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Allowed addresses: public ones on common ports, and networks that the operator allows."""

    allow: tuple[Network, ...]
    ports: tuple[int, ...]

    def allows(self, address: Address) -> bool:
        """Whether the operator allows this address, on any port; scoped addresses never are."""
        scoped = isinstance(address, IPv6Address) and address.scope_id is not None
        return not scoped and any(address in network for network in self.allow if network.version == address.version)

    def check(self, host: str, port: int, addresses: Sequence[Address]) -> None:
        """Raise unless every address is allowed; one that isn't rejects the host."""
        others = [address for address in addresses if not self.allows(address)]
        if not addresses or not all(is_public(address) for address in others):
            raise make_no_address_error(host)
        if others and port not in self.ports:
            known = ", ".join(map(str, self.ports))
            raise CannotFetch(
                f"Port {port} of {host} is not one that documents are fetched from. Use one of {known}, "
                "or have the operator allow the host's network."
            )


def make_no_address_error(host: str) -> CannotFetch:
    """Build one error for both unknown and internal hosts, so that they can't be told apart."""
    return CannotFetch(
        f"{host} has no public address, so nothing was fetched. Check the spelling; a host inside a private network "
        "can be fetched from only when the operator allows that network."
    )


async def resolve(host: str, port: int) -> Sequence[str]:
    """Resolve a host in a thread that is abandoned on cancellation, since a slow name server would block it."""

    def look_up() -> Sequence[str]:
        found: list[str] = []
        for *_, sockaddr in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            address, scope = str(sockaddr[0]), sockaddr[3] if len(sockaddr) == 4 else 0
            found.append(f"{address}%{scope}" if scope and "%" not in address else address)
        return found

    return await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True)


@dataclass(frozen=True, slots=True)
class CheckedResolver(AbstractResolver):
    """Resolver that only returns addresses if its policy allows all addresses of the host."""

    policy: AddressPolicy
    look_up: Resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        try:
            texts = await self.look_up(host, port)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise CannotReach(f"The name server did not answer for {host}. Try again later.") from error
            raise make_no_address_error(host) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid name
            raise make_no_address_error(host) from error
        addresses = list(dict.fromkeys(ip_address(text) for text in texts))
        self.policy.check(host, port, addresses)
        return [
            ResolveResult(hostname=host, host=str(address), port=port, family=family, proto=0, flags=0)
            for address in addresses[:MAX_ADDRESSES_TRIED]
        ]

    def create_socket(self, address_info: tuple[int, int, int, str, tuple[Any, ...]]) -> socket.socket:
        """Create the socket for a connection, once more checking the address it will connect to."""
        family, kind, protocol, _, (host, port, *_) = address_info
        self.policy.check(host, port, [ip_address(host)])
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Do nothing: there are no resources."""


def parse_url(text: str) -> URL:
    """Parse a plain http(s) URL without its fragment; anything ambiguous between parsers is rejected.

    Path and query are sent as they are, except for dot segments and characters that need percent-encoding.
    """
    if len(text) > MAX_URL_CHARACTERS:
        raise CannotFetch(f"The URL is longer than {MAX_URL_CHARACTERS} characters. Give a shorter one.")
    shown = repr(text.rpartition("@")[2][:200])
    if not text.isprintable() or " " in text or "\\" in text:
        raise CannotFetch(f"The URL {shown} has spaces, backslashes or control characters in it. Percent-encode them.")
    try:
        parts = urlsplit(text)
        port = parts.netloc.rpartition(":")[2]
        if parts.scheme not in ("http", "https"):
            raise CannotFetch(f"{shown} is not an http or https URL; other kinds are not fetched.")
        if "@" in parts.netloc:
            raise CannotFetch("The URL contains a user name or password, which are not sent. Remove the part before @.")
        if not parts.hostname or len(parts.hostname) > MAX_HOST_CHARACTERS:
            raise CannotFetch(f"{shown} has no valid host. Check the URL.")
        if port.isdecimal() and not 0 < int(port) < 65536:
            raise CannotFetch(f"{shown} has a port outside 1 to 65535. Check the URL.")
        site = URL(f"{parts.scheme}://{parts.netloc}/")
        if not site.raw_host or len(site.raw_host) > MAX_HOST_CHARACTERS:
            raise CannotFetch(f"{shown} has no valid host. Check the URL.")
    except ValueError as error:
        raise CannotFetch(f"{shown} is not a valid URL. Give one such as https://example.com/guide.") from error
    path, query = _remove_dot_segments(_quote(parts.path)), _quote(parts.query)
    return URL(str(site).removesuffix("/") + path + (f"?{query}" if query else ""), encoded=True)


def _quote(text: str) -> str:
    return quote(text, safe=string.ascii_letters + string.digits + string.punctuation)


def _remove_dot_segments(path: str) -> str:
    """Resolve `.` and `..` as RFC 3986 says, so that the path that robots.txt allows is the one the server uses."""
    resolved: list[str] = []
    *folders, last = path.removeprefix("/").split("/")
    for segment in (*folders, *((last, "") if last in (".", "..") else (last,))):
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    return "/" + "/".join(resolved)
