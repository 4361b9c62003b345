"""Hits as a search would give them."""

from __future__ import annotations

from datetime import UTC, datetime

from refdesk.engines.base import DocumentInfo, Hit

INDEXED_AT = datetime(2026, 1, 1, tzinfo=UTC)


def hit(
    text: str, *, document: str = "guide.html", chunk: int = 1, path: tuple[str, ...] = ("Guide",), score: float = 0.9
) -> Hit:
    """A passage of a document in the collection `manual`; its title is the first heading of the path."""
    info = DocumentInfo(f"manual/{document}", "manual", path[0], "15", INDEXED_AT)
    return Hit(info, f"manual/{document}#c{chunk}", "section", path, None, text, score)


PORT = hit(
    "**`port` (`integer`)**\n\nThe TCP port the server listens on; 5432 by default. "
    "Note that the same port number is used for all IP addresses the server listens on. "
    "This parameter can only be set at server start.",
    document="connection.html",
    chunk=4,
    path=("Connections", "Connection Settings"),
)
BACKUP = hit(
    "To dump a database called `mydb` into a script file:\n\n```\n$ pg_dump mydb > db.sql\n```\n\n"
    "The dump is consistent even if the database is in use.",
    document="dump.html",
    path=("pg_dump", "Examples"),
    score=0.7,
)
FORMATS = hit(
    "Formats of a dump are:\n\n| Format | Option |\n| --- | --- |\n| plain text | `-Fp` |\n| directory | `-Fd` |",
    document="dump.html",
    chunk=2,
    path=("pg_dump", "Formats"),
    score=0.6,
)
