"""The pages that people read, and the fenced blocks on them in page order."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

SINGLE_PAGES = ["README.md", "CONTRIBUTING.md", "SECURITY.md"]
FOLDERS = ["docs", "deploy", "benchmarks", "examples", "plugins"]

SHELL = {"sh", "bash", "console", "shell"}
OUTPUT = {"text", "json"}

_FENCE = re.compile(
    r"""(?:^[ ]*<!--\s*(?P<remark>[^\n]*?)\s*-->\n\n?)?
        ^(?P<indent>[ ]*)(?P<ticks>`{3,})(?P<language>[\w+-]*)[ ]?(?P<rest>[^\n]*)\n
        (?P<text>.*?)
        ^(?P=indent)(?P=ticks)[ ]*$""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
"""A fenced block, with the HTML comment right above it, where one says why it is not run or not compared."""


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    title: str
    remark: str
    text: str
    heading: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def is_shell(self) -> bool:
        return self.language in SHELL

    def reason(self, kind: str) -> str:
        """What the comment above says after `not run:` or `not compared:`."""
        return self.remark.removeprefix(f"{kind}:").strip() if self.remark.startswith(f"{kind}:") else ""


def pages() -> list[str]:
    """Every page, by its path in the repository."""
    found = [ROOT / name for name in SINGLE_PAGES]
    for folder in FOLDERS:
        found += sorted((ROOT / folder).rglob("*.md"))
    return [page.relative_to(ROOT).as_posix() for page in found if page.is_file()]


def blocks_of(page: str) -> list[Block]:
    """The fenced blocks of a page, from top to bottom."""
    text = (ROOT / page).read_text("utf-8")
    return [_block(page, text, match) for match in _FENCE.finditer(text)]


def _block(page: str, text: str, match: re.Match[str]) -> Block:
    title = re.search(r'title="([^"]*)"', match["rest"])
    return Block(
        page=page,
        line=text.count("\n", 0, match.start("ticks")) + 1,
        language=match["language"],
        title=title[1] if title else "",
        remark=match["remark"] or "",
        text=textwrap.dedent(match["text"]),
        heading=_heading_above(text[: match.start()]),
    )


def _heading_above(text: str) -> str:
    """The last heading of the text; what looks like one within a block is none."""
    headings: list[str] = re.findall(r"^#{1,6} .+$", _FENCE.sub("", text), re.MULTILINE)
    return headings[-1] if headings else ""
