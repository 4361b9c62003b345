"""Markdown becomes sections and passages; nothing of the text is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from refdesk.documents.markdown import MAX_PASSAGE_CHARACTERS, parse_sections, passages, title_of

GUIDE = """Before any heading.

# Guide #

Intro.

## Install

```sh
# not a heading
pip install it
```

### On Linux

Text.

## Install

Again.
"""


def test_sections_know_their_place() -> None:
    sections = parse_sections(GUIDE)
    assert [(section.id, section.level, section.path) for section in sections] == [
        ("top", 0, ()),
        ("guide", 1, ("Guide",)),
        ("install", 2, ("Guide", "Install")),
        ("on-linux", 3, ("Guide", "Install", "On Linux")),
        ("install-2", 2, ("Guide", "Install")),
    ]
    assert "# not a heading" in sections[2].text
    assert title_of(sections, "x") == "Guide"


def test_a_text_without_headings_has_one_section_and_the_title_it_is_given() -> None:
    sections = parse_sections("Just text.")
    assert [section.text for section in sections] == ["Just text."]
    assert title_of(sections, "fallback") == "fallback"


def test_code_in_a_fence_stays_in_one_passage_when_it_fits() -> None:
    code = "```\n" + "\n\n".join(f"line {n}" for n in range(40)) + "\n```"
    (section,) = parse_sections("x" * (MAX_PASSAGE_CHARACTERS - 50) + "\n\n" + code)
    assert list(passages(section))[1] == code


def test_a_heading_without_text_is_still_found() -> None:
    (section,) = parse_sections("# Only a heading")
    assert list(passages(section)) == [""]


@given(st.text(alphabet=st.sampled_from("#`~ \n\tabcé.[]()|-"), max_size=4000))
def test_every_word_of_any_text_is_in_a_passage_or_a_heading(text: str) -> None:
    sections = parse_sections(text)
    kept = "".join(section.title + "".join(passages(section)) for section in sections)
    for section in sections:
        assert all(len(passage) <= MAX_PASSAGE_CHARACTERS for passage in passages(section))
    letters = [character for character in text if character.isalpha()]
    assert [character for character in kept if character.isalpha()] == letters
