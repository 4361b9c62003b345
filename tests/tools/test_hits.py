"""What a search found, made fit for a window: nothing twice, nothing over the budget, nothing invented."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson

from refdesk.engines.base import DocumentInfo, Hit
from refdesk.tools.passages import build_hit_metadata, drop_duplicates, get_source, merge_adjacent

PROSE = "The planner chooses an index scan when the estimated cost of the rows it fetches is below that of a full scan"


def hit(chunk: str, text: str = PROSE, *, document: str = "pg/index.html", section: str = "s1", **about: Any) -> Hit:
    collection = document.partition("/")[0]
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    info = DocumentInfo(document, collection, "Indexes", "15", at, **about)
    return Hit(info, f"{document}#{chunk}", section, ("Indexes", "Scans"), None, text, 0.5, "SCANS", ("IX", "SCANS"))


def test_chunks_of_one_section_that_follow_one_another_become_one_passage_in_reading_order() -> None:
    found = [hit("c7", "seven"), hit("c2", "two"), hit("c6", "six"), hit("c8", "eight")]
    joined = merge_adjacent(found)
    assert [(one.chunk_id, one.text) for one in joined] == [
        ("pg/index.html#c7", "six\n\nseven\n\neight"),
        ("pg/index.html#c2", "two"),
    ]


def test_neighbours_of_another_section_or_document_stay_apart() -> None:
    found = [hit("c7", "seven"), hit("c8", "eight", section="s2"), hit("c6", "six", document="pg/other.html")]
    assert merge_adjacent(found) == found


def test_what_was_said_already_is_left_out() -> None:
    copy = hit("c1", PROSE.replace("below", "under"), document="pg/copy.html")
    other = hit("c1", "Vacuum removes dead rows and makes their room usable again", document="pg/vacuum.html")
    long = " ".join(f"{PROSE} number {n}." for n in range(20))
    nearly = long.replace("number 7", "number seven")
    assert drop_duplicates([hit("c1"), hit("c3", document="pg/copy.html"), other]) == [hit("c1"), other]
    assert drop_duplicates([hit("c1", long), hit("c3", nearly, document="pg/copy.html"), other]) == [
        hit("c1", long),
        other,
    ]
    assert len(drop_duplicates([hit("c1"), copy])) == 2, "in a text this short, a word is a difference"


def test_the_same_words_in_the_manual_of_another_version_are_kept() -> None:
    found = [hit("c1"), hit("c1", document="pg14/index.html")]
    assert drop_duplicates(found) == found


def test_metadata_says_where_a_hit_is_from_and_keeps_what_was_given() -> None:
    given_with_it = {"lang": "en", "version": "forged", "tags": ["a"]}
    assert build_hit_metadata(hit("c1", metadata=given_with_it)) == {
        "lang": "en",
        "tags": ["a"],
        "path": "Indexes › Scans",
        "anchor": "SCANS",
        "anchors": ["IX", "SCANS"],
        "version": "15",
        "indexed_at": "2026-01-02T03:04:05Z",
    }


def test_long_metadata_does_not_fill_the_window() -> None:
    shown = build_hit_metadata(hit("c1", metadata={"a": "short", "b": "x" * 5000, "c": 1}))
    assert shown["a"] == "short"
    assert len(orjson.dumps(shown)) < 1000


def test_a_path_of_this_machine_is_not_told_but_an_address_is() -> None:
    assert get_source(hit("c1", source="/home/ann/secret/index.html").document) == "pg/index.html"
    assert get_source(hit("c1", source="https://example.com/i").document) == "https://example.com/i"
