"""Places in documents: chunks, sections and anchors, and where they start in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from refdesk.documents.export.markdown import block_to_markdown, markdown_parts
from refdesk.documents.model import Chunk, Section, slug_of
from refdesk.documents.packed_document import PackedDocument
from refdesk.errors import DocumentNotFound
from refdesk.support.edit_distance import nearest_names
from refdesk.tools.document_lookup import format_suggestions
from refdesk.tools.paging import format_path
from refdesk.validation import shorten

_CHUNK = re.compile(r"c[1-9]\d{0,8}")

PROBE_CHARACTERS = 80
MIN_PROBE_CHARACTERS = 4
"""Of a line, to find it in the text."""

PROBE_LINES = 3
"""Lines of a chunk to look for. The first ones can be the repeated header of a table or the fence of code."""

SEARCH_CHARACTERS = 8000
"""How far after the expected position a chunk is looked for; several times its length."""

MAX_HEADING_CHARACTERS = 1000

MAX_NAMED_SECTIONS = 5


@dataclass(frozen=True, slots=True)
class TextPlace:
    """Where to start reading a document's text."""

    start: int
    lead: str = ""
    """Context to show before it: the headings, the header of a table, the fence of code."""


def find_section(packed: PackedDocument, name: str) -> Section | None:
    """Return a section by its id, its anchor, or the name of one of its chunks; case counts only if it has to."""
    if (found := packed.section(name)) is not None:
        return found
    sections = packed.sections()
    wanted = name.lower()
    keys = (
        lambda section: section.anchor == name,
        lambda section: wanted in (section.id, section.anchor.lower()),
        lambda section: section.id == slug_of(name),
    )
    for is_wanted in keys:
        if (found := next(filter(is_wanted, sections), None)) is not None:
            return found
    chunk = packed.window(name, 0, 0)
    return packed.section(chunk[0].section) if chunk else None


def build_chunk_not_found(packed: PackedDocument, document_id: str, name: str) -> DocumentNotFound:
    """Return the error to raise for an unknown chunk."""
    last = packed.about.chunks
    exist = f"Its chunks are c1 to c{last}; doc_local_search finds them." if last else "It has none."
    return DocumentNotFound(f"{shorten(document_id)!r} has no chunk {shorten(name)!r}. {exist}")


def build_place_not_found(packed: PackedDocument, document_id: str, name: str) -> DocumentNotFound:
    """Return the error to raise for an unknown chunk, anchor or section, which names those that exist."""
    if _CHUNK.fullmatch(name):
        return build_chunk_not_found(packed, document_id, name)
    sections = packed.sections()
    names = list(dict.fromkeys([*(s.id for s in sections), *(s.anchor for s in sections if s.anchor)]))
    first = ", ".join(map(repr, names[:MAX_NAMED_SECTIONS]))
    more = ", …; read_doc_metadata lists all" if len(names) > MAX_NAMED_SECTIONS else ""
    hint = format_suggestions(nearest_names(name, names)) or f"Its sections are {first}{more}."
    return DocumentNotFound(f"{shorten(document_id)!r} has no section or anchor {shorten(name)!r}. {hint}")


def locate(packed: PackedDocument, document_id: str, name: str, text: str) -> TextPlace:
    """Return where a chunk, section or anchor starts in the Markdown of the whole document."""
    chunk = next(iter(packed.window(name, 0, 0) or ()), None) if _CHUNK.fullmatch(name) else None
    if chunk is not None:
        return _locate_chunk(packed, chunk, text)
    section = find_section(packed, name)
    if section is None:
        raise build_place_not_found(packed, document_id, name)
    return TextPlace(_measure_before(packed, section))


def _measure_before(packed: PackedDocument, section: Section) -> int:
    """Return the length of the Markdown before a section."""
    before = sum(map(len, markdown_parts(packed.blocks(0, section.start)))) if section.start else 0
    return before and before + len("\n\n")


def _locate_chunk(packed: PackedDocument, chunk: Chunk, text: str) -> TextPlace:
    """Return where a chunk starts: at its section's heading, or in the section where the chunks before it end."""
    section = packed.section(chunk.section)
    heading = block_to_markdown(next(packed.blocks(section.start))) if section else ""
    expected = base = _measure_before(packed, section) if section else 0
    earlier = packed.chunks_before(chunk, section)
    if not earlier and heading in chunk.text and not chunk.text.startswith(heading):
        # The end of the section above can be part of the first chunk.
        first = next(_list_probes(chunk.text), (0, ""))[1]
        above = text.rfind(first, 0, base)
        if above >= 0:
            opening = re.search(r"(?:^|\n)(#.*\n\s*)\Z", text[max(above - MAX_HEADING_CHARACTERS, 0) : above])
            return TextPlace(above - len(opening[1])) if opening else TextPlace(above, _format_context(chunk.path[:-1]))
    for each in earlier:
        position, skipped = _find_lines(each.text, text, expected) or (expected, 0)
        expected = position + sum(map(len, each.text.splitlines()[skipped:])) * 9 // 10
    start, skipped = (
        _find_lines(chunk.text, text, expected)
        or _find_lines(chunk.text, text, max(base, expected - SEARCH_CHARACTERS))
        or (min(expected, len(text) - 1), 0)
    )
    if not text[base + len(heading) : start].strip():
        return TextPlace(base)
    repeated = "".join(f"{line}\n" for line in chunk.text.splitlines()[:skipped])
    return TextPlace(start, _format_context(chunk.path) + repeated)


def _format_context(path: Sequence[str]) -> str:
    return f"[… {format_path(path)}]\n\n" if path else ""


def _find_lines(chunk: str, text: str, expected: int) -> tuple[int, int] | None:
    """Return the position of a chunk's first line in the text, after the expected one, and how many lines it skips.

    Skipped lines are repeated in the chunk, and not in the text at this position.
    """
    places = (
        (text.find(line, expected, expected + SEARCH_CHARACTERS), index)
        for index, line in islice(_list_probes(chunk), PROBE_LINES)
    )
    position, skipped = min((place for place in places if place[0] >= 0), default=(-1, 0))
    if position < 0:
        return None
    start = text.rfind("\n", 0, position) + 1
    # Start with the whole line if only an indent or a list marker comes before.
    start = position if re.search(r"[^\W\d]", text[start:position]) else start
    before = "".join(chunk.splitlines(keepends=True)[:skipped])
    return (start - len(before), 0) if text.endswith(before, 0, start) else (start, skipped)


def _list_probes(chunk: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that occur in the document as they are, with their numbers."""
    for index, line in enumerate(chunk.splitlines()):
        stripped = line.strip()
        if len(stripped) >= MIN_PROBE_CHARACTERS and not re.fullmatch(r"`{3,}\S*|[|\s:-]+", stripped):
            yield index, stripped[:PROBE_CHARACTERS]
