"""All errors that callers can get, with their codes on the wire.

    RefdeskError          code, message safe to show, retryable, retry_after
    ├─ ProtocolError      invalid message
    ├─ InvalidCall        the caller can fix it
    ├─ ToolFailure        returned to the model as a tool result
    ├─ Refused            rejected by a policy
    ├─ DependencyError    a dependency failed
    ├─ ServerRefused      the error of a downstream server, with its own code and data
    ├─ InternalError      unexpected
    └─ ConfigError        startup only, lists every problem at once

The name of a class is its `type` on the wire. `inbound.envelope` converts errors to JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
ENGINE_ERROR = -32001
AUTHENTICATION_ERROR = -32002
BREAKER_OPEN = -32003
RATE_LIMITED = -32004
MISSING_CAPABILITY = -32021

ERROR_META = "refdesk/error"
"""Key in `_meta` of a failed tool's result with the machine-readable error."""


class RefdeskError(Exception):
    """Base class of all errors. `str(error)` is safe to show to callers."""

    code: int = INTERNAL_ERROR
    retryable: bool = False

    def __init__(self, detail: str, *, retry_after: float | None = None, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after
        self._more_data = data or {}

    @property
    def data(self) -> dict[str, Any]:
        """The content of `error.data`. Every error has the same four keys, and some have more."""
        data: dict[str, Any] = {"type": type(self).__name__, "detail": self.detail, "retryable": self.retryable}
        if self.retry_after is not None:
            # Rounded up to milliseconds, so that it's never too early.
            data["retry_after"] = ceil(self.retry_after * 1000) / 1000
        return {**data, **self._more_data}

    def change_texts(self, change: Callable[[Any], Any]) -> None:
        """Apply a function to the detail and to the data."""
        self.detail, self._more_data = change(self.detail), change(self._more_data)
        self.args = (self.detail,)


class ProtocolError(RefdeskError):
    """Invalid message."""

    code = INVALID_REQUEST


class ParseError(ProtocolError):
    """The body is not JSON."""

    code = PARSE_ERROR


class InvalidRequest(ProtocolError):
    """The JSON is not a JSON-RPC request."""


class MethodNotFound(ProtocolError):
    """Unknown method."""

    code = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(f"Unknown method {method[:100]!r}")


class TransportError(ProtocolError):
    """Unknown session, or headers that contradict the body."""

    def __init__(self, detail: str, *, code: int = INVALID_REQUEST, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail, data=data)
        self.code = code


class InternalError(RefdeskError):
    """Unexpected error. The log has the details."""


class InvalidCall(RefdeskError):
    """Valid request that the caller has to change."""

    code = INVALID_PARAMS


class UnknownTool(InvalidCall):
    """The tool does not exist, or the caller may not use it."""


class UnknownResource(InvalidCall):
    """The resource does not exist, or the caller may not read it."""

    def __init__(self, detail: str, uri: str) -> None:
        super().__init__(detail, data={"uri": uri})


class UnknownPrompt(InvalidCall):
    """The prompt does not exist, or the caller may not use it."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid argument and the rule it violates."""

    argument: str
    rule: str


class InvalidArguments(InvalidCall):
    """Invalid arguments, all of them listed."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        detail = "; ".join(f"{problem.argument}: {problem.rule}" for problem in problems)
        errors = [{"argument": problem.argument, "rule": problem.rule} for problem in problems]
        super().__init__(detail, data={"errors": errors})
        self.problems = tuple(problems)


class MissingCapability(InvalidCall):
    """The call needs a capability that the client has not declared."""

    code = MISSING_CAPABILITY

    def __init__(self, capability: str) -> None:
        detail = f"This needs a client with the capability {capability!r}, which the request does not declare"
        super().__init__(detail, data={"requiredCapabilities": {capability: {}}})


class ToolFailure(RefdeskError):
    """Failure inside a tool: a result with `isError` whose text says what to do next."""

    code = INVALID_PARAMS  # for methods without such a result, such as prompts


class DocumentNotFound(ToolFailure):
    """The document does not exist, or belongs to another tenant."""


class CannotOpen(ToolFailure):
    """The path is not a readable file in an allowed folder."""


class CannotFetch(ToolFailure):
    """The URL is not allowed or cannot be fetched."""


class CannotReach(CannotFetch):
    """The URL is unreachable at the moment."""

    retryable = True


class CannotConvert(ToolFailure):
    """The file is damaged, encrypted, too large or in another format, or its conversion exceeded a limit."""


class UnsupportedFile(CannotConvert):
    """No tool of the client's server converts files of this type."""


class FileTooLarge(CannotConvert):
    """The file exceeds the limit for conversion, or for sending its content."""


class ConverterUnavailable(CannotConvert):
    """The converter cannot be started at the moment."""

    retryable = True


class ConverterKilled(CannotConvert):
    """The converter was killed while it converted the file, by another program or because memory ran out."""

    retryable = True


class ConverterCrashed(CannotConvert):
    """The converter crashed on the file."""

    retryable = True


class ClientCannot(ToolFailure):
    """The tool needs sampling or elicitation, which the client does not support."""


class NameTaken(ToolFailure):
    """Another source already has this document ID."""


class R2RRefused(ToolFailure):
    """R2R rejected the request. The message has its reason."""

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail, data={"status_code": status} if status else None)
        self.status = status


