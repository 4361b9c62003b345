"""What R2R says when it refuses or fails, in our words.

Its errors have three shapes; only their messages are read, and of those only a beginning is passed on: a validation
error repeats what was sent, which may have been a token.

    {"message": …, "error_type": …}          its own errors
    {"detail": [{"msg": …, "loc": …}, …]}    what its framework's validation refuses
    {"detail": {"message": …, …}}            what it did not foresee; `{"detail": "…"}` for limits and routes
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from refdesk.errors import DependencyError, EngineError, R2RMisconfigured, R2RRefused, RateLimited, RefdeskError

MAX_SAID = 200
"""Characters of R2R's own words that are passed on."""

NOT_THERE = 404
"""R2R has no such thing, or none that the service account may see."""

ALREADY_THERE = 409
"""R2R has it already, or is at it."""


class Tolerating:
    """Ends its block without a word when R2R refuses with this status; whoever tolerates it says what it means."""

    def __init__(self, status: int) -> None:
        self._status = status

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> bool:
        return isinstance(error, R2RRefused) and error.status == self._status


def said_in(answer: Any) -> str:
    """R2R's own words in the body of an error, short, on one line; nothing of what it repeats."""
    words = _words(answer)
    line = " ".join(words.split())
    return f"{line[:MAX_SAID]}…" if len(line) > MAX_SAID else line


def _words(answer: Any) -> str:
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
            return "; ".join(_rule(problem) for problem in detail if isinstance(problem, dict))
    return ""


def _rule(problem: dict[str, Any]) -> str:
    """A validation error without its `input`."""
    place = problem.get("loc")
    where = ".".join(str(part) for part in place) if isinstance(place, list) else "request"
    return f"{where}: {str(problem.get('msg', 'is not valid'))[:MAX_SAID]}"


def is_of_r2r(answer: Any) -> bool:
    """Whether R2R itself says that it failed, rather than something in front of it: then it is up."""
    return bool(_words(answer))


def broken(status: int, answer: Any) -> DependencyError:
    """A failure of R2R's, not of ours."""
    words = said_in(answer)
    return EngineError(f"R2R failed ({status}{f': {words}' if words else ''}). Try again in a moment.")


def too_many(seconds: float, answer: Any = None) -> RateLimited:
    """R2R's own limit on requests."""
    words = said_in(answer)
    return RateLimited(
        f"R2R takes no more requests of this service account for now{f' ({words})' if words else ''}. "
        f"Try again in {seconds:.0f} seconds; its administrator sets the limits.",
        retry_after=seconds,
    )


def refusal(status: int, answer: Any) -> RefdeskError:
    """What a status below 500 means to whoever asked."""
    words = said_in(answer) or "it does not say why"
    match status:
        case 404:
            return R2RRefused(f"R2R has no such thing ({words}). Check that r2r.api_url is that of R2R.", status)
        case 409:
            return R2RRefused(f"R2R has that already ({words}). Change it and try again.", status)
        case 401:
            return R2RMisconfigured("R2R refuses the service account's credentials, fresh as they are.")
        case 403:
            return R2RRefused(f"R2R does not allow this to the service account: {words}.", status)
        case _ if 300 <= status < 400:
            return R2RMisconfigured("R2R's address redirects elsewhere. Set r2r.api_url to where it leads.")
    return R2RRefused(f"R2R refuses the request ({status}): {words}. Change it and try again.", status)
