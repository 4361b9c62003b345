"""What pydantic found wrong, in words for the one who sent it."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from refdesk.errors import InvalidArguments, Problem


def invalid_arguments(error: ValidationError, known: Sequence[str] = (), *, below: str = "") -> InvalidArguments:
    """Every wrong argument with the rule that it breaks.

    `known` names the arguments there are, `below` what they stand under, where they were not validated alone.
    """
    return InvalidArguments([_problem(detail, known, below) for detail in error.errors(include_url=False)])


def _problem(detail: ErrorDetails, known: Sequence[str], below: str) -> Problem:
    argument = ".".join(str(part) for part in detail["loc"]).removeprefix(f"{below}.") or "arguments"
    if detail["type"] == "extra_forbidden":
        return Problem(argument, _unknown_argument(argument, known))
    rule = _RULES.get(detail["type"])
    return Problem(argument, rule.format(**detail.get("ctx", {})) if rule else detail["msg"])


def _unknown_argument(argument: str, known: Sequence[str]) -> str:
    nearest = difflib.get_close_matches(argument, known, n=1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(known) or 'none'}"
    return f"unknown argument; {hint}"


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
