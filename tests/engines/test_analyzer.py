"""What a text becomes before it is indexed or searched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refdesk.engines.analyzer import (
    MAX_WORD,
    build_heading_path,
    extract_index_terms,
    find_identifiers,
    find_name_terms,
    is_english,
    is_question,
    is_stop_word,
    match_terms,
    strip_markdown,
    weigh_query_terms,
)


def test_a_plain_word_is_found_in_any_case_number_and_accent() -> None:
    assert extract_index_terms("Connections CONNECTED connection") == ["connect"] * 3
    assert extract_index_terms("naïve Café") == extract_index_terms("naive cafe")


@pytest.mark.parametrize(
    ("text", "whole", "parts"),
    [
        ("max_connections", "max_connections", {"max", "connect"}),
        ("pg_dump", "pg_dump", {"pg", "dump"}),
        ("--no-owner", "no-owner", {"no", "owner"}),
        ("-j", "-j", {"j"}),
        ("postgresql.conf", "postgresql.conf", {"postgresql", "conf"}),
        ("getResultSet", "getresultset", {"get", "result", "set"}),
        ("information_schema.columns", "information_schema.columns", {"information_schema", "schema", "column"}),
        ("HTTP/2", "http/2", {"http", "2"}),
        ("café_latte", "cafe_latte", {"cafe", "latt"}),
        ("C++", "c++", {"c"}),
    ],
)
def test_a_name_is_indexed_whole_and_in_parts(text: str, whole: str, parts: set[str]) -> None:
    found = extract_index_terms(text)
    assert found[0] == whole
    assert found.count(whole) == 1
    assert parts <= set(found[1:])


def test_an_acronym_at_the_end_of_a_name_is_no_word_of_its_own() -> None:
    assert extract_index_terms("PostgreSQL") == ["postgresql"]


def test_the_ending_of_a_possessive_or_a_contraction_is_dropped() -> None:
    assert extract_index_terms("the server's, it’s, don't") == ["the", "server", "it", "don"]


def test_scripts_without_spaces_are_cut_into_pairs() -> None:
    assert extract_index_terms("全文検索と SQL") == ["全文", "文検", "検索", "索と", "sql"]
    assert set(weigh_query_terms("検索")) <= set(extract_index_terms("全文検索"))


def test_a_run_of_characters_that_nobody_types_is_not_indexed() -> None:
    assert extract_index_terms("a" * (MAX_WORD + 1)) == []
    assert extract_index_terms("f00" * MAX_WORD) == []


@pytest.mark.parametrize("text", ["", "  ", "!!! ??? --", "___", "→ § …", "\x00"])
def test_a_text_without_words_has_none(text: str) -> None:
    assert extract_index_terms(text) == []
    assert weigh_query_terms(text) == {}


def test_a_query_counts_its_words_and_the_parts_of_a_name_less_than_the_name() -> None:
    asked = weigh_query_terms("vacuum VACUUM wal_level")
    assert asked["vacuum"] == 2
    assert asked["wal_level"] == 1
    assert 0 < asked["level"] == asked["wal"] < 1


def test_common_words_are_told_from_those_that_say_something() -> None:
    assert [word for word in weigh_query_terms("how do I use the index of a table") if not is_stop_word(word)] == [
        "index",
        "tabl",
    ]


@given(st.text(max_size=200))
def test_whatever_is_asked_in_the_words_of_a_text_is_among_its_index_words(text: str) -> None:
    assert set(weigh_query_terms(text)) == set(extract_index_terms(text))


@given(st.text(max_size=200))
def test_no_word_holds_a_blank_for_blanks_stand_between_words_in_the_index(text: str) -> None:
    assert all(word and word.split() == [word] for word in extract_index_terms(text))


def test_markdown_is_read_as_its_text() -> None:
    markdown = (
        "### Note\n\n> See [the **manual** [1]](<https://example.org/a b>) and [wiki](https://e.org/Git_(software)).\n\n"
        "```sql\nSELECT `x`;\n```\n\n| Name | Type |\n| --- | :-: |\n| a_b | int |\n\n- item\n\n![a map](map.png)"
    )
    assert strip_markdown(markdown) == (
        "Note\nSee the manual [1] and wiki.\nSELECT x;\nName Type\na_b int\nitem\na map"
    )


MARKED = st.lists(
    st.sampled_from(
        [
            "- ",
            "> ",
            "# ",
            "\n",
            " ",
            "  ",
            "**",
            "`",
            "|",
            "```sql",
            "[",
            "](",
            ")",
            "!",
            "-j",
            "a_b",
            "Rows",
            "--",
            "C#",
        ]
    ),
    max_size=30,
).map("".join)


@given(MARKED | st.text(max_size=200))
def test_the_words_that_are_asked_of_a_passage_are_those_that_it_is_indexed_by(markdown: str) -> None:
    indexed = extract_index_terms(strip_markdown(markdown))
    assert match_terms(markdown, dict.fromkeys(indexed, 1.0)) == set(indexed)
    assert match_terms(markdown, dict.fromkeys(["row", "a_b", "-j", "sql"], 1.0)) == {"row", "a_b", "-j", "sql"} & {
        *indexed
    }


def test_text_that_only_looks_like_markdown_stays() -> None:
    assert strip_markdown("a[1] (see b) and f(x) * g_h_i") == "a[1] (see b) and f(x) * g_h_i"


def test_a_document_s_title_leads_the_headings_unless_it_is_one_of_them() -> None:
    assert build_heading_path("CREATE CAST", ("Notes",)) == ("CREATE CAST", "Notes")
    assert build_heading_path("Guide", ("Guide", "Install")) == ("Guide", "Install")
    assert build_heading_path("", ()) == ()


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("what is wal_sender_timeout?", {"wal_sender_timeout": "wal_sender_timeout"}),
        ("git stash export --to-ref=x", {"--to-ref": "to-ref"}),
        ("git log --staged", {"--staged": "stage"}),
        ("RotatingFileHandler ignores maxBytes", {"maxBytes": "maxbytes"}),
        ("sqlite3.LEGACY_MODE", {"LEGACY_MODE": "legacy_mode"}),
        ("what does uuidv7() return", {"uuidv7": "uuidv7"}),
        ("out-of-the-box, C:/my_files/a.txt and my_file.txt", {}),
        ("How do I back up a database?", {}),
    ],
)
def test_names_that_are_meant_literally_are_found_in_a_query(query: str, names: dict[str, str]) -> None:
    assert find_identifiers(query) == names


def test_identifiers_of_any_form_are_names_and_words_are_not() -> None:
    asked = "Does asyncio.wait_for() raise TimeoutError when my_job runs out of the box, e.g. at 3.5 s?"
    assert find_name_terms(asked) == {"asyncio.wait_for", "timeouterror", "my_job"}


def test_english_is_told_by_its_function_words() -> None:
    assert is_english("How do I roll back?")
    assert is_english("Vitamin D deficiency is linked to depression")
    assert not is_english("Wie kann ich was in die Datei schreiben?")
    assert not is_english("Comment changer mon mot de passe sur le bureau ?")
    assert not is_english("如何安装?")
    assert not is_english("wal_sender_timeout")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("How do I roll back a release", True),
        ("fix the message of my last commit", True),
        ("json or jsonb?", True),
        ("git fetch --depth vs --deepen", False),
        ("Using amcheck Effectively", False),
        ("Vitamin D deficiency is linked to depression.", False),
        ("fatal: refusing to merge unrelated histories", False),
    ],
)
def test_questions_are_told_from_keywords_and_statements(query: str, expected: bool) -> None:
    assert is_question(query) is expected
