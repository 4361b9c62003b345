"""Text composed of runs with their own styles, as in office formats."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from refdesk.documents.model import Span, SpanKind

FIXED_PITCH_FONTS = tuple(
    "andale mono,cascadia,consolas,courier,dejavu sans mono,fira code,fira mono,hack,ibm plex mono,inconsolata,"
    "jetbrains mono,liberation mono,lucida console,menlo,monaco,noto mono,noto sans mono,roboto mono,sf mono,"
    "source code pro,ubuntu mono".split(",")
)
"""Name prefixes of monospaced fonts; text in them is code."""


def is_fixed_pitch(font: str) -> bool:
    return font.lower().startswith(FIXED_PITCH_FONTS)


@dataclass(frozen=True, slots=True)
class RunStyle:
    strong: bool = False
    emphasis: bool = False
    code: bool = False
    link: str = ""
    code_by_style: bool = False
    """Whether a code style is set, even if the font was changed."""


PLAIN = RunStyle()


class Runs:
    """Runs in order, load_servers to a text with spans."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._styles: list[RunStyle] = []
        self._are_plain = True

    def add(self, text: str, style: RunStyle = PLAIN) -> None:
        if text:
            self._texts.append(text)
            self._styles.append(style)
            if style is not PLAIN:
                self._are_plain = False

    def is_all_code(self) -> bool:
        """Whether every visible character is code."""
        if self._are_plain:
            return False
        visible = [style.code for text, style in zip(self._texts, self._styles, strict=True) if not text.isspace()]
        return bool(visible) and all(visible)

    def has_code_style(self) -> bool:
        return any(style.code_by_style for style in self._styles)

    def raw(self) -> str:
        return "".join(self._texts)

    def text(self) -> str:
        return self.raw().strip()

    def one_line(self) -> str:
        """Return the text on one line, for headings and captions."""
        return " ".join(self.raw().split())

    def text_and_spans(self) -> tuple[str, tuple[Span, ...]]:
        """Return the stripped text and its spans."""
        raw = self.raw()
        text = raw.strip()
        if self._are_plain:
            return text, ()
        # Positions of style changes, relative to the first visible character, and the end.
        position = len(raw.lstrip()) - len(raw)
        positions: list[int] = []
        styles: list[RunStyle] = []
        for piece, style in zip((*self._texts, ""), (*self._styles, PLAIN), strict=True):
            if not styles or style is not styles[-1]:
                positions.append(position)
                styles.append(style)
            position += len(piece)
        spans: list[Span] = []
        for kind in _KINDS:
            values = list(map(attrgetter(kind), styles))
            if any(values):
                spans += _merge_spans(positions, values, kind, len(text))
        return text, tuple(sorted(spans, key=lambda span: (span.start, -span.end)))


_KINDS: Sequence[SpanKind] = ("link", "strong", "emphasis", "code")


def _merge_spans(positions: Sequence[int], values: Sequence[bool | str], kind: SpanKind, length: int) -> Iterator[Span]:
    """Merge adjacent ranges with the same formatting, without surrounding whitespace."""
    begin, value = 0, values[0]
    for position, following in zip(positions, values, strict=True):
        if following != value:
            start, end = max(begin, 0), min(position, length)
            if value and start < end:
                yield Span(start, end, kind, value if isinstance(value, str) else "")
            begin, value = position, following
