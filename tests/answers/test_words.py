"""Words as they are compared."""

from __future__ import annotations

import pytest

from refdesk.answers.extractive import extract_stems, extract_terms, measure_coverage


def share(question: str, text: str) -> float:
    return measure_coverage(extract_terms(question), extract_stems(text), frozenset(), 0.0)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("configuring", "configuration"),
        ("replicate", "replication"),
        ("queries", "query"),
        ("settings", "set"),
        ("indexes", "index"),
        ("running", "run"),
        ("classes", "class"),
    ],
)
def test_forms_of_a_word_are_equal(one: str, other: str) -> None:
    assert extract_stems(one) & extract_stems(other)


def test_words_that_say_nothing_are_not_looked_for() -> None:
    assert [term.stem for term in extract_terms("How do I use the index?")] == ["index"]


def test_a_question_of_such_words_alone_keeps_them() -> None:
    assert extract_terms("what is it")


def test_a_name_is_found_whole_and_by_its_parts() -> None:
    assert share("max_connections", "Set `max_connections` now") == 1.0
    assert share("max connections", "Set `max_connections` now") == 1.0
    assert 0 < share("max_connections", "the max of connections") < 1.0
    assert share("proc array", "ProcArrayLock") == 1.0


def test_a_missing_name_weighs_more_than_a_missing_word() -> None:
    question = "How do I create an index in MongoDB?"
    assert share(question, "create an index") < 0.5 < share(question, "MongoDB index")


def test_the_first_word_of_a_question_is_no_name_for_its_capital() -> None:
    first, other = extract_terms("Indexes slow"), extract_terms("indexes slow")
    assert first == other


def test_languages_without_blanks_are_compared_by_pairs() -> None:
    assert share("索引の作成", "索引を作成する") > 0.4
    assert share("索引の作成", "料理の本") < 0.3


def test_what_only_the_context_has_is_worth_less() -> None:
    terms = extract_terms("drop index")
    assert measure_coverage(terms, extract_stems("drop"), extract_stems("index"), 0.5) == pytest.approx(
        measure_coverage(terms, extract_stems("drop"), frozenset(), 0.5)
        + 0.5 * measure_coverage(terms, extract_stems("index"), frozenset(), 0.5)
    )
