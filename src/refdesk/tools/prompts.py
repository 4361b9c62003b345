"""Prompts for the common jobs with a knowledge base: getting to know a project, and catching up with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.calls import Call, text_content
from refdesk.engines.base import DocumentStatus, Engine, Listing
from refdesk.tools.collection_scope import ALL, Scopes
from refdesk.tools.outline import MAX_CHARACTERS
from refdesk.tools.registry import Prompt, PromptArgument, Registry
from refdesk.validation import shortened

TOOLSET = "r2r"

SHOWN = 20
"""Documents that a prompt names; the tools find the others."""


class KnowledgePrompts:
    """The prompts' texts, made from what the caller's documents are now."""

    def __init__(self, engine: Engine, scopes: Scopes) -> None:
        self._engine = engine
        self._scopes = scopes

    def register(self, registry: Registry) -> None:
        """Offer the prompts."""
        collection = PromptArgument("collection_id", "Collection; default: the current project's.", choices=self._ids)
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

    async def onboard(self, given: Mapping[str, str], call: Call) -> dict[str, Any]:
        where, newest = await self._newest(given, call)
        reader = f" I am {shortened(given['role'])}." if given.get("role") else ""
        return _message(
            f'Onboard me to the project whose documents are in the collection "{where}".{reader}\n\n'
            f"{_listed('Some of its documents', newest)}\n\n"
            f'Use r2r_search (collection_id "{where}") and read on with get_document or read_doc_section. Tell me what '
            "the project is for, how it is built up, how I set it up and run it, what its rules and decisions are, and "
            "what to read first. Name the source of each statement, and say what the documents do not tell."
        )

    async def what_changed(self, given: Mapping[str, str], call: Call) -> dict[str, Any]:
        where, newest = await self._newest(given, call)
        return _message(
            f'Tell me what is new in the documents of the collection "{where}".\n\n'
            f"{_listed('Most recently indexed, newest first', newest)}\n\n"
            "Read them with get_document, say for each in a sentence what it is about and what a reader has to know, "
            "and name its id. Skip what is of no consequence."
        )

    def _ids(self, call: Call) -> list[str]:
        return [ALL, *(entry.id for entry in self._engine.sets(call.caller.tenant))]

    async def _newest(self, given: Mapping[str, str], call: Call) -> tuple[str, Sequence[DocumentStatus]]:
        """Where is looked, and the documents there that came or changed last."""
        scope = await self._scopes.to_search(call, given.get("collection_id") or None)
        collection = scope.collections[0] if scope.collections else None
        listing = Listing(collection, ("embedding", "success"), limit=SHOWN, newest_first=True)
        newest, _ = await self._engine.documents(call.caller.tenant, listing)
        return scope.label, newest


def _listed(title: str, documents: Sequence[DocumentStatus]) -> str:
    if not documents:
        return "It has no documents yet; say so, and that r2r_ingest_document brings some in."
    lines = [f"- {d.id}: {shortened(d.title, MAX_CHARACTERS)} ({d.updated_at:%Y-%m-%d %H:%M})" for d in documents]
    return "\n".join([f"{title}:", *lines])


def _message(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text_content(text)}]}
