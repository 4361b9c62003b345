"""Our tokens are the tokenizer's own."""

from __future__ import annotations

from importlib import resources

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from refdesk.documents.tokens import MAX_WORD, count_tokens, measure_tokens, measure_word, token_ids

TOKENIZER = BertWordPieceTokenizer(str(resources.files("refdesk.documents") / "wordpiece.txt"), lowercase=True)
ALL = 1_000_000


def by_the_library(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
    return ids


@pytest.mark.parametrize(
    "text",
    [
        "CREATE INDEX CONCURRENTLY idx_a ON t (lower(name));",
        "Ærøskøbing naïve café, Straße, İstanbul, ΟΔΟΣ Σίσυφος",
        "日本語の文書, 漢字 豈 𠀀 ䷀ 한국어 ไทย हिन्दी עִבְרִית",
        "x" * 100,
        "x" * 101,
        "supercalifragilisticexpialidocious pneumonoultramicroscopicsilicovolcanoconiosis",
        "",
        "¿Qué? — «sí» … 3.14 %",
        "one\x00two\x0bthree\x1ffour\x7ffive\tsix\r\nseven\x85eight",
        "zero\u200bwidth soft\u00adhyphen no\u00a0break line\u2028separator \ufffd \ufeffmark",
        "🙂 👩‍👩‍👧 e\u0301 \u0301alone ﬁ Ⅻ ½",
        "£5 §3 a_b-c `code` ~x^2",
    ],
)
def test_tokens_are_those_of_the_library(text: str) -> None:
    assert token_ids(text, ALL) == by_the_library(text)
    assert count_tokens(text) == len(by_the_library(text))


@settings(max_examples=500, deadline=None)
@given(st.text(st.characters(codec="utf-8", max_codepoint=0x5FF, exclude_categories=("Cs", "Co", "Cn")), max_size=60))
@example("a_b-c")
def test_any_text_of_the_common_scripts(text: str) -> None:
    # In a document, these are plain text, which is the one intended difference.
    assume(not any(special in text for special in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")))
    assert token_ids(text, ALL) == by_the_library(text)
    assert count_tokens(text) == len(by_the_library(text))


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("aE \n\x00\x0b'é漢Σ\u0301\u200bfi-_"), max_size=40))
def test_any_mixture_of_what_is_treated_apart(text: str) -> None:
    assert token_ids(text, ALL) == by_the_library(text)


@given(st.integers(0, 12))
def test_no_more_tokens_than_asked_for_and_always_the_first(limit: int) -> None:
    text = "max_connections is set in postgresql.conf"
    assert token_ids(text, limit) == by_the_library(text)[:limit]


def test_a_control_token_in_a_document_is_only_its_letters() -> None:
    assert TOKENIZER.token_to_id("[SEP]") not in token_ids("how [SEP] is read", ALL)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("", 0),
        ("Two words", 2),
        ("x" * MAX_WORD * 4, MAX_WORD),
        (" " * 200, 10),
        ("documentation " * 100, 100),
    ],
)
def test_an_estimate_counts_long_words_and_blanks_by_their_length(text: str, tokens: int) -> None:
    assert measure_tokens(text) == measure_word(text) == tokens


@pytest.mark.parametrize("text", ["Ünïcödé words, and 日本語 (2024).", "def measure(text: str) -> int: ..."])
def test_an_estimate_of_ordinary_text_is_the_tokenizers_count(text: str) -> None:
    assert measure_tokens(text) == count_tokens(text)
