"""Words and meaning weighed against each other, and the order that passages are given in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.engines.ranking import ChunkCandidate, compute_coverages, fuse, rank, select_top

SCORE = st.floats(-1, 40) | st.just(float("nan"))


LONG_TEXT = "Run the installer as a superuser, restart the server, then log in again: that is all there is to do here."


def candidate(key: int, score: float, **changes: object) -> ChunkCandidate:
    plain = ChunkCandidate(
        key=key,
        similarity=score / 2,
        document=key,
        section=f"s{key}",
        path=(f"Heading {key}",),
        title=f"Title {key}",
        text=f"passage number {key}",
        fused=score,
    )
    return plain._replace(**changes)  # type: ignore[arg-type]  # names and types are checked when it runs


def rank_keys(query: str, *candidates: ChunkCandidate, limit: int = 10) -> list[int]:
    return [one.key for one in rank(query, candidates, limit)]


NAN = float("nan")


def fuse_scores(lexical: list[float], semantic: list[float], **given: float) -> list[float]:
    """What is made of the candidates, in their order."""
    return list(fuse(np.array(lexical, float), np.array(semantic, float), **given).tolist())


def test_what_both_indexes_find_comes_before_what_one_finds() -> None:
    found = fuse_scores([20.0, 19.0, NAN, NAN, 2.0], [0.3, 0.75, 0.8, 0.1, 0.1])
    assert select_top(np.arange(5), np.array(found), 3).tolist() == [1, 0, 2]


def test_the_weight_says_how_much_words_count() -> None:
    lexical, semantic = [9.0, 1.0], [0.1, 0.9]
    assert fuse_scores(lexical, semantic, weight=1.0)[0] == 1.0
    assert fuse_scores(lexical, semantic, weight=0.0)[1] == 1.0


def test_lexical_matches_of_few_query_terms_count_less() -> None:
    lexical, semantic = [3.0, 2.0], [0.4, 0.6]
    assert np.argmax(fuse_scores(lexical, semantic, highest=4.0)) == 0
    assert np.argmax(fuse_scores(lexical, semantic, highest=30.0)) == 1


def test_how_near_a_candidate_of_words_is_counts_although_meaning_did_not_find_it() -> None:
    one, two, three = fuse_scores([10.0, 10.0, NAN], [0.2, 0.6, 0.9])
    assert two > one > three


def test_a_candidate_whose_meaning_nobody_knows_yet_is_judged_by_its_words() -> None:
    assert fuse_scores([10.0, 10.0], [NAN, 0.6]) == [1.0, 1.0]


def test_one_index_alone_keeps_its_order() -> None:
    assert fuse_scores([3.0, 2.0, 1.5], [NAN] * 3) == pytest.approx([1.0, 2 / 3, 0.5])
    assert fuse_scores([NAN] * 2, [0.4, 0.2]) == pytest.approx([1.0, 0.5])
    assert fuse_scores([], []) == []


@given(st.lists(st.tuples(SCORE, SCORE), max_size=40))
def test_every_candidate_gets_a_score_between_0_and_1(scores: list[tuple[float, float]]) -> None:
    found = fuse_scores([words for words, _ in scores], [meaning for _, meaning in scores])
    assert len(found) == len(scores)
    assert all(0 <= score <= 1 for score in found)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 40))
def test_the_best_come_first_and_of_equals_the_lower_key(scores: list[int], count: int) -> None:
    keys = np.arange(len(scores))[::-1].copy()
    places = select_top(keys, np.array(scores, float), count).tolist()
    order = sorted(range(len(scores)), key=lambda place: (-scores[place], keys[place]))
    assert places == order[:count]


def test_a_section_is_given_once_by_its_best_passage() -> None:
    same = {"document": 7, "section": "install"}
    assert rank_keys("word", candidate(1, 0.5, **same), candidate(2, 0.9, **same), candidate(3, 0.1)) == [2, 3]


def test_distant_places_of_a_section_are_both_given() -> None:
    same = {"document": 7, "section": "changes"}
    near, far = candidate(2, 0.8, ordinal=12, **same), candidate(3, 0.8, ordinal=40, **same)
    assert rank_keys("word", candidate(1, 0.9, ordinal=10, **same), near, far) == [1, 3]


def test_the_passage_whose_heading_is_the_identifier_asked_for_comes_first() -> None:
    mention = candidate(1, 0.9, path=("Replication", "wal_receiver_timeout"))
    definition = candidate(2, 0.8, path=("Replication", "wal_sender_timeout"))
    assert rank_keys("wal_sender_timeout", mention, definition)[0] == 2
    assert rank_keys("how long replication waits", mention, definition)[0] == 1


def test_the_innermost_heading_says_most_about_a_passage() -> None:
    other = candidate(1, 0.65, title="Require API keys", path=("Require API keys", "Optional keys"))
    asked_for = candidate(2, 0.6, title="Require API keys", path=("Require API keys", "Require one API key"))
    assert rank_keys("How do I require an API key?", other, asked_for)[0] == 2


def test_the_title_counts_once() -> None:
    titled = candidate(1, 0.6, title="Recovery", path=("Recovery",))
    headed = candidate(2, 0.6, title="Recovery", path=("Recovery", "Recovery targets"))
    assert rank_keys("recovery", titled, headed)[0] == 2


def test_the_beginning_of_a_document_decides_between_equals() -> None:
    later, first = candidate(1, 0.6, ordinal=9), candidate(2, 0.6, ordinal=1)
    assert rank_keys("word", later, first)[0] == 2
    assert rank_keys("word", later._replace(fused=0.7), first)[0] == 1


def test_a_passage_with_the_identifier_as_a_term_defines_it() -> None:
    mention = candidate(1, 0.9, text="Set `wal_sender_timeout` on the primary.")
    for term in ("**`wal_sender_timeout` (`integer`)**", "`wal_sender_timeout`"):
        definition = candidate(2, 0.8, text=f"**other**\n\nAnother one.\n\n{term}\n\nEnds idle connections.")
        assert rank_keys("wal_sender_timeout", mention, definition)[0] == 2


@pytest.mark.parametrize("query", ["what is a submodule", "What are submodules?", "what's a Submodule for"])
def test_a_passage_that_defines_what_the_query_asks_for_beats_those_that_mention_it(query: str) -> None:
    mention = candidate(1, 1.0, text="The submodule and the submodule of a submodule are updated.")
    definition = candidate(2, 0.95, text="Nested. A **submodule** is a repository embedded inside another one.")
    assert rank_keys(query, mention, definition) == [2, 1]
    assert rank_keys("update a submodule", mention, definition) == [1, 2]


def test_coverage_is_the_share_of_the_query_terms_in_text_and_headings() -> None:
    found = [candidate(1, 1.0, text="pull the branch"), candidate(2, 1.0, path=("Pulling a branch",), text="see below")]
    assert compute_coverages("pull branch", [*found, candidate(3, 1.0, text="pull it")]) == [1.0, 1.0, 0.5]


def test_the_score_without_the_discount_for_its_document_is_kept() -> None:
    first, second = rank("word", [candidate(1, 0.9, document=7), candidate(2, 0.9, document=7)], 2)
    assert first.base_score == first.score
    assert second.base_score > second.score


def test_a_second_section_of_a_document_gives_way_to_another_document_that_is_almost_as_good() -> None:
    first, second = candidate(1, 0.9, document=7), candidate(2, 0.70, document=7)
    assert rank_keys("word", first, second, candidate(3, 0.85)) == [1, 3, 2]


def test_a_passage_beats_its_equal_when_more_of_its_document_speaks_for_it() -> None:
    alone, supported = candidate(1, 0.6), candidate(2, 0.6, document=7)
    assert rank_keys("word", alone, supported)[0] == 1
    assert rank_keys("word", alone, supported, candidate(3, 0.5, document=7))[0] == 2


def test_headings_that_hold_the_words_of_the_query_decide_between_equals() -> None:
    other, headed = candidate(1, 0.6), candidate(2, 0.6, path=("Point-in-Time Recovery",))
    assert rank_keys("how does recovery work", other, headed)[0] == 2


def test_a_list_of_links_gives_way_to_a_passage_that_says_something() -> None:
    links = "\n".join(f"- [Chapter {number}](chapter-{number}.html)" for number in range(6))
    prose = "Read [one](a.html), [two](b.html), [three](c.html) and [four](d.html) " + "to learn how it is done. " * 9
    contents, passage = candidate(1, 0.7, text=links), candidate(2, 0.6, text=prose)
    assert rank_keys("word", contents, passage) == [2, 1]
    assert rank_keys("word", candidate(1, 0.7, text=prose), passage) == [1, 2]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, [1]),
        ({"text": f"{LONG_TEXT} Good luck!"}, [1]),
        ({"text": "Something else altogether."}, [1, 2]),
        ({"version": "16"}, [1, 2]),
        ({"title": "Another tool"}, [1, 2]),
    ],
)
def test_a_copy_is_left_out_unless_it_is_of_another_version_or_under_another_title(
    change: dict[str, object], kept: list[int]
) -> None:
    shared: dict[str, object] = {
        "title": "Guide",
        "path": ("Install",),
        "version": "15",
        "text": LONG_TEXT,
    }
    assert rank_keys("word", candidate(1, 0.9, **shared), candidate(2, 0.8, **(shared | change))) == kept


def test_no_more_are_given_than_wanted_and_copies_do_not_use_up_the_limit() -> None:
    shared: dict[str, object] = {"title": "Guide", "path": (), "text": "the same"}
    copies = [candidate(key, 1 - key / 100, **shared) for key in range(1, 6)]
    assert rank_keys("word", *copies, candidate(9, 0.1), limit=2) == [1, 9]
    assert rank_keys("word", *copies, limit=0) == []
    assert rank_keys("word") == []


@given(st.dictionaries(st.integers(0, 99), st.floats(0, 1), max_size=20), st.text(max_size=30))
def test_scores_fall_and_stay_between_0_and_1(fused: dict[int, float], query: str) -> None:
    found = rank(query, [candidate(key, score, document=key % 4) for key, score in fused.items()], 50)
    scores = [one.score for one in found]
    assert len(found) == len(fused)
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_the_score_tells_an_answer_from_the_best_of_nothing() -> None:
    text = "A standby server is promoted with pg_ctl promote."
    answer = rank("how is a standby promoted", [candidate(1, 1.0, text=text, similarity=0.7)], 1)[0]
    nothing = rank("recipe for tomato soup", [candidate(1, 1.0, text=text, similarity=0.1)], 1)[0]
    assert answer.score > 0.9
    assert nothing.score < 0.05


def test_without_vectors_the_score_is_the_share_of_the_words_that_were_found() -> None:
    found = rank("promote zebra", [candidate(1, 1.0, text="how to promote it", similarity=None)], 1)
    assert found[0].score == pytest.approx(0.5)
