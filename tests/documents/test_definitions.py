"""Terms of definition lists lead their passages, heading paths and anchors, and stay with their definitions."""

from __future__ import annotations

from refdesk.documents.chunking import MAX_TOKENS, chunks
from refdesk.documents.convert import convert
from refdesk.documents.export.markdown import to_markdown
from refdesk.documents.model import Block, Chunk, Document, Heading, Paragraph, Span, Term, list_sections
from refdesk.documents.tokens import measure_tokens

SENTENCE = "The sender closes a connection that has been silent for so long, and the receiver opens another one. "
DEFINITION = (SENTENCE * 6).strip()
"""Long enough for a chunk of its own."""


def page(html: str) -> Document:
    return convert(f"<html><body><main>{html}</main></body></html>".encode(), "page.html")


def split(html: str) -> list[Chunk]:
    return chunks(page(html).blocks)


def find(found: list[Chunk], text: str) -> Chunk:
    return next(chunk for chunk in found if text in chunk.text)


def test_a_setting_of_docbook_leads_passage_path_and_anchor() -> None:
    found = split(
        "<h1>Replication</h1><div class=variablelist><dl class=variablelist>"
        f"<dt id=GUC-KEEP><span class=term><code>keep_size</code> (<code>integer</code>)</span></dt>"
        f"<dd><p>{DEFINITION}</dd>"
        f"<dt id=GUC-TIMEOUT><span class=term><code>sender_timeout</code> (<code>integer</code>)</span></dt>"
        f"<dd><p>{DEFINITION}</p></dd></dl></div>"
    )
    assert [(chunk.path, chunk.anchor) for chunk in found] == [
        (("Replication", "keep_size"), "GUC-KEEP"),
        (("Replication", "sender_timeout"), "GUC-TIMEOUT"),
    ]
    assert found[1].text.startswith("**`sender_timeout` (`integer`)**\n\nThe sender closes")


def test_a_function_of_sphinx_has_its_name_in_the_path_and_its_signature_in_the_text() -> None:
    arguments = ", ".join(f"option_{number}=None" for number in range(12))
    (chunk,) = split(
        f'<h1>jobs</h1><dl class="py function"><dt class="sig sig-object py" id="jobs.run">'
        f'<span class="sig-prename descclassname">jobs.</span><span class="sig-name descname">run</span>'
        f'<span class="sig-paren">(</span>{arguments}<span class="sig-paren">)</span></dt><dd><p>{SENTENCE}</dd></dl>'
    )
    assert (chunk.path, chunk.anchor) == (("jobs", "jobs.run()"), "jobs.run")
    assert f"`jobs.run({arguments})`" in chunk.text


def test_a_method_is_named_with_its_class_and_keeps_its_notes() -> None:
    found = split(
        '<h1>jobs</h1><dl class="py class"><dt class="sig sig-object py" id="jobs.Pool"><em>class </em>'
        '<span class="sig-prename descclassname">jobs.</span><span class="sig-name descname">Pool</span>(size)</dt>'
        f'<dd><p>{DEFINITION}</p><dl class="py method"><dt class="sig sig-object py" id="jobs.Pool.close">'
        f'<span class="sig-name descname">close</span>()</dt><dd><p>{DEFINITION}</p>'
        '<div class="admonition warning"><p class="admonition-title">Warning</p><p>Never call it twice.</div>'
        '<div class="versionadded"><p>New in version 3.9.</p></div></dd></dl></dd></dl>'
    )
    assert [chunk.path for chunk in found] == [("jobs", "jobs.Pool"), ("jobs", "jobs.Pool", "Pool.close()")]
    assert found[1].anchors == ("", "jobs.Pool", "jobs.Pool.close")
    assert found[1].text.endswith("> **Warning**\n\n> Never call it twice.\n\nNew in version 3.9.")


def test_terms_that_share_a_definition_are_one() -> None:
    (term,) = [
        block
        for block in page(
            "<h1>rm</h1><dl><dt class=hdlist1>-f</dt><dt class=hdlist1>--force</dt><dd><p>Override it.</p></dd></dl>"
        ).blocks
        if isinstance(block, Term)
    ]
    assert (term.text, term.title, term.size) == ("-f\n--force", "-f, --force", 1)
    assert term.spans == (Span(0, 2, "strong"), Span(3, 10, "strong"))


