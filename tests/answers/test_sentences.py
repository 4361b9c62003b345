"""Markdown in pieces that can be quoted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.answers.sentences import has_content, split_fragments, strip_markup

LINES = st.sampled_from(
    [
        "One. Two! `a. B` c.",
        "- item one. More",
        "| a | b |",
        "| --- | --- |",
        "```",
        "~~~~",
        "## Title",
        "**Term**",
        "",
        "> q",
    ]
)


def texts(markdown: str) -> list[str]:
    return [piece.text for piece in split_fragments(markdown)]


def test_a_paragraph_is_cut_into_its_sentences() -> None:
    assert texts("It works. Does it? Yes!\nReally.") == ["It works.", "Does it?", "Yes!", "Really."]


@pytest.mark.parametrize(
    "whole",
    [
        "Use a tool, e.g. Make, or none.",
        "Version 3.5 is out.",
        "Call `a. B` twice.",
        "See [13.5. Serialization Failures](mvcc.html) for more.",
        "13.5. Serialization Failures",
        "J. Smith wrote it.",
        "Set it in pg_hba.conf before.",
    ],
)
def test_a_full_stop_that_ends_no_sentence_does_not_cut(whole: str) -> None:
    assert texts(whole) == [whole]


def test_a_sentence_may_begin_with_code() -> None:
    assert texts("It is fast. `vacuum` runs.") == ["It is fast.", "`vacuum` runs."]


def test_sentences_without_blanks_between_them_are_cut() -> None:
    assert texts("これは索引です。速いです。") == ["これは索引です。", "速いです。"]


def test_code_is_one_piece_whatever_is_in_it() -> None:
    code = "```sql\nSELECT 1. FROM x;\n\n| no | table |\n~~~\n```"
    assert [(piece.kind, piece.text) for piece in split_fragments(f"Run:\n\n{code}\n\nDone.")] == [
        ("sentence", "Run:"),
        ("code", code),
        ("sentence", "Done."),
    ]


def test_code_without_an_end_is_not_quoted() -> None:
    assert texts("Run:\n\n```\nSELECT 1;") == ["Run:"]


def test_a_table_is_its_head_and_its_rows() -> None:
    table = "| a | b |\n| --- | --- |\n| 1. One | 2 |\n| 3 | 4 |"
    assert [(piece.kind, piece.text) for piece in split_fragments(table)] == [
        ("head", "| a | b |\n| --- | --- |"),
        ("row", "| 1. One | 2 |"),
        ("row", "| 3 | 4 |"),
    ]


def test_items_of_a_list_are_apart() -> None:
    found = split_fragments("Do:\n- first one. Then more\n  and more\n- second")
    assert [(piece.text, piece.is_item) for piece in found] == [
        ("Do:", False),
        ("- first one.", True),
        ("Then more\n  and more", True),
        ("- second", True),
    ]


def test_headings_and_terms_lead_and_the_word_above_a_box_is_dropped() -> None:
    found = split_fragments("## Title\n\n**`port` (`integer`)**\n\nText.\n\n### Note\n\n> Beware.")
    assert [piece.kind for piece in found] == ["lead", "lead", "sentence", "sentence"]


@given(st.lists(LINES, max_size=12).map("\n".join) | st.text(max_size=200))
def test_every_piece_is_a_slice_of_the_text_and_none_overlap(markdown: str) -> None:
    end = 0
    for piece in split_fragments(markdown):
        assert end <= piece.start < piece.end <= len(markdown)
        assert markdown[piece.start : piece.end] == piece.text
        end = piece.end


def test_what_only_a_machine_reads_is_left_out() -> None:
    assert strip_markup("See **[the `guide`](https://x.org/a_(b)#c)** now") == "See [the guide] now"


def test_a_bare_link_says_nothing() -> None:
    assert not has_content("- [TRUNCATE](sql-truncate.html)")
    assert has_content("Use [TRUNCATE](sql-truncate.html) instead.")
