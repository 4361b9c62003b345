"""This server as an OAuth protected resource: its metadata, and the challenges of rejected requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import urlsplit

from refdesk.calls import Caller
from refdesk.config.models import OAuthConfig
from refdesk.errors import DependencyError, Forbidden, InsufficientScope, Unauthenticated
from refdesk.inbound.requests import CLOSE, Reject, build_retry_after

WELL_KNOWN = "/.well-known/oauth-protected-resource"


class ProtectedResource:
    """The resource, as clients discover it."""

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
