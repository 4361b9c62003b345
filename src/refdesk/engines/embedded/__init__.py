"""The embedded engine: documents and their full-text index in one SQLite file, nothing else to run."""

from refdesk.engines.embedded.engine import EmbeddedEngine, SourceDocument, open_embedded

__all__ = ["EmbeddedEngine", "SourceDocument", "open_embedded"]
