"""Refdesk's own manual, which comes with it: the documentation set that a new desk answers from."""

from __future__ import annotations

from pathlib import Path

from refdesk.engines.embedded import EmbeddedEngine, SourceDocument
from refdesk.engines.port import SHARED, DocumentationSet
from refdesk.version import __version__


async def bring_in_manual(engine: EmbeddedEngine) -> None:
    """Index the manual for everybody; costs next to nothing when it is indexed already."""
    folder = manual_folder()
    documents = [
        SourceDocument(id=f"refdesk/{path.relative_to(folder).as_posix()}", text=path.read_text("utf-8"))
        for path in sorted(folder.rglob("*.md"))
    ]
    entry = DocumentationSet("refdesk", "docs", "Refdesk manual", __version__, len(documents))
    await engine.replace_set(SHARED, entry, documents)


def manual_folder() -> Path:
    """Where the manual is: inside an installed package, or beside the sources in a checkout."""
    package = Path(__file__).parent
    installed = package / "manual_pages"
    return installed if installed.is_dir() else package.parent.parent / "docs"
