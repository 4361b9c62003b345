"""Measures of rankings, against values worked out by hand."""

from __future__ import annotations

from math import log2

import pytest

from refdesk.cli.ask import PassageHit
from refdesk.cli.evaluation import (
    Query,
    QuerySet,
    Target,
    average,
    gains,
    hit,
    ndcg,
    read_qrels,
    read_queries,
    recall,
    reciprocal_rank,
    scores,
)
from refdesk.errors import InvalidArguments

NAMES = ("ndcg@10", "recall@5", "recall@10", "hit@1", "hit@5", "mrr@10")


def build_hit(document_id: str, anchors: frozenset[str] = frozenset()) -> PassageHit:
    return PassageHit(document_id, "", 0.0, {"anchors": sorted(anchors)})


def test_ndcg_of_one_answer_in_third_place_is_one_half() -> None:
    assert ndcg([0, 0, 1], [1], 10) == pytest.approx(1 / log2(4))


def test_ndcg_weighs_graded_answers_by_their_place() -> None:
    found = 1 / log2(2) + 2 / log2(4)
    best = 2 / log2(2) + 1 / log2(3)
    assert ndcg([1, 0, 2], [1, 2], 10) == pytest.approx(found / best)
    assert ndcg([2, 1], [1, 2], 10) == 1.0


def test_ndcg_asks_of_a_ranking_no_more_answers_than_it_has_places() -> None:
    assert ndcg([1.0] * 10, [1.0] * 30, 10) == 1.0


def test_what_lies_deeper_than_is_looked_at_does_not_count() -> None:
    found = [0.0] * 10 + [1.0]
    assert (ndcg(found, [1], 10), recall(found, 1, 10), hit(found, 5), reciprocal_rank(found, 10)) == (0, 0, 0, 0)


def test_recall_hit_and_reciprocal_rank() -> None:
    found = [0.0, 1.0, 0.0, 1.0]
    assert recall(found, 4, 5) == 0.5
    assert recall(found, 4, 2) == 0.25
    assert (hit(found, 1), hit(found, 5)) == (0.0, 1.0)
    assert reciprocal_rank(found, 10) == 0.5


def test_an_empty_ranking_scores_nothing() -> None:
    assert scores([], {Target("a"): 1.0}) == dict.fromkeys(NAMES, 0)


def test_scores_of_a_ranking() -> None:
    ranking = [build_hit("c/x"), build_hit("c/a"), build_hit("c/b")]
    found = scores(ranking, {Target("a"): 1.0, Target("b"): 1.0})
    best = 1 + 1 / log2(3)
    assert found["ndcg@10"] == pytest.approx((1 / log2(3) + 1 / log2(4)) / best)
    assert (found["recall@5"], found["hit@1"], found["hit@5"], found["mrr@10"]) == (1.0, 0.0, 1.0, 0.5)


def test_the_mean_is_taken_of_every_measure() -> None:
    best, worse = dict.fromkeys(NAMES, 1), dict(zip(NAMES, (0, 0.5, 1, 0, 1, 0.5), strict=True))
    assert average([best, worse]) == dict(zip(NAMES, (0.5, 0.75, 1, 0.5, 1, 0.75), strict=True))


def test_a_section_is_found_by_what_is_or_lies_in_it() -> None:
    target = Target("indexes.html", "INDEXES-TYPES")
    assert target.is_matched_by(build_hit("pg/indexes.html", frozenset({"INDEXES", "INDEXES-TYPES", "BTREE"})))
    assert not target.is_matched_by(build_hit("pg/indexes.html", frozenset({"INDEXES"})))
    assert not target.is_matched_by(build_hit("pg/more-indexes.html", frozenset({"INDEXES-TYPES"})))
    assert Target("indexes.html").is_matched_by(build_hit("pg/indexes.html"))


def test_a_target_counts_once_and_a_result_for_one_target() -> None:
    outer, inner = Target("a", "OUTER"), Target("a", "INNER")
    in_both = build_hit("c/a", frozenset({"OUTER", "INNER"}))
    in_outer = build_hit("c/a", frozenset({"OUTER"}))
    assert gains([in_both, in_both, in_both], {outer: 1.0}) == [1.0, 0.0, 0.0]
    assert sum(gains([in_both, in_outer], {inner: 1.0, outer: 1.0})) == 2.0
    assert gains([in_both], {inner: 1.0, outer: 2.0}) == [2.0]


def test_the_page_that_a_query_was_taken_from_is_passed_over() -> None:
    query = Query("q", {Target("a"): 1.0}, source_document="src.html")
    ranking = [build_hit("c/src.html"), build_hit("c/a")]
    assert QuerySet([query], by_document=False).ranking(query, ranking) == [build_hit("c/a")]


def test_by_document_each_counts_where_it_comes_first() -> None:
    query = Query("q", {})
    ranking = [
        build_hit("c/a", frozenset({"1"})),
        build_hit("c/b"),
        build_hit("c/a", frozenset({"2"})),
        build_hit("c/d"),
    ]
    found = QuerySet([query], by_document=True).ranking(query, ranking)
    assert [result.document_id for result in found] == ["c/a", "c/b", "c/d"]
    assert QuerySet([query], by_document=False).ranking(query, ranking) == ranking


def test_queries_with_sections_are_read() -> None:
    line = '{"qid": "x1", "query": "why?", "rel": [["a.html", "A"], ["b.html", null]], "src": "s.html"}'
    judged = read_queries([line, ""])
    assert not judged.by_document
    assert judged.queries == [Query("why?", {Target("a.html", "A"): 1.0, Target("b.html"): 1.0}, "s.html")]


def test_queries_in_the_beir_form_are_read_and_those_without_an_answer_left_out() -> None:
    lines = ['{"_id": "1", "text": "why?"}', '{"_id": "2", "text": "who?"}', '{"_id": "3", "text": "what?"}']
    judged = read_queries(lines, ["query-id\tcorpus-id\tscore", "1\td1\t2", "1\td2\t1", "2\td1\t0"])
    assert judged.by_document
    assert judged.queries == [Query("why?", {Target("d1"): 2.0, Target("d2"): 1.0})]


def test_qrels_may_have_the_four_columns_of_trec() -> None:
    assert read_qrels(["1 0 d1 1", "", "2 0 d2 0"]) == {"1": {Target("d1"): 1.0}}


@pytest.mark.parametrize(
    ("lines", "qrels", "said"),
    [
        (['{"query": "why?"}'], None, "line 1 must have"),
        (['{"query": "why?", "rel": [["a.html"]]}'], None, "line 1 must have"),
        (["[]"], None, "not a JSON object"),
        (['{"_id": "1"}'], ["1\td1\t1"], '"query" or "text"'),
        (['{"_id": "1", "text": "why?"}'], ["1\td1\tmuch"], "--qrels: line 1"),
        (['{"_id": "1", "text": "why?"}'], ["2\td1\t1"], "no judged query"),
        ([], None, "no judged query"),
    ],
)
def test_what_is_wrong_with_a_file_is_told(lines: list[str], qrels: list[str] | None, said: str) -> None:
    with pytest.raises(InvalidArguments) as raised:
        read_queries(lines, qrels)
    assert said in raised.value.detail
