"""All errors that callers can get, with their codes on the wire.

    RefdeskError                      code, message safe to show, retryable, retry_after
    ├─ ProtocolError                  invalid message: ParseError · InvalidRequest · MethodNotFound · TransportError
    ├─ InvalidCall                    the caller can fix it: UnknownTool · UnknownResource · UnknownPrompt ·
    │                                 InvalidArguments · MissingCapability
    ├─ ToolFailure                    returned to the model as a tool result: DocumentNotFound · CannotOpen ·
    │                                 CannotFetch · CannotReach · CannotConvert · ClientCannot · NameTaken ·
    │                                 R2RRefused
    ├─ Refused                        rejected by a policy: Unauthenticated · InvalidToken · Forbidden ·
    │                                 InsufficientScope · RateLimited · Overloaded · DeadlineExceeded
    ├─ DependencyError                a dependency failed: EngineError · StorageError · WriterFailed ·
    │                                 WriterMisconfigured · IssuerAway · BreakerOpen · R2RMisconfigured ·
    │                                 R2RUnreachable · R2RLeaked · ServerAway · ServerGone · ServerTooSlow ·
    │                                 ServerTalksNonsense · ServerLacks
    ├─ ServerRefused                  the error of a downstream server, with its own code and data
    ├─ InternalError                  unexpected
    └─ ConfigError                    startup only, lists every problem at once

The name of a class is its `type` on the wire. `inbound.error_mapping` converts errors to JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """The root of the tree; `str(error)` is safe to show to a caller."""

    code: int = INTERNAL_ERROR
    retryable: bool = False

    def __init__(self, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after = retry_after

    @property
    def data(self) -> dict[str, Any]:
        """The content of `error.data`. Every error has the same four keys."""
        data: dict[str, Any] = {"type": type(self).__name__, "detail": self.detail, "retryable": self.retryable}
        if self.retry_after is not None:
            # Rounded up to milliseconds, so that it's never too early.
            data["retry_after"] = ceil(self.retry_after * 1000) / 1000
        return data


class ProtocolError(RefdeskError):
    """The message is not one that this server can take as a call."""

    code = INVALID_REQUEST


class ParseError(ProtocolError):
    """The bytes are not JSON."""

    code = PARSE_ERROR


class InvalidRequest(ProtocolError):
    """JSON, but not a JSON-RPC request."""


class MethodNotFound(ProtocolError):
    """A method that this server does not have."""

    code = METHOD_NOT_FOUND

    def __init__(self, method: str) -> None:
        super().__init__(f"Unknown method {method[:100]!r}")
        self.method = method


class TransportError(ProtocolError):
    """A request that the transport refuses: an unknown session, headers that disagree with the body."""

    def __init__(self, detail: str, *, code: int = INVALID_REQUEST, data: Mapping[str, Any] | None = None) -> None:
        super().__init__(detail)
        self.code = code
        self._data = data or {}

    @property
    def data(self) -> dict[str, Any]:
        return {**super().data, **self._data}


class InternalError(RefdeskError):
    """An error inside the server that nobody foresaw; its log says more."""


class InvalidCall(RefdeskError):
    """A well-formed request for something that cannot be done as asked."""

    code = INVALID_PARAMS


class UnknownTool(InvalidCall):
    """No tool of that name is open to this caller."""


class UnknownResource(InvalidCall):
    """No resource of that URI is open to this caller."""

    def __init__(self, detail: str, uri: str) -> None:
        super().__init__(detail)
        self.uri = uri

    @property
    def data(self) -> dict[str, Any]:
        return {**super().data, "uri": self.uri}


class UnknownPrompt(InvalidCall):
    """No prompt of that name is open to this caller."""


@dataclass(frozen=True, slots=True)
class Problem:
    """An invalid argument and the rule it violates."""

    argument: str
    rule: str


class InvalidArguments(InvalidCall):
    """One or more arguments break a rule; all of them are named."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{problem.argument}: {problem.rule}" for problem in problems))
        self.problems = tuple(problems)

    @property
    def data(self) -> dict[str, Any]:
        errors = [{"argument": problem.argument, "rule": problem.rule} for problem in self.problems]
        return {**super().data, "errors": errors}


class MissingCapability(InvalidCall):
    """The call has to ask the client something that it has not declared to be able to answer."""

    code = MISSING_CAPABILITY

    def __init__(self, capability: str) -> None:
        super().__init__(f"This needs a client with the capability {capability!r}, which the request does not declare")
        self.capability = capability

    @property
    def data(self) -> dict[str, Any]:
        return {**super().data, "requiredCapabilities": {self.capability: {}}}


