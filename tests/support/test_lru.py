"""Dictionaries with a bound."""

from __future__ import annotations

from refdesk.support.lru import BoundedDict


def test_the_oldest_entry_is_evicted() -> None:
    entries: BoundedDict[str, int] = BoundedDict(2)
    for number, key in enumerate("abc"):
        entries[key] = number
    assert dict(entries) == {"b": 1, "c": 2}


def test_an_entry_that_is_stored_again_is_the_newest() -> None:
    entries: BoundedDict[str, int] = BoundedDict(2)
    for number, key in enumerate("abac"):
        entries[key] = number
    assert dict(entries) == {"a": 2, "c": 3}
