"""Prompts for a knowledge base: onboarding and recent changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.calls import Call, text_content
from refdesk.engines.base import DocumentStatus, Engine, Listing
from refdesk.tools.collection_scope import ALL, ScopeResolver
from refdesk.tools.previews import MAX_CHARACTERS
from refdesk.tools.registry import Prompt, PromptArgument, Registry
from refdesk.validation import shorten

TOOLSET = "r2r"

MAX_SHOWN_DOCUMENTS = 20
"""Documents named in a prompt; the tools find the others."""


class KnowledgePrompts:
    """Prompts built from the caller's current documents."""

    def __init__(self, engine: Engine, scopes: ScopeResolver) -> None:
        self._engine = engine
        self._scopes = scopes

    def register(self, registry: Registry) -> None:
        """Register the prompts."""
        collection = PromptArgument(
            "collection_id", "Collection; default: the current project's.", choices=self._list_collections
        )
        registry.add_prompt(
            Prompt(
                name="onboard_me",
                title="Onboard me to this project",
                description="An overview of a project from its documents, with sources.",
                toolset=TOOLSET,
                arguments=[collection, PromptArgument("role", "Who you are, e.g. backend developer.")],
                render=self.onboard,
            )
        )
        registry.add_prompt(
            Prompt(
                name="what_changed",
                title="What changed",
                description="What the most recently indexed documents say.",
                toolset=TOOLSET,
                arguments=[collection],
                render=self.what_changed,
            )
        )

    async def onboard(self, arguments: Mapping[str, str], call: Call) -> dict[str, Any]:
        where, newest = await self._list_newest(arguments, call)
        reader = f" I am {shorten(arguments['role'])}." if arguments.get("role") else ""
        return _build_message(
            f'Onboard me to the project whose documents are in the collection "{where}".{reader}\n\n'
            f"{_format_documents('Some of its documents', newest)}\n\n"
            f'Use r2r_search (collection_id "{where}") and read on with get_document or read_doc_section. Tell me what '
            "the project is for, how it is built up, how I set it up and run it, what its rules and decisions are, and "
            "what to read first. Name the source of each statement, and say what the documents do not tell."
        )

    async def what_changed(self, arguments: Mapping[str, str], call: Call) -> dict[str, Any]:
        where, newest = await self._list_newest(arguments, call)
        return _build_message(
            f'Tell me what is new in the documents of the collection "{where}".\n\n'
            f"{_format_documents('Most recently indexed, newest first', newest)}\n\n"
            "Read them with get_document, say for each in a sentence what it is about and what a reader has to know, "
            "and name its id. Skip what is of no consequence."
        )

    def _list_collections(self, call: Call) -> list[str]:
        return [ALL, *(entry.id for entry in self._engine.cached_collections(call.caller.tenant))]

    async def _list_newest(self, arguments: Mapping[str, str], call: Call) -> tuple[str, Sequence[DocumentStatus]]:
        """Return the scope label and the most recently updated documents."""
        scope = await self._scopes.resolve_search(call, arguments.get("collection_id") or None)
        collection = scope.collections[0] if scope.collections else None
        listing = Listing(collection, ("embedding", "success"), limit=MAX_SHOWN_DOCUMENTS, newest_first=True)
        newest, _ = await self._engine.documents(call.caller.tenant, listing)
        return scope.label, newest


def _format_documents(title: str, documents: Sequence[DocumentStatus]) -> str:
    if not documents:
        return "It has no documents yet. Say so, and that r2r_ingest_document adds some."
    lines = [f"- {d.id}: {shorten(d.title, MAX_CHARACTERS)} ({d.updated_at:%Y-%m-%d %H:%M})" for d in documents]
    return "\n".join([f"{title}:", *lines])


def _build_message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text_content(text)}]}
