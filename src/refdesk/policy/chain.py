"""Policies around a handler; the first in the list is the outermost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from refdesk.calls import Handler, Policy


def chain(policies: Sequence[Policy], handler: Handler) -> Handler:
    """One handler that takes a call through every policy."""
    for policy in reversed(policies):
        handler = partial(policy.__call__, proceed=handler)
    return handler
