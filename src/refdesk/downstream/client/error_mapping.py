"""Mapping of errors to application errors: a code, a user message and a suggested action.

`map_error` accepts JSON-RPC errors of a server as well as exceptions of this client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from refdesk import errors

AGAIN, LATER, SUPPORT = "Try again", "Try again later", "Contact support"


@dataclass(frozen=True, slots=True)
class AppError:
    """An application error. Those of the tables below lack the message."""

    code: str
    """E2xx: connection and protocol. E3xx: document processing."""
    message: str
    """The original message, for logs."""
    user_message: str
    suggested_action: str
    retryable: bool
    original_code: int | None = None
    """The JSON-RPC error code, if there was one."""


def _retryable(code: str, user_message: str, action: str = AGAIN) -> AppError:
    return AppError(code, "", user_message, action, retryable=True)


def _permanent(code: str, user_message: str, action: str = SUPPORT) -> AppError:
    return AppError(code, "", user_message, action, retryable=False)


UNAVAILABLE = _retryable("E201", "The processing service is unavailable")
TIMED_OUT = _retryable("E202", "The request took too long")
INVALID = _permanent("E203", "The service does not understand the request")
NO_SUCH_TOOL = _permanent("E204", "The requested tool is not available")
NO_TOOLS = _permanent("E205", "The service lacks a required feature")
NOT_CONVERTED = _retryable("E302", "The document could not be converted")
NOT_EXPORTED = _retryable("E303", "The document could not be exported")
UNEXPECTED = _retryable("E201", "An unexpected error occurred", LATER)

ERRORS: Mapping[int, AppError] = MappingProxyType(
    {
        errors.PARSE_ERROR: INVALID,
        errors.INVALID_REQUEST: INVALID,
        errors.METHOD_NOT_FOUND: NO_SUCH_TOOL,
        errors.INVALID_PARAMS: _permanent("E203", "The request has invalid parameters", "Check what was entered"),
        errors.INTERNAL_ERROR: _retryable("E201", "The processing service failed"),
        -32000: UNAVAILABLE,
        -32001: TIMED_OUT,
        -32002: NOT_CONVERTED,
        -32003: NOT_EXPORTED,
    }
)
"""Mappings by JSON-RPC code. Any other code is `UNEXPECTED`."""

_NOT_ALLOWED = _permanent("E201", "The service does not accept the credentials", "Check the key or token")
_BUSY = _retryable("E201", "The processing service is busy", LATER)
_UNUSABLE = _permanent("E302", "The document cannot be converted", "Try another file")
_CANNOT_OPEN = _permanent("E203", "The file or address cannot be opened", "Check what was entered")

_MAPPINGS_BY_TYPE: tuple[tuple[type[BaseException], AppError], ...] = (
    (errors.ServerLacks, NO_TOOLS),
    (errors.ServerTooSlow, TIMED_OUT),
    (errors.ServerConnectTimeout, TIMED_OUT),
    (errors.DeadlineExceeded, TIMED_OUT),
    (TimeoutError, TIMED_OUT),
    (errors.BreakerOpen, _retryable("E201", UNAVAILABLE.user_message, LATER)),
    (errors.DependencyError, UNAVAILABLE),
    (errors.RateLimited, _BUSY),
    (errors.Overloaded, _BUSY),
    (errors.Refused, _NOT_ALLOWED),
    (errors.UnknownTool, NO_SUCH_TOOL),
    (errors.CannotConvert, _UNUSABLE),
    (errors.CannotOpen, _CANNOT_OPEN),
    (errors.CannotFetch, _CANNOT_OPEN),
    (OSError, UNAVAILABLE),
)
"""Mappings by exception type, most specific first. Other types are mapped by code."""

_ERROR_TYPES = MappingProxyType({kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)})


def map_error(error: BaseException | Mapping[str, Any]) -> AppError:
    """Map an exception, or the `error` object of a JSON-RPC response.

    Refdesk servers put the error type into `data.type`: their -32002 is a rejected credential, not a failed conversion.
    """
    if isinstance(error, Mapping):
        code, text = error.get("code"), error.get("message")
        number = code if isinstance(code, int) and not isinstance(code, bool) else errors.INTERNAL_ERROR
        error = errors.ServerRefused("", number, str(text or "no reason given"), error.get("data"))
    if not isinstance(error, errors.RefdeskError):
        entry, message, original = _map_type(type(error)), str(error) or type(error).__name__, None
    else:
        kind = _get_reported_type(error.given) if isinstance(error, errors.ServerRefused) else type(error)
        entry, message, original = (kind and _map_type(kind)) or ERRORS.get(error.code), error.detail, error.code
    return replace(entry or UNEXPECTED, message=message, original_code=original)


def _map_type(kind: type[BaseException]) -> AppError | None:
    entry = next((entry for base, entry in _MAPPINGS_BY_TYPE if issubclass(kind, base)), None)
    if entry is not None and entry.retryable and issubclass(kind, errors.RefdeskError) and not kind.retryable:
        return _permanent(entry.code, entry.user_message)
    return entry


def _get_reported_type(data: Any) -> type[BaseException] | None:
    """Return the error type that a Refdesk server put into `data`."""
    if not isinstance(data, dict) or not isinstance(data.get("retryable"), bool) or "detail" not in data:
        return None
    kind = _ERROR_TYPES.get(str(data.get("type")))
    return kind if kind is not None and issubclass(kind, errors.RefdeskError) else None