def test_short_definitions_share_a_chunk_of_their_section_each_whole() -> None:
    entries = "".join(f"<dt>--flag-{number}</dt><dd>It sets flag {number} for the run.</dd>" for number in range(40))
    found = split(f"<h1>Options</h1><dl>{entries}</dl>")
    assert 1 < len(found) < 6
    assert {chunk.path for chunk in found} == {("Options",)}
    for chunk in found:
        assert chunk.text.startswith("**--flag-")
        assert chunk.text.endswith("for the run.")


def test_text_after_the_list_belongs_to_the_section_again() -> None:
    found = split(
        f"<h1>A</h1><dl><dt id=t>term</dt><dd><p>{DEFINITION}</dd></dl><p>Afterwards, {DEFINITION}</p><h2>B</h2><p>End."
    )
    assert [chunk.path for chunk in found] == [("A", "term"), ("A",), ("A", "B")]


def test_a_term_without_an_anchor_has_that_of_its_section() -> None:
    (chunk,) = split(f"<h1 id=top>A</h1><dl><dt>term</dt><dd><p>{DEFINITION}</dd></dl>")
    assert chunk.anchors == ("top", "top")


def test_an_anchor_before_or_inside_a_term_is_its_own() -> None:
    blocks = page(
        "<h1>A</h1><dl><a name=abs></a><dt>abs(X)</dt><dd>One.<dt><a id=max></a>max(X)</dt><dd>Two.</dl>"
    ).blocks
    assert [block.anchor for block in blocks if isinstance(block, Term)] == ["abs", "max"]


def test_fields_of_a_docstring_are_no_sections() -> None:
    blocks = page(
        '<h1>A</h1><dl class="py function"><dt class="sig" id=f><span class=descname>f</span>(x)</dt><dd><p>Text.</p>'
        '<dl class="field-list simple"><dt class=field-odd>Parameters<span class=colon>:</span></dt>'
        "<dd class=field-odd><ul><li>x – a number</ul></dd></dl></dd></dl>"
    ).blocks
    assert [section.title for section in list_sections(blocks)] == ["A", "f()"]


def test_a_term_in_a_table_of_a_definition_and_a_nested_list_stay_inside() -> None:
    document = page(
        "<h1>A</h1><dl><dt>outer</dt><dd><table><tr><th>Key<th>Value<tr><td>a<td>1</table>"
        "<dl><dt>inner</dt><dd>Inside.</dd></dl><p>Still outer.</p></dd><dt>last</dt></dl><p>After."
    )
    found = {section.title: document.blocks[section.start : section.end] for section in list_sections(document.blocks)}
    assert found["outer"][-1] == Paragraph("Still outer.")
    assert len(found["inner"]) == 2
    assert len(found["last"]) == 1


def test_a_signature_without_a_definition_has_the_text_below_it() -> None:
    blocks = page(
        "<h1>A</h1>"
        + "".join(
            f'<dl class="std option"><dt class="sig" id=o{n}><span class=descname>--o{n}</span></dt><dd></dd></dl>'
            f"<p>Sets {n}."
            for n in (1, 2)
        )
    ).blocks
    assert [(block.title, block.size) for block in blocks if isinstance(block, Term)] == [("--o1", 1), ("--o2", 1)]


def test_an_index_of_a_book_is_a_list() -> None:
    blocks = page("<h1>Index</h1><div class=index><dl><dt>abort, <a href=x.html>here</a></dt></dl></div>").blocks
    assert not any(isinstance(block, Term) for block in blocks)


def test_terms_are_exported_in_bold_or_as_code_and_not_as_headings() -> None:
    text = to_markdown(page("<h1>A</h1><dl><dt>-q</dt><dd>Quiet.</dd></dl>"))
    assert text == "# A\n\n**-q**\n\nQuiet.\n"


def test_a_lead_in_stays_with_what_it_introduces() -> None:
    lines = "".join(f"value_{number} = {number}\n" for number in range(40))
    found = split(f"<h1>A</h1><p>{DEFINITION}</p><p>{DEFINITION} Set them as follows:</p><pre>{lines}</pre><p>Done.")
    chunk = find(found, "as follows:")
    assert chunk.text.startswith("Set them as follows:\n\n```\nvalue_0")


