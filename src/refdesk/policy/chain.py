"""Composition of policies around a handler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from refdesk.calls import Handler, Policy


def chain(policies: Sequence[Policy], handler: Handler) -> Handler:
    """Return a handler that passes a call through every policy, the first one outermost."""
    for policy in reversed(policies):
        handler = partial(policy.__call__, proceed=handler)
    return handler
