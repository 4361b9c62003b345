"""Text put together from runs, each with its own look: what office formats call a paragraph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from refdesk.documents.model import Span, SpanKind

FIXED_PITCH_FONTS = (
    "andale mono",
    "cascadia",
    "consolas",
    "courier",
    "dejavu sans mono",
    "fira code",
    "fira mono",
    "hack",
    "ibm plex mono",
    "inconsolata",
    "jetbrains mono",
    "liberation mono",
    "lucida console",
    "menlo",
    "monaco",
    "noto mono",
    "noto sans mono",
    "roboto mono",
    "sf mono",
    "source code pro",
    "ubuntu mono",
)
"""How the names of fonts begin whose characters are all equally wide: what is set in them is code."""


def is_fixed_pitch(font: str) -> bool:
    """Whether a font of this name sets code."""
    return font.lower().startswith(FIXED_PITCH_FONTS)


@dataclass(frozen=True, slots=True)
class Look:
    """How a run is set apart."""

    strong: bool = False
    emphasis: bool = False
    code: bool = False
    link: str = ""


PLAIN = Look()


class Runs:
    """Runs in order, and what they come to: a text and its spans."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._looks: list[Look] = []

    def add(self, text: str, look: Look = PLAIN) -> None:
        """Append a run."""
        if text:
            self._texts.append(text)
            self._looks.append(look)

    def all_code(self) -> bool:
        """Whether every visible character is set as code."""
        visible = [look.code for text, look in zip(self._texts, self._looks, strict=True) if not text.isspace()]
        return bool(visible) and all(visible)

    def raw(self) -> str:
        """The text as it is."""
        return "".join(self._texts)

    def text(self) -> str:
        """The text without blanks around it."""
        return self.raw().strip()

    def one_line(self) -> str:
        """The text on one line, for headings and captions."""
        return " ".join(self.raw().split())

    def text_and_spans(self) -> tuple[str, tuple[Span, ...]]:
        """The text without blanks around it, and what is set apart in it."""
        raw = self.raw()
        text = raw.strip()
        if self._looks.count(PLAIN) == len(self._looks):
            return text, ()
        stretches = list(self._stretches(len(raw) - len(raw.lstrip()), len(text)))
        spans = (span for kind in _KINDS for span in _spans(stretches, kind))
        return text, tuple(sorted(spans, key=lambda span: (span.start, -span.end)))

    def _stretches(self, offset: int, length: int) -> Iterator[tuple[int, int, Look]]:
        """From where to where the text looks the same, counted from its first visible character."""
        position = -offset
        runs = zip(self._texts, self._looks, strict=True)
        for look, group in groupby(runs, key=lambda run: run[1]):
            end = position + sum(len(text) for text, _ in group)
            yield max(position, 0), min(end, length), look
            position = end


_KINDS: Sequence[SpanKind] = ("link", "strong", "emphasis", "code")


def _spans(stretches: Sequence[tuple[int, int, Look]], kind: SpanKind) -> Iterator[Span]:
    """Neighbouring stretches that are set apart in the same way make one span."""
    for value, group in groupby(stretches, key=lambda stretch: getattr(stretch[2], kind)):
        alike = list(group)
        start, end = alike[0][0], alike[-1][1]
        if value and start < end:
            yield Span(start, end, kind, value if kind == "link" else "")
