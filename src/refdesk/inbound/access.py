"""Access to the HTTP server: Host and Origin rules, proxy detection, credentials and OAuth challenges."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from refdesk.calls import Caller
from refdesk.config import OAuthConfig, ServerConfig
from refdesk.errors import DependencyError, Forbidden, InsufficientScope, Unauthenticated
from refdesk.inbound.asgi import CLOSE, Headers, Reject, build_retry_after

WELL_KNOWN = "/.well-known/oauth-protected-resource"

ANY = "*"
MAX_KNOWN_HOSTS = 256
"""Maximum number of accepted Host values to cache. Clients send one or two, an attacker any number."""

PROXY_HEADERS = frozenset({b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip"})
"""Headers that proxies and tunnels add. Some of them still send this server's own name as Host."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Access:
    """Allowed hosts and origins of a server. They stop DNS rebinding and requests from pages of other sites."""

    hosts: frozenset[str]
    origins: frozenset[str]
    own_pages: frozenset[str] = frozenset()
    """The subset of `origins` that belongs to this server."""
    any_address: bool = False
    """Whether any IP address is an accepted Host. DNS rebinding needs a name, so an address is safe."""
    _known_hosts: set[bytes] = field(default_factory=set)

    def allows_host(self, header: bytes | None) -> bool:
        """Return whether the Host header names this server."""
        if header is None:
            return False
        if header in self._known_hosts:
            return True
        match = _HOST.fullmatch(header.decode("latin-1"))
        if match is None:
            return False
        host = (match[1] or match[2]).lower()
        # The port isn't checked: a forwarded port differs from ours, and rebinding is about names.
        allowed = ANY in self.hosts or host in self.hosts or (self.any_address and _is_address(host))
        if allowed and len(self._known_hosts) < MAX_KNOWN_HOSTS:
            self._known_hosts.add(header)
        return allowed

    def allows_origin(self, header: bytes | None, host: bytes | None = None) -> bool:
        """Return whether a page of this origin may call. Requests without an Origin header are allowed."""
        if header is None or ANY in self.origins:
            return True
        return header.decode("latin-1").lower() in self.origins or self.is_own_page(header, host)

    def is_configured(self, header: bytes | None) -> bool:
        """Return whether an origin is another site that the configuration allows."""
        if header is None:
            return False
        return ANY in self.origins or header.decode("latin-1").lower() in self.origins - self.own_pages

    def is_own_page(self, origin: bytes, host: bytes | None) -> bool:
        """Return whether an origin is this server, under a configured name or under the Host of the request.

        `https` counts too, because a TLS proxy may be in front of this server.
        """
        page = origin.decode("latin-1").lower()
        if page in self.own_pages:
            return True
        scheme, _, name = page.partition("://")
        is_same_host = host is not None and name == host.decode("latin-1").lower()
        return is_same_host and scheme in ("http", "https") and self.allows_host(host)


def build_access(settings: ServerConfig, port: int, *, authenticated: bool) -> Access:
    """Build the access rules of a server that listens on this port.

    On loopback only loopback names are accepted. Elsewhere, IP addresses and the configured names are. If API keys are
    required and no names are configured, any name is accepted, since a page that rebinds a name has no key.
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


def is_proxied(headers: Headers) -> bool:
    """Return whether a proxy forwarded the request. If so, the client may be anyone, even on loopback."""
    return not PROXY_HEADERS.isdisjoint(headers)


def read_credential(authorization: bytes | None, api_key: bytes | None) -> str | None:
    """Return the credential in `Authorization: Bearer …` or `X-API-Key`.

    None if neither header was sent, empty if the header holds no credential.
    """
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


class ProtectedResource:
    """This server as an OAuth protected resource."""

    def __init__(self, settings: OAuthConfig, url: str, scopes_for: Callable[[Caller, str], Iterable[str]]) -> None:
        """Initialize the resource.

        `url` is the address of `/mcp`. If the configured audience is a URL, it's used instead, because that's what
        clients use. `scopes_for` returns the scopes that a caller needs for a tool, empty if that wouldn't help.
        """
        assert settings.issuer is not None
        audience = settings.audience or ""
        self._resource = audience if audience.startswith(("https://", "http://")) else url
        self._issuer = settings.issuer.get_secret_value()
        self._required_scopes = settings.required_scopes
        self._all_scopes = list(dict.fromkeys((*settings.required_scopes, *settings.scope_roles)))
        self._scopes_for = scopes_for
        parts = urlsplit(self._resource)
        path = parts.path.rstrip("/")
        self._metadata_url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{path}"
        self.paths = frozenset({WELL_KNOWN, f"{WELL_KNOWN}{path}", f"{WELL_KNOWN}{urlsplit(url).path}"})

    @property
    def metadata(self) -> dict[str, Any]:
        """The protected resource metadata document."""
        return {
            "resource": self._resource,
            "authorization_servers": [self._issuer],
            "bearer_methods_supported": ["header"],
            "resource_name": "Refdesk",
            **({"scopes_supported": self._all_scopes} if self._all_scopes else {}),
        }

    def challenge(self, error: str = "", description: str = "", scopes: Iterable[str] | None = None) -> bytes:
        """Return the value of `WWW-Authenticate`, without an error if the client sent no token."""
        required = self._required_scopes if scopes is None else scopes
        fields = {
            "error": error,
            "error_description": description,
            "scope": " ".join(dict.fromkeys(required)),
            "resource_metadata": self._metadata_url,
        }
        return b"Bearer " + b", ".join(_format_field(name, value) for name, value in fields.items() if value)

    def require_scopes(self, caller: Caller, tool: object) -> None:
        """Reject a caller that could use the tool with more scopes, so that its client requests them."""
        scopes = self._scopes_for(caller, tool) if isinstance(tool, str) else ()
        if scopes:
            detail = f"{tool} needs an access token with more scopes"
            header = self.challenge("insufficient_scope", detail, scopes)
            raise Reject(403, detail, CLOSE, (b"www-authenticate", header))


def build_rejection(
    error: Unauthenticated | Forbidden | DependencyError, resource: ProtectedResource | None, *, has_credential: bool
) -> Reject:
    """Build the response for a failed authentication."""
    if isinstance(error, DependencyError):
        return Reject(503, error.detail, CLOSE, build_retry_after(error.retry_after or 0))
    if resource is None:
        header = b"Bearer"
    elif not has_credential:
        header = resource.challenge()
    elif isinstance(error, InsufficientScope):
        header = resource.challenge("insufficient_scope", error.detail, error.scopes)
    else:
        header = resource.challenge("invalid_token", error.detail)
    return Reject(403 if isinstance(error, Forbidden) else 401, error.detail, CLOSE, (b"www-authenticate", header))


def _format_field(name: str, value: str) -> bytes:
    printable = "".join(character if " " <= character <= "~" else "?" for character in value)
    quoted = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{quoted}"'.encode()