class Refused(RefdeskError):
    """Rejected by a policy."""


class Unauthenticated(Refused):
    """Missing or invalid credential."""

    code = AUTHENTICATION_ERROR


class InvalidToken(Unauthenticated):
    """The access token has expired, or is from another issuer or for another server."""


class Forbidden(Refused):
    """The credential does not allow this."""

    code = AUTHENTICATION_ERROR


class InsufficientScope(Forbidden):
    """The access token lacks a scope. `scopes` lists all that are needed."""

    def __init__(self, detail: str, scopes: tuple[str, ...]) -> None:
        super().__init__(detail)
        self.scopes = scopes


class RateLimited(Refused):
    """Rate limit reached. Retry after `retry_after` seconds."""

    code = RATE_LIMITED
    retryable = True


class Overloaded(Refused):
    """The server is at capacity."""

    code = RATE_LIMITED
    retryable = True


class DeadlineExceeded(Refused):
    """The call timed out."""

    code = ENGINE_ERROR
    retryable = True


class DependencyError(RefdeskError):
    """A dependency failed."""

    code = ENGINE_ERROR
    retryable = True


class EngineError(DependencyError):
    """The engine failed."""


class DatabaseDamaged(EngineError):
    """A tenant's database is missing, damaged or of another version."""

    retryable = False


class R2RMisconfigured(EngineError):
    """R2R rejects the configured credentials or settings."""

    retryable = False


class R2RUnauthenticated(R2RMisconfigured):
    """R2R rejects the service account's password, token or API key."""

    code = AUTHENTICATION_ERROR


class R2RUnreachable(EngineError):
    """R2R is unreachable. Whether it executed the request is unknown."""


class R2RLeaked(EngineError):
    """R2R returned data of another tenant, which was withheld."""

    retryable = False


class StorageError(DependencyError):
    """The data folder's disk is full or not writable."""


class WriterFailed(DependencyError):
    """The model that writes answers failed, or returned no usable answer."""


class WriterMisconfigured(WriterFailed):
    """The answer endpoint rejects the configured key or model."""

    retryable = False


class IssuerAway(DependencyError):
    """The token issuer is unreachable and the signing key is unknown."""


class BreakerOpen(DependencyError):
    """The dependency's circuit breaker is open."""

    code = BREAKER_OPEN


class ServerAway(DependencyError):
    """A downstream server is unreachable."""


class ServerConnectTimeout(ServerAway, TimeoutError):
    """A downstream server did not connect in time."""


class ServerGone(DependencyError):
    """A downstream server disconnected during the call."""


class ServerTooSlow(DependencyError):
    """A downstream server timed out."""


class ServerTalksNonsense(DependencyError):
    """A downstream server sent an invalid or oversized message."""


class ServerLacks(DependencyError):
    """A downstream server lacks a required capability."""

    retryable = False


class ServerRefused(RefdeskError):
    """Error of a downstream server, forwarded with its own code, message and data.

    Its data is merged with the common keys. A value that isn't an object is under `data`. Without `has_code`, the
    server returned a failed tool's result, and the code is only the nearest one.
    """

    def __init__(self, server: str, code: int, message: str, data: Any = None, *, has_code: bool = True) -> None:
        fields = data if isinstance(data, dict) else {} if data is None else {"data": data}
        super().__init__(message, data={"server": server, **fields})
        self.code = code
        self.given = data
        self.has_code = has_code


class ConfigError(RefdeskError):
    """Invalid configuration. `problems` lists every error."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
