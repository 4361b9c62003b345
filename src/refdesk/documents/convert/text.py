"""Plain text with visible structure, and source code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest
from pathlib import PurePosixPath
from textwrap import dedent

from refdesk.documents.model import Block, Code, Document, Heading, ListItem, Page, Paragraph, Place
from refdesk.errors import CannotConvert

from .source import SourceFile, decode_text

MAX_CHARACTERS = 20_000_000
"""Some 5000 printed pages."""

MAX_HEADING = 80
"""Characters of a line that can be a heading."""

CODE_INDENT = 4
"""Columns from which indented lines may be code, as in Markdown."""

_LANGUAGES = {
    ending: language or ending
    for ending, _, language in (
        entry.partition(":")
        for entry in """asm s:asm bash sh:bash zsh:bash bat:batch c h:c cmake cfg:ini clj:clojure conf:ini cc:cpp cpp
        cxx:cpp hh:cpp hpp:cpp cs:csharp css dart diff patch:diff el:lisp erl:erlang ex:elixir exs:elixir fish go
        graphql hs:haskell ini java jl:julia js:javascript cjs:javascript mjs:javascript json jsonl:json jsx kt:kotlin
        kts:kotlin less lisp lua m:objectivec mk:makefile ml:ocaml php pl:perl pm:perl proto:protobuf ps1:powershell
        py:python pyi:python r rb:ruby rs:rust scala scss sql svelte swift tex:latex tf:hcl toml ts:typescript tsx vim
        vue xml yaml yml:yaml zig""".split()
    )
}
"""Programming languages by the ending of a file name; many endings are the name of the language."""
_NAMES = {"dockerfile": "dockerfile", "makefile": "makefile", "cmakelists.txt": "cmake", "justfile": "just"}

_UNDERLINE = re.compile(r"([=\-~^*#+\"'])\1{2,}")
_NUMBERED = re.compile(r"(\d{1,3}(?:\.\d{1,3}){0,4})\.?\s{1,4}[A-Z].*")
_CAPITALS = re.compile(r"[^a-z]*[A-Z]{3}[^a-z]*")
_BULLET = re.compile(r"(\s*)(?:[-*•‣◦·+]|(\d{1,4})[.)])\s+(?=\S)")
_ENDS_SENTENCE = (".", ",", ";", ":", "!", "?")


def convert(source: SourceFile) -> Document:
    """Convert a text or a source file."""
    decoded = decode_text(source, MAX_CHARACTERS)
    text = decoded.text
    if not text.strip():
        raise CannotConvert("The file holds no text.")
    language = detect_language(source.name)
    if language:
        code = Code(text.strip("\n"), language)
        return Document(source.name, (code,), warnings=decoded.warnings)
    # Some texts have a margin.
    indents = Counter(_measure_indent(line) for line in text.splitlines() if line.strip())
    reader = _TextReader(indents.most_common(1)[0][0])
    pages = text.rstrip("\f\n ").split("\f")
    blocks = reader.read_blocks(pages[0])
    if len(pages) > 1:
        blocks = [replace(block, place=Place(1)) for block in blocks]
        for number, page in enumerate(pages[1:], 2):
            blocks += (replace(block, place=Place(number)) for block in reader.read_blocks(page))
    return Document(
        title=next((block.text for block in blocks if isinstance(block, Heading)), source.name),
        blocks=tuple(blocks),
        pages=tuple(map(Page, range(1, len(pages) + 1))) if len(pages) > 1 else (),
        warnings=decoded.warnings,
    )


def detect_language(name: str) -> str:
    """Return the programming language of a source file by its name, or an empty string."""
    path = PurePosixPath(name.lower())
    return _NAMES.get(path.name) or _LANGUAGES.get(path.suffix[1:], "")


def _measure_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@dataclass(slots=True)
class _TextReader:
    margin: int
    marks: list[str] = field(default_factory=list)
    """Underline characters of headings, in order of appearance."""
    has_title: bool = False

    def read_blocks(self, text: str) -> list[Block]:
        lines = (line.expandtabs(8).rstrip() for line in text.split("\n"))
        stanzas = [list(run) for filled, run in groupby(lines, bool) if filled]
        pairs = zip_longest(stanzas, stanzas[1:], fillvalue=())
        return _join_code(block for stanza, below in pairs for block in self._classify_stanza(stanza, below))

    def _classify_stanza(self, stanza: Sequence[str], below: Sequence[str]) -> Iterator[Block]:
        heading, rest = self._match_underlined(stanza)
        if heading is not None:
            yield heading
        if not rest:
            return
        if heading is None and len(rest) == 1 and (evident := self._match_plain_heading(rest[0], below)) is not None:
            yield evident
        elif self._is_code(rest):
            yield Code("\n".join(rest))
        elif _BULLET.match(rest[0]):
            yield from self._iter_items(rest)
        else:
            yield Paragraph(_join_lines(rest))

    def _match_underlined(self, stanza: Sequence[str]) -> tuple[Heading | None, Sequence[str]]:
        """Return a heading with a line of marks below, or above and below, and the remaining lines."""
        over = len(stanza) > 2 and _UNDERLINE.fullmatch(stanza[0].strip()) is not None
        lines = stanza[1:] if over else stanza
        mark = _UNDERLINE.fullmatch(lines[1].strip()) if len(lines) > 1 else None
        title = lines[0].strip()
        if mark is None or not 0 < len(title) <= MAX_HEADING or len(mark[0]) < len(title) * 0.6:
            return None, stanza
        if mark[1] not in self.marks:
            self.marks.append(mark[1])
        self.has_title = True
        return Heading(title, min(6, self.marks.index(mark[1]) + 1)), lines[2:]

    def _match_plain_heading(self, line: str, below: Sequence[str]) -> Heading | None:
        """Return a single line as heading if it is numbered or in capitals."""
        text = line.strip()
        if _measure_indent(line) > self.margin or len(text) > MAX_HEADING or text.endswith(_ENDS_SENTENCE):
            return None
        numbered = _NUMBERED.fullmatch(text)
        if numbered is not None:
            is_list = len(below) == 1 and _NUMBERED.fullmatch(below[0].strip()) is not None
            return None if is_list else Heading(text, min(6, numbered[1].count(".") + 1 + self.has_title))
        return Heading(text, min(6, len(self.marks) + 1)) if _CAPITALS.fullmatch(text) and below else None

    def _is_code(self, stanza: Sequence[str]) -> bool:
        if min(map(_measure_indent, stanza)) < self.margin + CODE_INDENT or _BULLET.match(stanza[0]):
            return False
        words = " ".join(stanza).split()
        prose = sum(word.strip("\"'(),.;:!?").isalpha() for word in words) / len(words)
        return not (prose > 0.8 and len(words) > 5 * len(stanza))

    def _iter_items(self, stanza: Sequence[str]) -> Iterator[ListItem]:
        indents: list[int] = []
        marks = [(at, match) for at, line in enumerate(stanza) if (match := _BULLET.match(line))]
        for (at, mark), end in zip(marks, [*(at for at, _ in marks[1:]), None], strict=True):
            indents = [*(indent for indent in indents if indent < len(mark[1])), len(mark[1])]
            text = _join_lines([stanza[at][mark.end() :], *stanza[at + 1 : end]])
            yield ListItem(text, (), len(indents) - 1, mark[2] is not None, int(mark[2] or 1))


def _join_lines(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def _join_code(blocks: Iterable[Block]) -> list[Block]:
    joined: list[Block] = []
    for is_code, run in groupby(blocks, lambda block: isinstance(block, Code)):
        if is_code:
            joined.append(Code(dedent("\n\n".join(block.text for block in run if isinstance(block, Code)))))
        else:
            joined += run
    return joined
