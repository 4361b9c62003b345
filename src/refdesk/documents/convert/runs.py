"""Text put together from runs, each with its own look: what office formats call a paragraph."""

from __future__ import annotations

from dataclasses import dataclass

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
        self._runs: list[tuple[str, Look]] = []

    def add(self, text: str, look: Look = PLAIN) -> None:
        """Append a run."""
        if text:
            self._runs.append((text, look))

    def all_code(self) -> bool:
        """Whether every visible character is set as code."""
        visible = [look.code for text, look in self._runs if text.strip()]
        return bool(visible) and all(visible)

    def raw(self) -> str:
        """The text as it is."""
        return "".join(text for text, _ in self._runs)

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
        if all(look == PLAIN for _, look in self._runs):
            return text, ()
        offset = len(raw) - len(raw.lstrip())
        spans = [*self._spans("link"), *self._spans("strong"), *self._spans("emphasis"), *self._spans("code")]
        moved = (_moved(span, offset, len(text)) for span in spans)
        return text, tuple(sorted((span for span in moved if span.end > span.start), key=_order))

    def _spans(self, kind: SpanKind) -> list[Span]:
        """Neighbouring runs that are set apart in the same way make one span."""
        spans: list[Span] = []
        position = 0
        for text, look in self._runs:
            end = position + len(text)
            value = getattr(look, kind)
            if value:
                target = value if kind == "link" else ""
                last = spans[-1] if spans else None
                if last and last.end == position and last.target == target:
                    position = spans.pop().start
                spans.append(Span(position, end, kind, target))
            position = end
        return spans


def _moved(span: Span, offset: int, length: int) -> Span:
    return Span(max(span.start - offset, 0), min(span.end - offset, length), span.kind, span.target)


def _order(span: Span) -> tuple[int, int]:
    return span.start, -span.end
