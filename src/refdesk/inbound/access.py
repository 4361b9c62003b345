"""Whom the HTTP door lets in: exact rules for the Host and Origin headers, and where a key may stand.

Pure decisions on header values; a browser that was lured here by a rebound name or a foreign page is told no.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from refdesk.config import ServerConfig
from refdesk.inbound.asgi import Headers

ANY = "*"
KNOWN_HOSTS = 256
"""How many spellings that were found good are remembered; clients have one or two, an attacker any number."""

PASSED_ON = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
"""Headers by which proxies and tunnels say that they are one; some name this server as its own Host all the same."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Access:
    """The rules."""

    hosts: frozenset[str]
    origins: frozenset[str]
    own_pages: frozenset[str] = frozenset()
    """The origins among them that are this server's own."""
    any_address: bool = False
    """Whether a Host that is an IP address is let in: no rebound name can be one."""
    _known_hosts: set[bytes] = field(default_factory=set)

    def allows_host(self, header: bytes | None) -> bool:
        """Whether the Host header names this server."""
        if header is None:
            return False
        if header in self._known_hosts:
            return True
        allowed = self._allows_new_host(header)
        if allowed and len(self._known_hosts) < KNOWN_HOSTS:
            self._known_hosts.add(header)
        return allowed

    def allows_origin(self, header: bytes | None, host: bytes | None = None) -> bool:
        """Whether a page of this origin may call; requests that come from no page have none."""
        if header is None or ANY in self.origins:
            return True
        return header.decode("latin-1").lower() in self.origins or self.is_own_page(header, host)

    def is_configured(self, header: bytes | None) -> bool:
        """Whether an origin is that of another site that was let in on purpose."""
        if header is None:
            return False
        return ANY in self.origins or header.decode("latin-1").lower() in self.origins - self.own_pages

    def is_own_page(self, origin: bytes, host: bytes | None) -> bool:
        """Whether an origin is this server itself: by one of its names, or by the one that the request came to.

        `https` is one of them too: before this server may be a proxy that speaks it.
        """
        page = origin.decode("latin-1").lower()
        if page in self.own_pages:
            return True
        scheme, _, name = page.partition("://")
        named = host is not None and name == host.decode("latin-1").lower()
        return named and scheme in ("http", "https") and self.allows_host(host)

    def _allows_new_host(self, header: bytes) -> bool:
        match = _HOST.fullmatch(header.decode("latin-1"))
        if match is None:
            return False
        host = (match[1] or match[2]).lower()
        # Any port: a forwarded one differs from ours, and rebinding is about names.
        return ANY in self.hosts or host in self.hosts or (self.any_address and _is_address(host))


def access_rules(settings: ServerConfig, port: int, *, authenticated: bool) -> Access:
    """The rules for a server that listens on this port.

    On loopback only loopback names are hosts. Elsewhere, addresses and the configured names are; with API keys in
    force any name will do unless some are configured, since a lured browser has no key.
    """
    hosts = {host.lower() for host in settings.allowed_hosts}
    if not hosts and authenticated and not settings.is_loopback:
        hosts.add(ANY)
    hosts |= LOOPBACK_NAMES | {settings.host.lower()}
    names = {f"[{host}]" if ":" in host else host for host in hosts if host != ANY}
    own_pages = {f"http://{name}:{port}" for name in names}
    configured = {origin.lower().rstrip("/") for origin in settings.allowed_origins}
    return Access(
        hosts=frozenset(hosts),
        origins=frozenset(configured | own_pages),
        own_pages=frozenset(own_pages),
        any_address=not settings.is_loopback,
    )


def is_passed_on(headers: Headers) -> bool:
    """Whether a request comes by way of a proxy that says so: then it may be anybody's, also on loopback."""
    return not PASSED_ON.isdisjoint(headers)


def presented_key(authorization: bytes | None, api_key: bytes | None) -> str | None:
    """The key in `Authorization: Bearer …` or else `X-API-Key`; None when neither was sent, empty when it is no key."""
    if authorization is not None:
        scheme, _, key = authorization.decode("utf-8", "replace").partition(" ")
        return key.strip() if scheme.lower() == "bearer" and key.strip() else ""
    return None if api_key is None else api_key.decode("utf-8", "replace").strip()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
