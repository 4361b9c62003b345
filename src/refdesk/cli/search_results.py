"""Search hits of both search tools in one shape, and their formatting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from refdesk.calls import Answer
from refdesk.cli.terminal import TerminalStyle, sanitize
from refdesk.tools.documentation import DocumentationHit


@dataclass(frozen=True, slots=True)
class PassageHit:
    """A matching passage and its source."""

    document_id: str
    text: str
    score: float
    metadata: Mapping[str, Any]

    @property
    def anchors(self) -> frozenset[str]:
        """Anchors of the sections that contain the passage."""
        return frozenset(filter(None, self.metadata.get("anchors") or [self.metadata.get("anchor")]))

    @property
    def heading(self) -> str:
        """Heading path of the passage, or its document's title."""
        path = self.metadata.get("path") or self.metadata.get("section") or self.metadata.get("title") or ""
        return path if isinstance(path, str) else " › ".join(path)

    @property
    def source(self) -> str:
        """Document id with anchor, page, version and index date."""
        metadata = self.metadata
        anchor = f"#{metadata['anchor']}" if metadata.get("anchor") else ""
        page = f", page {metadata['page']}" if metadata.get("page") else ""
        version = f", version {metadata['version']}" if metadata.get("version") else ""
        indexed = f", indexed {metadata['indexed_at'][:10]}" if metadata.get("indexed_at") else ""
        return f"{self.document_id}{anchor}{page}{version}{indexed}"


def parse_hits(answer: Answer) -> list[PassageHit]:
    """Return the hits in an answer of `r2r_search` or `search_documentation`, best first."""
    if answer.structured is not None:
        results = answer.structured["results"]
        return [PassageHit(one["document_id"], one["text"], one["score"], one["metadata"]) for one in results]
    found = map(DocumentationHit.from_item, answer.result["content"])
    return [
        PassageHit(hit.metadata["source"], hit.text, hit.score, {**hit.metadata, "path": hit.heading})
        for hit in found
        if hit is not None and hit.score is not None
    ]


def format_hit(number: int, hit: PassageHit, query: str, style: TerminalStyle) -> str:
    """Format a hit with heading and source, highlighting the query's words."""
    heading = style.bold(sanitize(f"{number}. {hit.heading}"))
    foot = style.faint(sanitize(f"{hit.source}, score {hit.score:.2f}"))
    return f"{heading}\n{style.highlight(sanitize(hit.text.strip()), query)}\n{foot}"
