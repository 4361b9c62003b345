"""Our count is the tokenizer's own."""

from __future__ import annotations

from importlib import resources

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import BertWordPieceTokenizer

from refdesk.documents.tokens import count_tokens

TOKENIZER = BertWordPieceTokenizer(str(resources.files("refdesk.documents") / "wordpiece.txt"), lowercase=True)


def by_the_library(text: str) -> int:
    return len(TOKENIZER.encode(text, add_special_tokens=False).ids)


def test_words_punctuation_and_unknown_scripts() -> None:
    for text in (
        "CREATE INDEX CONCURRENTLY idx_a ON t (lower(name));",
        "Ærøskøbing naïve café, Straße",
        "日本語の文書",
        "x" * 150,
        "",
        "¿Qué? — «sí» … 3.14 %",
    ):
        assert count_tokens(text) == by_the_library(text), text


@settings(max_examples=500, deadline=None)
@given(
    st.text(st.characters(codec="utf-8", max_codepoint=0x5FF, exclude_categories=("Cs", "Cc", "Co", "Cn")), max_size=60)
)
@example("a_b-c")
def test_any_text_of_the_common_scripts(text: str) -> None:
    assert count_tokens(text) == by_the_library(text)
