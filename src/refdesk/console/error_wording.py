"""Translates errors worded for the command line into the console's parameter names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from refdesk.errors import InvalidArguments, Problem

_PARAMETERS = {"server": "name"}


@contextmanager
def translate_argument_names() -> Iterator[None]:
    """Replace option and placeholder names in errors by the parameters of the same name."""
    try:
        yield
    except InvalidArguments as error:
        problems = [(problem.argument.lower().lstrip("-"), problem.rule) for problem in error.problems]
        raise InvalidArguments([Problem(_PARAMETERS.get(name, name), rule) for name, rule in problems]) from error
