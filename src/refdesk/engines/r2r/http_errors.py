"""Mapping of R2R's error responses to Refdesk's errors.

R2R's errors have three formats. Only a short part of their messages is used: validation errors repeat the input, which
may have been a token.


    {"message": …, "error_type": …}          its own errors
    {"detail": [{"msg": …, "loc": …}, …]}    validation errors of its framework
    {"detail": {"message": …, …}}            unexpected errors; `{"detail": "…"}` for limits and routes
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from refdesk.errors import DependencyError, EngineError, R2RMisconfigured, R2RRefused, RateLimited, RefdeskError

MAX_MESSAGE = 200
"""Maximum number of characters of R2R's message that are passed on."""

NOT_FOUND = 404
"""Status if it doesn't exist, or isn't visible to the service account."""

CONFLICT = 409
"""Status if it already exists, or is being processed."""


class IgnoreStatus:
    """Context manager that suppresses R2RRefused with this status."""

    def __init__(self, status: int) -> None:
        self._status = status

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return isinstance(error, R2RRefused) and error.status == self._status


def extract_message(answer: Any) -> str:
    """Return R2R's error message, shortened to one line and without repeated input."""
    message = _find_message(answer)
    line = " ".join(message.split())
    return f"{line[:MAX_MESSAGE]}…" if len(line) > MAX_MESSAGE else line


def _find_message(answer: Any) -> str:
    if not isinstance(answer, dict):
        return ""
    detail = answer.get("detail")
    match answer.get("message"), detail:
        case str(message), _:
            return message
        case _, str():
            return detail
        case _, {"message": str(message)}:
            return message
        case _, list():
            return "; ".join(_format_problem(problem) for problem in detail if isinstance(problem, dict))
    return ""


def _format_problem(problem: dict[str, Any]) -> str:
    """Format a validation error without its `input`."""
    place = problem.get("loc")
    where = ".".join(str(part) for part in place) if isinstance(place, list) else "request"
    return f"{where}: {str(problem.get('msg', 'is not valid'))[:MAX_MESSAGE]}"


def is_r2r_error(answer: Any) -> bool:
    """Whether the error is from R2R itself rather than a proxy, so that R2R is up."""
    return bool(_find_message(answer))


def make_server_error(status: int, answer: Any) -> DependencyError:
    """Return the error for a failure of R2R."""
    message = extract_message(answer)
    return EngineError(f"R2R failed ({status}{f': {message}' if message else ''}). Try again in a moment.")


def make_rate_limit_error(seconds: float, answer: Any = None) -> RateLimited:
    """Return the error for R2R's rate limit."""
    message = extract_message(answer)
    return RateLimited(
        f"R2R takes no more requests of this service account for now{f' ({message})' if message else ''}. "
        f"Try again in {seconds:.0f} seconds; its administrator sets the limits.",
        retry_after=seconds,
    )


def make_refusal(status: int, answer: Any) -> RefdeskError:
    """Return the error for a status below 500."""
    message = extract_message(answer) or "it does not say why"
    match status:
        case 404:
            return R2RRefused(f"R2R has no such thing ({message}). Check that r2r.api_url is that of R2R.", status)
        case 409:
            return R2RRefused(f"R2R has that already ({message}). Change it and try again.", status)
        case 401:
            return R2RMisconfigured("R2R refuses the service account's credentials, fresh as they are.")
        case 403:
            return R2RRefused(f"R2R does not allow this to the service account: {message}.", status)
        case _ if 300 <= status < 400:
            return R2RMisconfigured("R2R's address redirects elsewhere. Set r2r.api_url to where it leads.")
    return R2RRefused(f"R2R refuses the request ({status}): {message}. Change it and try again.", status)