def test_a_lead_in_to_a_term_or_a_subsection_leads_its_chunk() -> None:
    found = split(
        f"<h1>A</h1><p>{DEFINITION}</p><p>The modes are:</p><dl><dt>full</dt><dd><p>{DEFINITION}</dd></dl>"
        f"<p>{DEFINITION}</p><p>More about them:</p><h2>B</h2><p>{DEFINITION}</p>"
    )
    assert find(found, "The modes are:").text.startswith("The modes are:\n\n**full**\n\nThe sender")
    assert find(found, "More about").text.startswith("More about them:\n\n## B\n\nThe sender")


def test_parts_of_a_definition_have_similar_lengths() -> None:
    paragraphs = "".join(f"<p>{SENTENCE * 2}</p>" for _ in range(7))
    found = split(f"<h1>A</h1><dl><dt>term</dt><dd>{paragraphs}</dd></dl>")
    assert len(found) == 2
    assert min(chunk.tokens for chunk in found) > 0.6 * max(chunk.tokens for chunk in found)
    assert {chunk.path for chunk in found} == {("A", "term")}


def test_no_sentence_ends_after_an_abbreviation_or_within_code() -> None:
    text = "Tools, e.g. Redis by S. Sanfilippo, run `find . -name x. -print` vs. others well enough for most. " * 12
    for chunk in chunks([Paragraph(text.strip())]):
        assert chunk.text.startswith("Tools, e.g. Redis")
        assert chunk.text.endswith("for most.")


def test_a_long_signature_stays_with_the_start_of_its_definition() -> None:
    signature = f"run({', '.join(f'option_{number}=None' for number in range(24))})"
    blocks: list[Block] = [Heading("A", 1), Term(signature, "run()", size=1), Paragraph(DEFINITION)]
    first, *_ = found = chunks(blocks)
    assert SENTENCE.strip() in first.text
    assert all(chunk.tokens + measure_tokens(" ".join(chunk.path)) <= MAX_TOKENS for chunk in found)


def test_a_row_that_is_too_long_is_split_under_its_header() -> None:
    found = split(f"<h1>A</h1><table><tr><th>Name<th>Meaning<tr><td>first<td>{DEFINITION * 3}</table>")
    assert len(found) > 1
    assert all(chunk.text.startswith("| Name | Meaning |\n| --- | --- |\n| first | The sender") for chunk in found)


def test_directives_and_lists_of_restructuredtext_are_terms() -> None:
    source = (
        "Jobs\n====\n\n.. py:function:: run(args, *, check=False)\n\n   Run it.\n\n   .. versionadded:: 3.9\n\n"
        ".. option:: -a, --all\n\n   Take all.\n\nterm\n  Its definition.\n\n-q, --quiet  be quiet\n\n"
        ":Author: Somebody\n"
    )
    document = convert(source.encode(), "jobs.rst")
    titles = [section.title for section in list_sections(document.blocks)]
    assert titles == ["Jobs", "run()", "-a, --all", "term", "-q, --quiet"]
    assert "`run(args, *, check=False)`\n\nRun it.\n\n> **New in version 3.9.**" in to_markdown(document)


def test_definition_lists_of_markdown_are_terms() -> None:
    document = convert(b"# Jobs\n\n`--all`\n: Take *all* of it.\n: Twice.\n\nA line\nand: another.\n", "jobs.md")
    assert [section.title for section in list_sections(document.blocks)] == ["Jobs", "--all"]
    assert to_markdown(document) == "# Jobs\n\n**`--all`**\n\nTake *all* of it.\n\nTwice.\n\nA line and: another.\n"


def test_a_definition_of_markdown_keeps_its_further_paragraphs_lists_and_code() -> None:
    text = (
        "# Jobs\n\n`--all`\n:   Take all:\n\n    - red\n    - a < b\n\n    ```sh\n    run it\n    ```\n\n"
        "loose\n\n:   Its definition.\n\n    More of it.\n\nText.\n\n    code\n"
    )
    document = convert(text.encode(), "jobs.md")
    assert [section.title for section in list_sections(document.blocks)] == ["Jobs", "--all", "loose"]
    assert to_markdown(document) == (
        "# Jobs\n\n**`--all`**\n\nTake all:\n\n- red\n- a < b\n\n```sh\nrun it\n```\n\n"
        "**loose**\n\nIts definition.\n\nMore of it.\n\nText.\n\n```\ncode\n```\n"
    )
