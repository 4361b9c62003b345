"""Inline text with spans, whitespace collapsed as in browsers."""

from __future__ import annotations

import re

from refdesk.documents.model import Span, SpanKind

_BLANKS = re.compile(r"[ \t\n\r\f\xa0]+")
_INVISIBLE = dict.fromkeys(map(ord, "\u00ad\u200b\u2060\ufeff"))
"""Soft hyphens and zero-width characters, which would split words in search."""


def collapse_whitespace(text: str) -> str:
    """Collapse each run of whitespace to one space, also at the ends."""
    text = _BLANKS.sub(" ", text)
    return text if text.isascii() else text.translate(_INVISIBLE)


class InlineText:
    """Text of the current block; spans open at its end continue in the next block."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._length = 0
        self._at_blank = True
        self._open: dict[SpanKind, tuple[str, int]] = {}
        self._spans: list[Span] = []

    @property
    def is_at_line_break(self) -> bool:
        """Whether the text ends with a line break."""
        return bool(self._parts) and self._parts[-1][-1] == "\n"

    @property
    def is_empty(self) -> bool:
        """Whether there is no text yet."""
        return not self._parts

    @property
    def tail(self) -> str:
        """The last two characters."""
        return "".join(self._parts[-2:])[-2:]

    def is_shorter_than(self, length: int) -> bool:
        """Whether the block has fewer characters."""
        return self._length < length

    def add(self, text: str) -> None:
        """Append text from the page."""
        text = collapse_whitespace(text)
        if self._at_blank and text[:1] == " ":
            text = text[1:]
        if text:
            self._append(text)
            self._at_blank = text[-1] == " "

    def add_line_break(self) -> None:
        """Append a line break in place of a preceding space."""
        if not self._parts:
            return
        if self._at_blank:
            self._parts[-1] = self._parts[-1][:-1] + "\n"
        else:
            self._append("\n")
        self._at_blank = True

    def open(self, kind: SpanKind, target: str = "") -> bool:
        """Start a span; return False if one of this kind is open already."""
        if kind in self._open:
            return False
        self._open[kind] = target, self._length
        return True

    def close(self, kind: SpanKind) -> None:
        """End the span of this kind."""
        target, start = self._open.pop(kind)
        self._end_span(kind, target, start)

    def take(self) -> tuple[str, tuple[Span, ...]]:
        """Return the text and its spans, and start anew."""
        for kind, (target, start) in self._open.items():
            self._end_span(kind, target, start)
            self._open[kind] = target, 0
        text = "".join(self._parts).rstrip()
        spans = _merge_spans(text, self._spans) if self._spans else ()
        self._parts, self._length, self._at_blank, self._spans = [], 0, True, []
        return text, spans

    def _append(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def _end_span(self, kind: SpanKind, target: str, start: int) -> None:
        if self._length > start:
            self._spans.append(Span(start, self._length, kind, target))


def _merge_spans(text: str, spans: list[Span]) -> tuple[Span, ...]:
    """Trim and sort the spans, outer before inner, and merge adjacent equal ones."""
    joined: list[Span] = []
    last: dict[tuple[SpanKind, str], int] = {}
    for span in sorted(spans, key=lambda span: (span.start, -span.end, span.kind == "code")):
        piece = text[span.start : span.end]
        start, end = span.start + len(piece) - len(piece.lstrip()), span.start + len(piece.rstrip())
        if start >= end:
            continue
        before = last.get((span.kind, span.target))
        if before is not None and joined[before].end >= start:
            first = joined[before]
            joined[before] = Span(first.start, max(first.end, end), span.kind, span.target)
            continue
        last[span.kind, span.target] = len(joined)
        joined.append(Span(start, end, span.kind, span.target))
    return tuple(joined)
