"""The scorer that conversions are judged by: fair to every dialect, and never blind to damage."""

from __future__ import annotations

import pytest
from lxml import html

from quality.score import Score, mean, score
from quality.similarity import common_length, pair_up, similarity
from quality.structure import DEFINITION, Cell, Heading, structure_of
from quality.truth import markdown_of

MANUAL = """\
# Backups

Copies are made *every night* by `cron`, see [the plan](plan.html) &amp; its \\* notes.

## Restoring a copy

1. Stop the server.
2. Copy the files back.
   - first the index
   - then the data

```sh
systemctl stop desk
  rsync -a /backup/ /srv/desk/
```

### What is kept

| Day | Copies | Where |
|-----|-------:|-------|
| Monday | 3 | disk |
| Sunday | 12 | tape |

## Limits

Nothing is kept for more than a year.
"""


def damaged(old: str, new: str = "") -> Score:
    """The score of the manual with one thing gone wrong."""
    assert old in MANUAL
    return score(MANUAL, MANUAL.replace(old, new))


def test_a_perfect_conversion_scores_one_in_everything() -> None:
    assert score(MANUAL, MANUAL) == Score(1, 1, 1, 1, 1, 1, 1, 1)


def test_the_dialect_does_not_matter() -> None:
    other = """\
Backups
=======

Copies are made **every night** by cron, see the plan & its * notes.

Restoring a copy
----------------

1) Stop the server.
2) Copy the files back.
   * first the index
   * then the data

<!-- -->

    systemctl stop desk
    rsync  -a  /backup/ /srv/desk/

### What is kept ###

<table>
<thead><tr><th>Day</th><th>Copies</th><th>Where</th></tr></thead>

<tbody><tr><td>Monday</td><td><p>3</p></td><td>disk</td></tr>
<tr><td>Sunday</td><td>12</td><td>tape</td></tr></tbody>
</table>

## Limits

Nothing is kept for more than a year.
"""
    assert score(MANUAL, other) == Score(1, 1, 1, 1, 1, 1, 1, 1)


def test_a_table_without_outer_pipes_is_a_table() -> None:
    assert score("|a|b|\n|-|-|\n|1|2|", "a | b\n--|--\n1 | 2").adjacency_f1 == 1


def test_lost_words_lower_the_text_and_nothing_else() -> None:
    result = damaged("Nothing is kept for more than a year.")
    assert result.text is not None
    assert 0.8 < result.text < 1
    assert (result.heading_f1, result.adjacency_f1, result.code_f1, result.item_f1) == (1, 1, 1, 1)


def test_words_in_the_wrong_order_lower_the_text() -> None:
    text = score("one two three four five six", "four five six one two three").text
    assert text == pytest.approx(0.5)


def test_a_lost_heading_lowers_the_headings() -> None:
    result = damaged("## Limits", "Limits")
    assert result.heading_f1 == pytest.approx(6 / 7)
    assert result.text == 1


def test_a_paragraph_made_a_heading_lowers_the_headings() -> None:
    assert damaged("Nothing is kept", "#### Nothing is kept").heading_f1 == pytest.approx(8 / 9)


def test_numbering_and_slips_in_a_heading_are_forgiven() -> None:
    assert damaged("## Restoring a copy", "## 2.1. Restoring a  c opy").heading_f1 == 1


def test_levels_that_are_all_one_deeper_are_right() -> None:
    assert score("# A\n\n## B", "## A\n\n### B").heading_level == 1


def test_a_heading_at_the_wrong_depth_lowers_the_level_only() -> None:
    result = damaged("### What is kept", "## What is kept")
    assert result.heading_level == pytest.approx(3 / 4)
    assert (result.heading_f1, result.overall) == (1, 1)


def test_a_lost_table_takes_cells_and_pairs_with_it() -> None:
    result = score("| a | b |\n|---|---|\n| 1 | 2 |", "a b\n\n1 2")
    assert (result.cell_f1, result.adjacency_f1, result.text) == (0, 0, 1)


def test_a_cell_in_the_wrong_column_costs_its_pairs() -> None:
    result = damaged("| Monday | 3 | disk |", "| Monday | disk | 3 |")
    assert result.cell_f1 == 1
    assert result.adjacency_f1 is not None
    assert result.adjacency_f1 < 0.7


def test_a_slip_is_forgiven_in_a_long_cell_and_never_in_a_number() -> None:
    truth = "| Name | What it holds |\n|---|---|\n| 13 | the number of rows |"
    assert score(truth, truth.replace("number of", "num- ber of")).adjacency_f1 == 1
    assert score(truth, truth.replace("13", "18")).adjacency_f1 == pytest.approx(2 / 4)
    assert score(truth, truth.replace("number of", "names and sizes of all")).cell_f1 == pytest.approx(3 / 4)


def test_a_wide_cell_may_be_written_once_or_in_every_place() -> None:
    truth = '<table><tr><td colspan="2">Sizes</td></tr><tr><td>small</td><td>large</td></tr></table>'
    once = "| Sizes | |\n|---|---|\n| small | large |"
    everywhere = "| Sizes | Sizes |\n|---|---|\n| small | large |"
    assert score(truth, once).adjacency_f1 == 1
    assert score(truth, everywhere).adjacency_f1 == 1


def test_code_set_as_a_paragraph_lowers_the_code() -> None:
    result = damaged("```sh\nsystemctl stop desk\n  rsync -a /backup/ /srv/desk/\n```", "systemctl stop desk")
    assert result.code_f1 == 0


