"""Errors of parts that speak to the command line, in the words of the pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from refdesk.errors import InvalidArguments, Problem

_NAMES = {"server": "name"}


@contextmanager
def in_our_words() -> Iterator[None]:
    """What is an option or a word in capitals there is the parameter of that name here."""
    try:
        yield
    except InvalidArguments as error:
        plain = [(problem.argument.lower().lstrip("-"), problem.rule) for problem in error.problems]
        raise InvalidArguments([Problem(_NAMES.get(name, name), rule) for name, rule in plain]) from error
