"""Hits are grown to what answers a question: whole passages, once each, within the budget."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from refdesk.engines.base import CollectionInfo, DocumentInfo, Hit, Passage
from refdesk.tools.passages import (
    MAX_PASSAGE_CHARACTERS,
    drop_twins,
    format_pending,
    grow_passages,
    measure_frame,
)

AT = datetime(2026, 1, 2, tzinfo=UTC)
WORDS = "A slot keeps the files that a standby still needs until it has received them or the slot is dropped "


def page(*sections: str, document: str = "pg/slots.html", text: str = WORDS) -> list[Passage]:
    """Chunks of a page, given the section of each."""
    return [
        Passage(f"{document}#c{number}", section, ("Slots", section), None, f"{number} {text}")
        for number, section in enumerate(sections, 1)
    ]


def hit(chunks: list[Passage], number: int, score: float) -> Hit:
    """The chunk with this number as a hit, with all others around it."""
    own = chunks[number - 1]
    document = own.chunk_id.partition("#")[0]
    info = DocumentInfo(document, document.partition("/")[0], "Slots", "15", AT)
    return Hit(info, own.chunk_id, own.section, own.path, None, own.text, score, context=chunks)


def numbers(text: str) -> list[int]:
    return [int(line.split()[0]) for line in text.split("\n\n") if line[0].isdigit()]


def test_the_rest_of_the_section_comes_before_a_weaker_hit() -> None:
    first, other = page("limits", "limits", "limits"), page("names", document="pg/names.html")
    room = 4 * (len(WORDS) + 110)
    found = grow_passages("slot", [hit(first, 1, 0.9), hit(other, 1, 0.3)], 5, room // 4, 0.0)
    assert numbers(found.hits[0].hit.text) == [1, 2, 3]
    assert found.hits[0].continues_at is None


def test_hits_that_touch_become_one_passage_in_reading_order() -> None:
    chunks = page("limits", "limits")
    found = grow_passages("slot", [hit(chunks, 2, 0.9), hit(chunks, 1, 0.8)], 5, 1000)
    assert [numbers(grown.hit.text) for grown in found.hits] == [[1, 2]]
    assert found.omitted == 0


def test_a_section_that_begins_within_a_passage_has_its_heading() -> None:
    chunks = page("limits", "names")
    found = grow_passages("slot", [hit(chunks, 1, 0.9), hit(chunks, 2, 0.9)], 5, 1000)
    (grown,) = found.hits
    assert grown.hit.path == ("Slots", "limits")
    assert "\n\n#### names\n\n2 A slot" in grown.hit.text


def test_a_passage_never_begins_in_another_section_than_its_hit() -> None:
    chunks = page("overview", "limits", "limits")
    found = grow_passages("slot", [hit(chunks, 2, 0.9), hit(chunks, 1, 0.8)], 5, 1000)
    assert [(grown.hit.path[-1], numbers(grown.hit.text)) for grown in found.hits] == [("limits", [2, 3, 1])]
    assert "\n\n#### […] overview (pg/slots.html#c1)\n\n1 A slot" in found.hits[0].hit.text
    assert len(grow_passages("slot", [hit(chunks, 2, 0.9), hit(chunks, 1, 0.8)], 1, 1000).hits) == 1


def test_a_chunk_between_two_hits_of_a_page_comes_before_weaker_pages() -> None:
    page_ = page("synopsis", "options", "examples")
    other = page("names", document="pg/names.html")
    hits = [hit(page_, 1, 0.9), hit(page_, 3, 0.85), hit(other, 1, 0.7)]
    room = 3 * (len(WORDS) + 110)
    found = grow_passages("password", hits, 5, room // 4)
    assert sorted(number for grown in found.hits for number in numbers(grown.hit.text)) == [1, 2, 3]


def test_places_of_a_page_are_one_hit_with_the_best_place_first() -> None:
    chunks, other = page(*"abcdefgh"), page("names", document="pg/names.html")
    hits = [hit(chunks, 6, 0.9), hit(other, 1, 0.85), hit(chunks, 2, 0.8)]
    found = grow_passages("slot", [replace(one, context=(), anchors=(one.section,)) for one in hits], 2, 1000)
    assert [(grown.hit.chunk_id, numbers(grown.hit.text)) for grown in found.hits] == [
        ("pg/slots.html#c6", [6, 2]),
        ("pg/names.html#c1", [1]),
    ]
    assert found.hits[0].hit.anchors == ("f", "b")
    assert "#### […] b (pg/slots.html#c2)" in found.hits[0].hit.text
    assert found.omitted == 0


def test_a_passage_that_goes_on_names_the_chunk_that_continues_it() -> None:
    chunks = page(*["limits"] * 9, text=WORDS * 5)
    found = grow_passages("slot", [hit(chunks, 2, 0.9)], 5, 2000)
    (grown,) = found.hits
    shown = numbers(grown.hit.text)
    assert grown.continues_at == f"pg/slots.html#c{shown[-1] + 1}"
    assert len(grown.hit.text) <= MAX_PASSAGE_CHARACTERS


def test_neighbours_of_other_sections_are_left_out_where_hits_suffice() -> None:
    chunks = page("names", "limits", "types")
    found = grow_passages("slot", [hit(chunks, 2, 0.9)], 5, 1000, 0.6)
    assert [numbers(grown.hit.text) for grown in found.hits] == [[2]]


def test_the_number_of_passages_is_limited() -> None:
    hits = [hit(page("s", document=f"pg/{name}.html", text=f"{WORDS}{name}"), 1, 0.9) for name in "abcdefgh"]
    assert len(grow_passages("slot", hits, 3, 5000).hits) == 3


def test_another_form_of_the_same_page_is_dropped() -> None:
    html, text = page("a", "b", document="git/stash.html"), page("a", document="git/stash.txt", text=f"`{WORDS}`")
    mirror = page("a", document="git/other.txt")
    hits = [hit(html, 2, 0.9), hit(text, 1, 0.8), hit(mirror, 1, 0.7)]
    assert [one.document.id for one in drop_twins(hits)] == ["git/stash.html", "git/other.txt"]


def test_the_best_form_of_a_page_is_kept_where_its_page_has_better_hits() -> None:
    html, text = page("a", "b", document="git/stash.html"), page("b", document="git/stash.txt", text=f"`{WORDS}`")
    hits = [hit(html, 1, 0.9), replace(hit(text, 1, 0.5), base_score=0.5), replace(hit(html, 2, 0.4), base_score=0.7)]
    unrelated = replace(hits[0], text="About something else", context=())
    kept = drop_twins([unrelated, *hits[1:]])
    assert [(one.document.id, one.score) for one in kept] == [("git/stash.html", 0.9), ("git/stash.html", 0.5)]


def test_documents_that_are_still_being_indexed_are_told_of_the_sets_searched() -> None:
    sets = [CollectionInfo(name, name, "", 196, AT, AT, pending=count) for name, count in (("pg", 115), ("git", 0))]
    assert format_pending(sets, ()) == "115 of 196 documents of pg are still being indexed"
    assert format_pending(sets, ("git",)) == ""


@given(st.lists(st.text(min_size=1, max_size=3000), min_size=1, max_size=20), st.integers(100, 5000))
def test_what_is_shown_keeps_to_the_budget(texts: list[str], max_tokens: int) -> None:
    hits = [hit(page("s", document=f"pg/{number}.md", text=text), 1, 0.5) for number, text in enumerate(texts)]
    found = grow_passages("slot", hits, 10, max_tokens)
    size = sum(len(grown.hit.text) + measure_frame(grown.hit) for grown in found.hits)
    assert size <= max(max_tokens * 4, measure_frame(hits[0]) + 200) + 20
    assert found.hits
    assert len(found.hits) + found.omitted >= min(len(hits), 10)
