"""SSRF protection: which addresses downloads may connect to.

A name is resolved once, every address in the answer is checked, and the connection goes to one of exactly those. No
second lookup can return something else.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import anyio
import anyio.to_thread
import httpcore2
import httpx2

from refdesk.errors import CannotFetch, CannotReach

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns all addresses of a host name as text. Raises `OSError` if it has none."""

MAX_URL_CHARACTERS = 8000
"""Length that RFC 9110 recommends every server to support."""

MAX_HOST_CHARACTERS = 253
"""Longest DNS name."""

CONNECT_SECONDS = 5.0
"""Connect timeout per address, which leaves time for the host's other addresses."""

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
        answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [_format_sockaddr(sockaddr) for *_, sockaddr in answers]

    return await anyio.to_thread.run_sync(look_up, abandon_on_cancel=True)


def _format_sockaddr(sockaddr: tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]) -> str:
    scope = sockaddr[3] if len(sockaddr) == 4 else 0
    host = str(sockaddr[0])
    return f"{host}%{scope}" if scope and "%" not in host else host


class CheckedBackend(httpcore2.AsyncNetworkBackend):
    """Network backend that resolves a name once and connects only to addresses its policy allows."""

    def __init__(self, policy: AddressPolicy, resolver: Resolver) -> None:
        self._policy = policy
        self._resolve = resolver
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is the library's
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        addresses = await self._resolve_addresses(host, port)
        self._policy.check(host, port, addresses)
        *others, last = addresses[:MAX_ADDRESSES_TRIED]
        for address in others:
            try:
                return await self._connect(address, port)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._connect(last, port)

    async def _connect(self, address: Address, port: int) -> httpcore2.AsyncNetworkStream:
        return _TlsSafeStream(await self._network.connect_tcp(str(address), port, timeout=CONNECT_SECONDS))

    async def _resolve_addresses(self, host: str, port: int) -> Sequence[Address]:
        try:
            texts = await self._resolve(host, port)
        except socket.gaierror as error:
            if error.errno == socket.EAI_AGAIN:
                raise CannotReach(f"The name server did not answer for {host}. Try again later.") from error
            raise make_no_address_error(host) from error
        except (OSError, UnicodeError) as error:  # UnicodeError: not a valid name
            raise make_no_address_error(host) from error
        return list(dict.fromkeys(ip_address(text) for text in texts))


class _TlsSafeStream(httpcore2.AsyncNetworkStream):
    """Stream that is closed if a deadline cancels the TLS handshake; the library's own would leak."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is the library's
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stream.aclose()
            raise

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def parse_url(text: str) -> httpx2.URL:
    """Parse a plain http(s) URL without its fragment; anything ambiguous between parsers is rejected."""
    if len(text) > MAX_URL_CHARACTERS:
        raise CannotFetch(f"The URL is longer than {MAX_URL_CHARACTERS} characters. Give a shorter one.")
    if not text.isprintable() or " " in text or "\\" in text:
        raise CannotFetch(
            f"The URL {_format_url(text)} has spaces, backslashes or control characters in it. Percent-encode them."
        )
    try:
        url = httpx2.URL(text).copy_with(fragment=None)
    except (httpx2.InvalidURL, ValueError) as error:
        raise CannotFetch(
            f"{_format_url(text)} is not a valid URL. Give one such as https://example.com/guide."
        ) from error
    _check_url_parts(url, text)
    return url


def _check_url_parts(url: httpx2.URL, text: str) -> None:
    if url.scheme not in ("http", "https"):
        raise CannotFetch(f"{_format_url(text)} is not an http or https URL; other kinds are not fetched.")
    if url.userinfo or "@" in url.netloc.decode("ascii"):
        raise CannotFetch("The URL carries a user name or password, which are not sent. Remove what is before the @.")
    if not url.host or len(url.raw_host) > MAX_HOST_CHARACTERS:
        raise CannotFetch(f"{_format_url(text)} names no host that could exist. Check the URL.")
    if url.port is not None and not 0 < url.port < 65536:
        raise CannotFetch(f"{_format_url(text)} has a port outside 1 to 65535. Check the URL.")


def _format_url(text: str) -> str:
    """Quote and shorten a URL for a message, without credentials."""
    return repr(text.rpartition("@")[2][:200])
