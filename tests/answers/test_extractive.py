"""Answers in the documents' own sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.answers.extractive import (
    MAX_EMBEDDED_FRAGMENTS,
    FragmentPosition,
    QuoteSelection,
    Vectors,
    build_quotes,
    extract,
)
from refdesk.answers.question import Question
from refdesk.answers.sentences import split_fragments
from refdesk.documents.tokens import count_tokens
from refdesk.engines.base import Hit
from refdesk.errors import EngineError
from tests.answers.sample_hits import BACKUP, FORMATS, PORT, hit

pytestmark = pytest.mark.anyio

HITS = (PORT, BACKUP, FORMATS)


def parse_quotes(text: str) -> list[tuple[str, int]]:
    """Return the quotes of an answer, each with its citation number."""
    parts = re.split(r"\s*\[(\d+)\](?:\n\n|\Z)", text)
    return list(zip(parts[::2], map(int, parts[1::2]), strict=False))


async def test_the_sentence_that_answers_is_quoted_with_its_source_and_its_term() -> None:
    written = await extract(Question("Which TCP port does the server listen on by default?"), HITS)
    assert written.found
    assert written.cited == (0,)
    assert written.model == "extractive"
    assert written.text.startswith("**`port` (`integer`)**\n\nThe TCP port the server listens on; 5432 by default.")
    assert written.text.endswith("[1]")


async def test_code_that_a_sentence_announces_is_quoted_whole_with_it() -> None:
    written = await extract(Question("dump a database into a script file"), HITS)
    assert "To dump a database called `mydb` into a script file:\n\n```\n$ pg_dump mydb > db.sql\n```" in written.text
    assert written.cited[0] == 1


async def test_a_row_of_a_table_is_quoted_whole_under_its_head() -> None:
    written = await extract(Question("dump formats option directory"), HITS)
    assert "| Format | Option |\n| --- | --- |\n| directory | `-Fd` |\n\n[3]" in written.text


async def test_what_the_documents_do_not_hold_is_said_plainly_with_the_nearest_of_them() -> None:
    written = await extract(Question("How do I scale a Kubernetes deployment?"), HITS)
    assert not written.found
    assert written.text == "No answer found in your documents. Closest: “Connections” [1], “pg_dump” [2]."
    assert written.cited == (0, 1)


async def test_without_hits_it_is_said_as_plainly() -> None:
    written = await extract(Question("anything"), ())
    assert (written.found, written.cited) == (False, ())
    assert written.text.startswith("No answer found in your documents")


async def test_the_same_sentence_in_two_documents_is_quoted_once() -> None:
    is_retry = hit(PORT.text, document="copy.html", path=PORT.path)
    written = await extract(Question("Which TCP port does the server listen on?"), (PORT, is_retry))
    assert written.text.count("5432") == 1
    assert written.cited == (0,)


async def test_a_sentence_that_leans_back_brings_the_one_before_it() -> None:
    text = "A checkpoint writes all dirty pages. This reduces the time of recovery after a crash. Colours are nice."
    written = await extract(Question("reduce recovery time after a crash"), (hit(text),))
    assert written.text == "A checkpoint writes all dirty pages. This reduces the time of recovery after a crash. [1]"


async def test_quotes_are_grouped_by_document_in_reading_order() -> None:
    hits = (
        hit("Vacuum frees dead rows for reuse.", document="a.html", chunk=12),
        hit("Vacuum frees dead rows in tables and indexes.", document="b.html"),
        hit("Vacuum frees the dead rows of catalogs, too.", document="a.html", chunk=3),
    )
    written = await extract(Question("vacuum frees dead rows"), hits)
    assert [number for _, number in parse_quotes(written.text)] == [3, 1, 2]


async def test_a_budget_too_small_for_any_sentence_is_said_and_not_broken_by_half_of_one() -> None:
    written = await extract(Question("Which TCP port does the server listen on by default?", max_tokens=3), HITS)
    assert "5432" not in written.text
    assert "max_tokens" in written.text
    assert written.cited == (0,)


async def test_meaning_finds_what_shares_no_word() -> None:
    texts = ("Backends end at once when a signal of this kind comes.", "Queries may be long, and kill time.")

    async def embed(given: Sequence[str]) -> Vectors:
        return np.array([[1.0, 0.0] if "signal" in text or "?" in text else [0.0, 1.0] for text in given], np.float32)

    hits = (hit(texts[1], document="b.html"), hit(texts[0], path=("Guide", "Kill a query")))
    by_words = await extract(Question("How do I kill a query?"), hits)
    by_meaning = await extract(Question("How do I kill a query?"), hits, embed)
    assert parse_quotes(by_words.text)[0] == (texts[1], 1)
    assert parse_quotes(by_meaning.text)[0] == (texts[0], 2)


async def test_only_so_many_sentences_are_embedded_and_in_one_call() -> None:
    calls: list[int] = []

    async def embed(given: Sequence[str]) -> Vectors:
        calls.append(len(given))
        return np.ones((len(given), 2), np.float32)

    text = " ".join(f"Row number {number} is dead." for number in range(200))
    await extract(Question("dead row"), (hit(text),), embed)
    assert calls == [MAX_EMBEDDED_FRAGMENTS + 1]


async def test_a_model_of_meaning_that_is_down_leaves_the_words() -> None:
    async def embed(given: Sequence[str]) -> Vectors:
        raise EngineError("the endpoint is down")

    written = await extract(Question("Which TCP port does the server listen on?"), HITS, embed)
    assert "5432" in written.text


WORDS = st.sampled_from("the server port index. Table is Dead! rows [1] `a. B` vacuum 索引。 e.g. 5432?".split(" "))
LINES = st.one_of(
    st.lists(WORDS, min_size=1, max_size=12).map(" ".join),
    st.sampled_from(["", "", "```", "| port | index |", "| --- | --- |", "- port:", "**port**", "## Port", "> port"]),
)
TEXTS = st.lists(LINES, min_size=1, max_size=10).map("\n".join)


@given(st.lists(TEXTS, min_size=1, max_size=3), st.data())
def test_every_quote_is_made_of_slices_of_its_hit_and_fits_the_budget(texts: list[str], data: st.DataObject) -> None:
    hits = [hit(text, document=f"{number}.html") for number, text in enumerate(texts)]
    parts = [split_fragments(text) for text in texts]
    places = [FragmentPosition(number, at) for number, own in enumerate(parts) for at in range(len(own))]
    if not places:
        return
    budget = data.draw(st.integers(1, 120))
    selection = QuoteSelection(parts, budget)
    for place in data.draw(st.lists(st.sampled_from(places), max_size=8)):
        selection.add(place)
    found = build_quotes(tuple(selection.positions), parts, hits)
    assert count_tokens("\n\n".join(quote.text for quote in found)) <= budget
    for quote in found:
        assert all(part in texts[quote.hit] for part in quote.slices)
        assert quote.text.endswith(f"[{quote.hit + 1}]")


@pytest.mark.parametrize("question", ["", "?", "the", "[1]", "\ud800", "a" * 5000])
async def test_any_text_can_be_asked(question: str) -> None:
    assert (await extract(Question(question), HITS)).text


async def test_an_empty_passage_is_not_found() -> None:
    empty: Hit = hit("")
    assert not (await extract(Question("port"), (empty,))).found