class ToolFailure(RefdeskError):
    """What goes wrong inside a tool: a result with `isError` whose sentence says what to do next."""

    code = INVALID_PARAMS  # for methods without such a result, such as prompts


class DocumentNotFound(ToolFailure):
    """No such document; another tenant's document answers exactly so."""


class CannotOpen(ToolFailure):
    """A path that is no readable file under the roots; whether it exists elsewhere is not told."""


class CannotFetch(ToolFailure):
    """A URL that could not be fetched, or must not be."""


class CannotReach(CannotFetch):
    """A URL that could not be fetched this time; it may be there later."""

    retryable = True


class CannotConvert(ToolFailure):
    """A file that is broken, locked, too large or of another kind, or whose conversion overran its bounds."""


class ClientCannot(ToolFailure):
    """The tool has to ask the client something (a sample, an input) that this client does not offer."""


class NameTaken(ToolFailure):
    """A document whose place in its collection another source has."""


class R2RRefused(ToolFailure):
    """R2R will not do what was asked; its reason is told."""

    def __init__(self, detail: str, status: int = 0) -> None:
        super().__init__(detail)
        self.status = status


class Refused(RefdeskError):
    """Policy said no."""


class Unauthenticated(Refused):
    """No valid credential."""

    code = AUTHENTICATION_ERROR


class InvalidToken(Unauthenticated):
    """An access token that is not the issuer's, not for this server, or past its time."""


class Forbidden(Refused):
    """A valid credential that may not do this."""

    code = AUTHENTICATION_ERROR


class InsufficientScope(Forbidden):
    """A valid access token without a scope that is needed; `scopes` are all that a new one should have."""

    def __init__(self, detail: str, scopes: tuple[str, ...]) -> None:
        super().__init__(detail)
        self.scopes = scopes


class RateLimited(Refused):
    """Over the rate; `retry_after` says when there is room."""

    code = RATE_LIMITED
    retryable = True


class Overloaded(Refused):
    """The server is full at this moment."""

    code = RATE_LIMITED
    retryable = True


class DeadlineExceeded(Refused):
    """The call took longer than it may."""

    code = ENGINE_ERROR
    retryable = True


class DependencyError(RefdeskError):
    """Something behind this server failed."""

    code = ENGINE_ERROR
    retryable = True


class EngineError(DependencyError):
    """The knowledge engine failed."""


class R2RMisconfigured(EngineError):
    """R2R refuses what is set for it; asking again changes nothing."""

    retryable = False


class R2RUnreachable(EngineError):
    """R2R does not answer at all: nothing is known of what was asked of it."""


class R2RLeaked(EngineError):
    """R2R mixed in what the tenant may not see; it is withheld."""

    retryable = False


class StorageError(DependencyError):
    """The disk that the data lives on is full or cannot be written."""


class WriterFailed(DependencyError):
    """The model that writes answers failed, or gave none that can be used."""


class WriterMisconfigured(WriterFailed):
    """The endpoint for answers refuses what is set for it; asking again changes nothing."""

    retryable = False


class IssuerAway(DependencyError):
    """The authorization server cannot be asked whether a token is one of its own."""


class BreakerOpen(DependencyError):
    """A dependency failed so often that it is left alone for a while."""

    code = BREAKER_OPEN


class ServerAway(DependencyError):
    """An MCP server behind this one cannot be connected to."""


class ServerGone(DependencyError):
    """The connection to an MCP server ended while something was asked of it."""


class ServerTooSlow(DependencyError):
    """An MCP server did not answer in the time it has."""


class ServerTalksNonsense(DependencyError):
    """An MCP server answered what no such server would, or more than is taken."""


class ServerLacks(DependencyError):
    """An MCP server does not offer what is needed of it."""

    retryable = False


class ServerRefused(RefdeskError):
    """An MCP server answered with an error; its code, message and data are passed on as they are."""

    def __init__(self, server: str, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.server = server
        self.code = code
        self.given = data

    @property
    def data(self) -> dict[str, Any]:
        """The server's data merged with the common keys. A value that isn't an object is under `data`."""
        ours = {**super().data, "server": self.server}
        if isinstance(self.given, dict):
            return {**ours, **self.given}
        return ours if self.given is None else {**ours, "data": self.given}


class ConfigError(RefdeskError):
    """The configuration cannot be used; `problems` lists everything that is wrong with it."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)
