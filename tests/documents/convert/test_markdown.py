from __future__ import annotations

from pathlib import Path

import pytest

from refdesk.documents.convert import markdown
from refdesk.documents.convert.source import SourceFile
from refdesk.documents.model import Block, Code, Document, Heading, ListItem, Paragraph, Picture, Span, Table
from refdesk.errors import CannotConvert

GUIDE = Path(__file__).parents[2] / "files" / "text" / "guide.md"


def convert_markdown(text: str) -> Document:
    return markdown.convert(SourceFile(text.encode(), "page.md"))


def blocks(text: str) -> tuple[Block, ...]:
    return convert_markdown(text).blocks


def test_a_guide_keeps_its_structure() -> None:
    document = markdown.convert(SourceFile(GUIDE.read_bytes(), "guide.md"))
    assert document.title == "A guide"
    assert document.properties == {"author": "Jo Doe", "language": "en"}
    kinds = [type(block) for block in document.blocks[:5]]
    assert kinds == [Heading, Paragraph, Code, Heading, Table]
    assert [(item.text, item.depth) for item in document.blocks if isinstance(item, ListItem)] == [
        ("one", 0),
        ("two", 0),
        ("deep", 1),
    ]


def test_headings_are_read_in_both_notations() -> None:
    assert blocks("Title\n=====\n\n### Part ###\n\nSub\n---\n") == (
        Heading("Title", 1),
        Heading("Part", 3),
        Heading("Sub", 2),
    )


def test_links_and_marks_become_spans() -> None:
    document = markdown.convert(SourceFile(b"a **b** [c](d.md) `e`", "p.md", url="https://docs.example/x/"))
    assert document.blocks == (
        Paragraph(
            "a b c e",
            (Span(2, 3, "strong"), Span(4, 5, "link", "https://docs.example/x/d.md"), Span(6, 7, "code")),
        ),
    )


def test_html_inside_of_markdown_counts() -> None:
    text = "<details>\n<summary>More</summary>\n\nSome *text*.\n\n</details>\n\nPress <kbd>x</kbd>.<script>y</script>\n"
    assert blocks(text) == (
        Paragraph("More", (Span(0, 4, "strong"),)),
        Paragraph("Some text.", (Span(5, 9, "emphasis"),)),
        Paragraph("Press x.", (Span(6, 7, "code"),)),
    )


def test_code_keeps_its_language_and_its_indentation() -> None:
    assert blocks("~~~c++ title=x\nif (a)\n\n    b();\n~~~\n\n    plain\n      more\n") == (
        Code("if (a)\n\n    b();", "c++"),
        Code("plain\n  more"),
    )


def test_tasks_quotes_pictures_and_tables_are_kept() -> None:
    found = blocks("- [x] done\n- [ ] open\n\n> quoted\n\n![A cat](cat.png)\n\n| a | b |\n|---|---|\n| 1 | \\| |\n")
    assert found[:4] == (
        ListItem("[x] done"),
        ListItem("[ ] open", number=2),
        Paragraph("quoted", (), "quote"),
        Picture("A cat"),
    )
    assert isinstance(found[4], Table)
    assert found[4].grid() == [["a", "b"], ["1", "|"]]


def test_an_ordered_list_begins_where_it_says() -> None:
    assert blocks("4. four\n5. five\n") == (
        ListItem("four", ordered=True, number=4),
        ListItem("five", ordered=True, number=5),
    )


def test_front_matter_gives_title_tags_and_properties() -> None:
    document = convert_markdown(
        "---\ntitle: The title\ntags: [a, b, a]\ndescription: What\ndate: 2024-05-01\n---\n# Other\n"
    )
    assert document.title == "The title"
    assert document.tags == ("a", "b")
    assert document.properties == {"description": "What", "published": "2024-05-01"}
    assert document.blocks == (Heading("Other", 1),)


@pytest.mark.parametrize("matter", ["a: [", "a: &a [x]\nb: *a", "a: !!python/object:os.system x", "[" * 5000])
def test_front_matter_that_is_broken_or_hostile_is_left_out_with_a_warning(matter: str) -> None:
    document = convert_markdown(f"---\n{matter}\n---\ntext\n")
    assert document.blocks == (Paragraph("text"),)
    assert document.warnings == ("The front matter is no valid YAML and was left out.",)


def test_a_rule_at_the_top_is_no_front_matter() -> None:
    assert blocks("---\ntext\n---\nmore\n")[-1] == Paragraph("more")


def test_deep_lists_are_kept() -> None:
    text = "".join("  " * depth + f"- level {depth}\n" for depth in range(12))
    assert [block.depth for block in blocks(text) if isinstance(block, ListItem)] == list(range(12))


@pytest.mark.parametrize("text", ["", "---\ntitle: x\n---\n", "<!-- nothing -->"])
def test_a_file_without_text_is_refused(text: str) -> None:
    with pytest.raises(CannotConvert, match="holds no text"):
        convert_markdown(text)


def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(CannotConvert, match="split it"):
        convert_markdown("x" * (markdown.MAX_CHARACTERS + 1))
