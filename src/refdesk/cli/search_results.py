"""What the search tools found, in one shape, and as a person reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refdesk.calls import Answer
from refdesk.cli.terminal import Ink, printable


@dataclass(frozen=True, slots=True)
class Found:
    """A passage, with where it is from."""

    document_id: str
    text: str
    score: float
    metadata: Mapping[str, Any]

    @property
    def anchors(self) -> frozenset[str]:
        """Of the sections that it lies in."""
        return frozenset(filter(None, self.metadata.get("anchors") or [self.metadata.get("anchor")]))

    @property
    def heading(self) -> str:
        """The way to it, or at least its document's title."""
        path = self.metadata.get("path") or self.metadata.get("section") or self.metadata.get("title") or ""
        return path if isinstance(path, str) else " › ".join(path)

    @property
    def source(self) -> str:
        """Where to read on, of which version, and how fresh."""
        known = self.metadata
        anchor = f"#{known['anchor']}" if known.get("anchor") else ""
        page = f", page {known['page']}" if known.get("page") else ""
        version = f", version {known['version']}" if known.get("version") else ""
        indexed = f", indexed {known['indexed_at'][:10]}" if known.get("indexed_at") else ""
        return f"{self.document_id}{anchor}{page}{version}{indexed}"


def found_in(answer: Answer) -> list[Found]:
    """What `r2r_search` answered with, or `search_documentation`, best first."""
    if answer.structured is not None:
        results = answer.structured["results"]
        return [Found(one["document_id"], one["text"], one["score"], one["metadata"]) for one in results]
    items = (item for item in answer.result["content"] if "score" in item.get("_meta", ()))
    return [_found_text(item["text"], item["_meta"]) for item in items]


def _found_text(text: str, meta: Mapping[str, Any]) -> Found:
    """A text that stands for itself: a heading, the passage, and a line with its source."""
    heading, _, rest = text.partition("\n")
    passage = rest.rpartition("\nSource: ")[0] or rest
    known = meta["metadata"]
    path = heading.removeprefix("### ") if heading.startswith("### ") else None
    return Found(known["source"], passage, meta["score"], {**known, "path": path})


def shown(number: int, found: Found, query: str, ink: Ink) -> str:
    """A passage under its heading, with its source; the query's words stand out."""
    heading = ink.bold(printable(f"{number}. {found.heading}"))
    foot = ink.faint(printable(f"{found.source}, score {found.score:.2f}"))
    return f"{heading}\n{ink.highlighted(printable(found.text.strip()), query)}\n{foot}"
