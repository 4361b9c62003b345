"""Converted documents as resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, TypeGuard

from anyio import to_thread

from refdesk.calls import Call
from refdesk.documents.conversions import Conversions, Export
from refdesk.tools.budget import Blocklist
from refdesk.tools.paging import read_text

MEDIA_TYPES = {"markdown": "text/markdown", "html": "text/html", "json": "application/json"}
"""Media type of each export format."""

MAX_RESOURCE_BYTES = 32 * 1024 * 1024
"""Largest document that is returned in one piece."""


class ConvertedResources:
    """Resources `document://{handle}/{form}`: a converted document in one piece."""

    SCHEME = "document://"
    TEMPLATE = "document://{handle}/{form}"

    def __init__(self, conversions: Conversions, blocklist: Blocklist) -> None:
        self._conversions = conversions
        self._blocklist = blocklist

    def listing(self, call: Call) -> Iterable[Mapping[str, Any]]:
        return ()

    def templates(self) -> Iterable[Mapping[str, Any]]:
        yield {
            "uriTemplate": self.TEMPLATE,
            "name": "converted",
            "title": "A converted document",
            "description": "A whole converted document as markdown, html or json.",
        }

    async def read(self, uri: str, call: Call) -> Sequence[Mapping[str, Any]] | None:
        handle, _, form = uri.removeprefix(self.SCHEME).partition("/")
        if not uri.startswith(self.SCHEME) or not _is_form(form):
            return None
        file = await self._conversions.export(call.caller.tenant, handle, form)
        if file is None:
            return None
        text = await to_thread.run_sync(self._read_text, file)
        return [{"uri": uri, "mimeType": MEDIA_TYPES[form], "text": text}]

    def _read_text(self, file: IO[bytes]) -> str:
        return self._blocklist.screen(read_text(file, MAX_RESOURCE_BYTES))

    async def complete(self, template: str, name: str, value: str, context: Mapping[str, str], call: Call) -> list[str]:
        return [form for form in MEDIA_TYPES if form.startswith(value)] if name == "form" else []

    @classmethod
    def link(cls, handle: str, form: Export) -> dict[str, Any]:
        """Return a content item that links to the whole document."""
        uri = f"{cls.SCHEME}{handle}/{form}"
        return {"type": "resource_link", "uri": uri, "name": f"{handle}.{form}", "mimeType": MEDIA_TYPES[form]}


def _is_form(name: str) -> TypeGuard[Export]:
    return name in MEDIA_TYPES
