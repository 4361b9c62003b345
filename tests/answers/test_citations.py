"""Citations: found, and resolved or not."""

from __future__ import annotations

import pytest

from refdesk.answers.writing import check_grounding


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("It is 5432 [1].", (0,)),
        ("Both say so [2, 1], and [2] again.", (1, 0)),
        ("All of them [1-3].", (0, 1, 2)),
        ("All of them [1–3] and [1][2].", (0, 1, 2)),
        ("As a footnote[^2]", (1,)),
        ("Mixed [1; 3]", (0, 2)),
        ("A link [2](https://x.org)", (1,)),
    ],
)
def test_citations_are_found_in_every_usual_form(answer: str, cited: tuple[int, ...]) -> None:
    found = check_grounding(answer, 3)
    assert (found.cited, found.unknown, found.is_valid) == (cited, (), True)


@pytest.mark.parametrize("answer", ["[4]", "[0]", "So [1, 9]", "[2-7]", "[3-1]", "[1-999999999]"])
def test_an_answer_with_a_citation_that_was_not_retrieved_is_not_sound(answer: str) -> None:
    assert not check_grounding(answer, 3).is_valid


@pytest.mark.parametrize(
    "answer",
    [
        "Take `array[1]`.",
        "Take ``a`[1]`b``.",
        "So:\n\n```\nx = rows[2]\n```\n",
        "So:\n\n~~~sql\nx[9]\n~~~",
        "So:\n```\nx[1]",
        "An [empty] one, a [1.5] and [a1].",
    ],
)
def test_code_is_no_citation_and_an_uncited_answer_is_not_sound(answer: str) -> None:
    found = check_grounding(answer, 3)
    assert (found.cited, found.unknown, found.is_valid) == ((), (), False)


def test_a_citation_after_code_counts() -> None:
    assert check_grounding("Take `array[7]` [1].\n\n```\nx[8]\n```\n\nAnd more [2].", 3).cited == (0, 1)


def test_a_lone_backtick_hides_nothing() -> None:
    assert check_grounding("It is ` here [7].", 3).unknown == (7,)


@pytest.mark.parametrize(
    "answer",
    [
        "No answer found in your documents.",
        "The documents do not hold the answer.",
        "Sorry, the passages don't contain that.",
        "The provided documentation does not mention Oracle RAC.",
    ],
)
def test_saying_that_the_documents_do_not_hold_it_needs_no_citation(answer: str) -> None:
    found = check_grounding(answer, 3)
    assert found.is_denial
    assert found.is_valid


def test_a_denial_with_a_forged_citation_is_not_sound() -> None:
    assert not check_grounding("No answer found in your documents, but see [8].", 3).is_valid
