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
    """E0xx: file. E1xx: URL. E2xx: connection and protocol. E3xx: document processing."""
    message: str
    """The original message, for logs."""
    user_message: str
    suggested_action: str
    retryable: bool
    original_code: int | None = None
    """The code of the server's JSON-RPC error, if it sent one."""

    def to_dict(self) -> dict[str, Any]:
        """Return the error as a JSON object with camel case keys; `originalMCPCode` only if there is one."""
        original = {} if self.original_code is None else {"originalMCPCode": self.original_code}
        return {
            "code": self.code,
            "message": self.message,
            "userMessage": self.user_message,
            "suggestedAction": self.suggested_action,
            "retryable": self.retryable,
            **original,
        }


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
_UNREACHABLE = _retryable("E102", "The address cannot be reached", LATER)

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
    (errors.DocumentNotFound, _permanent("E303", "The document is no longer available", "Convert it again")),
    (errors.CannotOpen, _permanent("E001", "The file cannot be opened", "Check its name and folder")),
    (errors.UnsupportedFile, _permanent("E002", "Files of this type are not supported", "Choose another file")),
    (errors.FileTooLarge, _permanent("E003", "The file is too large", "Split it, or choose a smaller one")),
    (errors.CannotConvert, _UNUSABLE),
    (errors.CannotReach, _UNREACHABLE),
    (errors.CannotFetch, _permanent("E101", "The address cannot be used", "Check the address")),
    (OSError, UNAVAILABLE),
)
"""Mappings by exception type, most specific first. Other types are mapped by code."""

_ERROR_TYPES = MappingProxyType({kind.__name__: kind for kind in vars(errors).values() if isinstance(kind, type)})


def map_error(error: BaseException | Mapping[str, Any]) -> AppError:
    """Map an exception, or the `error` object of a JSON-RPC response.

    Refdesk servers put the error type into `data.type`: their -32002 is a rejected credential, not a failed conversion.
    """
    if isinstance(error, errors.ServerRefused):
        mapped = replace(_map_answer(error.code, error.given), message=error.detail)
        return replace(mapped, original_code=error.code) if error.has_code else mapped
    if isinstance(error, Mapping):
        code = error.get("code")
        number = code if isinstance(code, int) and not isinstance(code, bool) else None
        mapped = _map_answer(errors.INTERNAL_ERROR if number is None else number, error.get("data"))
        return replace(mapped, message=str(error.get("message") or "no reason given"), original_code=number)
    by_code = ERRORS.get(error.code) if isinstance(error, errors.RefdeskError) else None
    return replace(_map_type(type(error)) or by_code or UNEXPECTED, message=str(error) or type(error).__name__)


def _map_answer(code: int, data: Any) -> AppError:
    kind = _get_reported_type(data)
    return (kind and _map_type(kind)) or ERRORS.get(code) or UNEXPECTED


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
