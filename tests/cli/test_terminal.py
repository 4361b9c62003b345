"""What a terminal shows."""

from __future__ import annotations

import io

import pytest

from refdesk.calls import Answer
from refdesk.cli.ask import PassageHit, format_hit, parse_hits
from refdesk.cli.terminal import ProgressBar, TerminalStyle, detect_style, sanitize
from refdesk.tools.documentation import DocumentationHit


class Screen(io.StringIO):
    """Standard output as a terminal would be."""

    def isatty(self) -> bool:
        return True


COLOURED, PLAIN = TerminalStyle(True), TerminalStyle(False)


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("create indexes", "An index is created.", "An *index* is *created*."),
        ("What is a GIN index?", "gin, begin, GIN", "*gin*, begin, *GIN*"),
        ("max_connections", "set max_connections", "set *max_connections*"),
        ("policies", "a policy of ours", "a *policy* of ours"),
        ("go", "go on, google", "*go* on, google"),
        ("how is it", "how it is", "how it is"),
        ("c++ (", "c++ is a language", "*c*++ is a language"),
    ],
)
def test_the_words_of_a_query_stand_out_whatever_their_endings(query: str, text: str, expected: str) -> None:
    marked = COLOURED.highlight(text, query).replace("\x1b[1m", "*").replace("\x1b[0m", "*")
    assert marked == expected


def test_only_a_terminal_that_wants_colour_gets_it() -> None:
    assert detect_style(Screen(), {}).is_enabled
    assert not detect_style(io.StringIO(), {}).is_enabled
    assert not detect_style(Screen(), {"NO_COLOR": "1"}).is_enabled
    assert not detect_style(Screen(), {"TERM": "dumb"}).is_enabled
    assert detect_style(io.StringIO(), {"FORCE_COLOR": "1"}).is_enabled
    assert not detect_style(io.StringIO(), {"FORCE_COLOR": "1", "NO_COLOR": "1"}).is_enabled
    assert PLAIN.highlight("an index", "index") == "an index"


def test_a_document_cannot_command_the_terminal() -> None:
    assert sanitize("a\x1b[2Jb\x07\tc\nd\u202e") == "a[2Jb\tc\nd"
    found = PassageHit("c/a", "text \x1b]0;owned\x07", 0.5, {"title": "T\x1b[31m"})
    assert "\x1b" not in format_hit(1, found, "text", PLAIN)


def test_a_passage_is_shown_with_heading_source_and_score() -> None:
    metadata = {
        "path": "Indexes › Types",
        "anchor": "TYPES",
        "page": 3,
        "version": "15",
        "indexed_at": "2026-11-16T00:00:00Z",
    }
    found = PassageHit("pg/indexes.html", "B-tree", 0.834, metadata)
    assert format_hit(2, found, "tree", PLAIN) == (
        "2. Indexes › Types\nB-tree\npg/indexes.html#TYPES, page 3, version 15, indexed 2026-11-16, score 0.83"
    )


def test_both_search_tools_answers_are_understood() -> None:
    metadata = {"source": "pg/a.html", "section": "S", "anchor": "S1", "anchors": ["P", "S1"]}
    item = DocumentationHit("P › S", "passage", "pg/a.html", metadata, 0.5, "pg/a.html#c1").to_item()
    documentation = Answer({"content": [{**item, "text": item["text"] + "\n\n(1 result)"}]})
    hit = {"chunk_id": "pg/a.html#c1", "document_id": "pg/a.html", "text": "passage", "score": 0.5}
    knowledge = Answer({"content": [], "structuredContent": {"results": [{**hit, "metadata": metadata}]}})
    for answer in (documentation, knowledge):
        (found,) = parse_hits(answer)
        assert (found.document_id, found.text, found.score) == ("pg/a.html", "passage", 0.5)
        assert found.anchors == {"P", "S1"}
    assert parse_hits(documentation)[0].heading == "P › S"
    assert parse_hits(knowledge)[0].heading == "S"


def test_a_search_without_results_has_none() -> None:
    assert parse_hits(Answer({"content": [{"type": "text", "text": "Nothing matches."}]})) == []


def test_a_bar_shows_what_is_counted_elsewhere_and_never_more_than_all() -> None:
    screen = Screen()
    bar = ProgressBar(4, screen)
    bar.update(1, 0.5, "reading")
    bar.update(4, 1.5, "meaning")
    assert "[############............] 1/4 reading" in screen.getvalue()
    assert "[########################] 4/4 meaning" in screen.getvalue()
