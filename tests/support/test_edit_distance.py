"""Nearest names by edit distance, against the textbook algorithm."""

from __future__ import annotations

from random import Random

from refdesk.support.edit_distance import count_allowed_edits, find_similar, nearest_names, split_evenly


def measure(one: str, two: str) -> int:
    """The edit distance of two names."""
    above = list(range(len(two) + 1))
    for row, character in enumerate(one, 1):
        current = [row]
        for place, other in enumerate(two, 1):
            current.append(min(above[place - 1] + (character != other), above[place] + 1, current[-1] + 1))
        above = current
    return above[-1]


def test_exactly_the_similar_names_are_found_and_share_a_part() -> None:
    random = Random(7)
    for _ in range(300):
        name = "".join(random.choices("abcä-", k=random.randint(1, 24)))
        names = ["".join(random.choices("abcä-", k=random.randint(0, 26))) for _ in range(5)]
        names += [name, name[1:], name[:-2], f"{name}x", f"{name[:3]}x{name[4:]}", "xx" + name]
        distances = sorted((measure(name, other), index) for index, other in enumerate(names))
        similar = [found for found in distances if found[0] <= count_allowed_edits(name)]
        assert find_similar(name, names) == similar
        assert all(any(part in names[index] for part in split_evenly(name)) for _, index in similar)


def test_the_nearest_come_first_and_far_ones_not_at_all() -> None:
    names = ["sql-commit", "sql-vacuum", "app-vacuumdb", "SQL-VACUUM2"]
    assert nearest_names("sql-vaccum", names) == ["sql-vacuum", "SQL-VACUUM2"]
    assert nearest_names("sql-vaccum", names, 1) == ["sql-vacuum"]
    assert nearest_names("wombat", names) == []
    assert nearest_names("", names) == nearest_names("x" * 1000, names) == nearest_names("x", []) == []
