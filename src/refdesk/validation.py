"""Validation with pydantic, whose errors become InvalidArguments."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import islice
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from refdesk.errors import InvalidArguments, Problem

ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_PROBLEMS = 20
"""Maximum number of invalid arguments to list in one error."""

LONGEST_NAME = 100
"""Maximum number of characters of a name in an error. No valid name is longer."""


def validate(model: type[ModelT], data: object) -> ModelT:
    """Validate data of a client. Raises InvalidArguments."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise invalid_arguments(error, list(model.model_fields)) from None


def invalid_arguments(error: ValidationError, known: Sequence[str] = ()) -> InvalidArguments:
    """Convert a validation error, with the rule that each argument violates. `known` lists the valid arguments."""
    more = error.error_count() - MAX_PROBLEMS
    details = islice(error.errors(include_url=False, include_context=True, include_input=False), MAX_PROBLEMS)
    problems = [_to_problem(detail, known) for detail in details]
    return InvalidArguments([*problems, Problem("…", f"and {more} more")] if more > 0 else problems)


def _to_problem(detail: ErrorDetails, known: Sequence[str]) -> Problem:
    argument = shorten(".".join(str(part) for part in detail["loc"]) or "arguments")
    if detail["type"] == "extra_forbidden":
        if len(detail["loc"]) > 1:
            return Problem(argument, "unknown field")
        nearest = nearest_name(argument, known)
        hint = f"did you mean {nearest}?" if nearest else f"known are {', '.join(known) or 'none'}"
        return Problem(argument, f"unknown argument; {hint}")
    rule = _RULES.get(detail["type"])
    return Problem(argument, rule.format(**detail.get("ctx", {})) if rule else detail["msg"])


def nearest_name(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that is most similar, if any is."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), None) if len(name) <= LONGEST_NAME else None


def shorten(text: str, longest: int = LONGEST_NAME) -> str:
    """Truncate a client's text for an error message, between words if there are any."""
    cut = text.rfind(" ", longest // 2, longest + 1)
    return text if len(text) <= longest else f"{text[: cut if cut > 0 else longest]}…"


_RULES = {
    "missing": "is required",
    "string_type": "must be a string",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "string_unicode": "must be valid Unicode text",
    "int_type": "must be an integer",
    "int_parsing": "must be an integer",
    "int_from_float": "must be an integer",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be an array",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "greater_than": "must be more than {gt}",
    "less_than": "must be less than {lt}",
    "literal_error": "must be one of {expected}",
    "enum": "must be one of {expected}",
}