def test_one_of_two_lines_of_code_changed_counts_half() -> None:
    assert damaged("rsync -a /backup/", "rsync -a backup/").code_f1 == pytest.approx(0.5)


def test_items_that_became_paragraphs_lower_the_items() -> None:
    assert damaged("   - first the index\n   - then the data", "").item_f1 == pytest.approx(4 / 6)


def test_items_are_told_apart_by_their_first_paragraph() -> None:
    assert score("- one\n\n  more of one\n- two", "- one\n- two\n\nmore of one").item_f1 == 1


def test_definitions_may_be_items_or_paragraphs() -> None:
    truth = f"- item\n\n{DEFINITION}\n--force\n\n{DEFINITION}\nDo it anyway."
    assert score(truth, "- item\n\n--force\n\nDo it anyway.").item_f1 == 1
    assert score(truth, "- item\n\n<!-- -->\n\n- --force: Do it anyway.").item_f1 == 1
    assert score(truth, "- item\n- no item at all").item_f1 == pytest.approx(2 / 3)


def test_a_kind_that_neither_has_is_left_out_of_the_mean() -> None:
    result = score("# A\n\none two", "# A\n\none two")
    assert (result.code_f1, result.item_f1, result.adjacency_f1) == (None, None, None)
    assert result.overall == 1


def test_a_kind_that_was_made_up_counts_as_zero() -> None:
    result = score("# A\n\none two", "# A\n\n    one two")
    assert result.code_f1 == 0
    assert result.overall == pytest.approx(2 / 3)


def test_nothing_for_something_is_zero_throughout() -> None:
    assert score(MANUAL, "") == Score(0, 0, 0, 0, 0, 0, 0, 0)


def test_text_in_angle_brackets_that_is_no_tag_is_text() -> None:
    assert score("git add \\<file\\> now", "git add <file> <b>now</b>").text == 1


def test_typesetting_does_not_count_as_a_difference() -> None:
    assert score("```\nfind \"x\" -- 'y'\n```", "```\nﬁnd “x” -- ’y’\n```").code_f1 == 1


def test_a_mean_leaves_out_documents_without_the_kind() -> None:
    both = mean([score("# A\n\nb", "# A\n\nb"), score("b\n\n- c", "b\n\nc")])
    assert (both.heading_f1, both.item_f1, both.code_f1) == (1, 0, None)


def test_structure_is_read_in_order() -> None:
    read = structure_of(MANUAL)
    assert read.headings[1] == Heading(2, "Restoring a copy")
    assert read.items == ("Stop the server.", "Copy the files back.", "first the index", "then the data")
    assert read.code == ("systemctl stop desk", "rsync -a /backup/ /srv/desk/")
    assert read.tables[0][1] == (Cell("Monday"), Cell("3"), Cell("disk"))
    assert read.words[:7] == ("Backups", "Copies", "are", "made", "every", "night", "by")


def test_spans_that_ask_for_a_million_columns_get_a_bounded_table() -> None:
    read = structure_of('<table><tr><td colspan="1000000">a</td></tr></table>')
    assert len(read.tables[0][0]) == 1000


@pytest.mark.parametrize(
    ("left", "right", "length"),
    [("", "abc", 0), ("abc", "abc", 3), ("abcbdab", "bdcaba", 4), ("aaaa", "aa", 2), ("abc", "xyz", 0)],
)
def test_the_longest_common_subsequence(left: str, right: str, length: int) -> None:
    assert common_length(left, right) == length
    assert common_length(right, left) == length


def test_two_empty_sequences_are_alike() -> None:
    assert similarity([], []) == 1


def test_each_text_is_paired_once() -> None:
    assert pair_up(["alpha", "alpha", "gamma"], ["alpha", "gammas"]) == [(0, 0), (2, 1)]


def test_the_truth_of_a_page_is_its_text_without_navigation() -> None:
    page = html.fragment_fromstring(
        """<div><div class="navheader">Next Up</div><h2>Keys <a class="headerlink">¶</a></h2>
        <p>A <code>key_id</code> is <em>unique</em>.</p>
        <ol><li>first<pre>a = 1\n  b</pre></li><li><p>second</p><p>more</p></li></ol>
        <dl><dt>--all</dt><dd>Every one.</dd></dl>
        <div class="note"><table><tr><td>Mind the gap.</td></tr></table></div>
        <table><tr><th>a</th><th>b|c</th></tr><tr><td>1</td><td></td></tr></table></div>"""
    )
    read = structure_of(markdown_of(page))
    assert read.headings == (Heading(2, "Keys"),)
    assert read.words[:5] == ("Keys", "A", "key_id", "is", "unique")
    assert (read.items, read.code) == (("first", "second"), ("a = 1", "b"))
    assert read.definitions == ("--all", "Every one.")
    assert read.tables == (((Cell("a"), Cell("b|c")), (Cell("1"), Cell(""))),)
    assert "Mind" in read.words
    assert "Next" not in read.words


@pytest.mark.parametrize("text", ["1. no item", "- no item", "# no heading", "<b>no tag</b>", "a|b", "**plain**"])
def test_text_that_looks_like_markup_stays_text_in_a_truth(text: str) -> None:
    page = html.Element("div")
    page.text = text
    read = structure_of(markdown_of(page))
    assert (read.items, read.headings, read.tables) == ((), (), ())
    assert read.words == structure_of(f"```\n{text}\n```").words
