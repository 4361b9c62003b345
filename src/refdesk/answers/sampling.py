"""Answers by the client's own model: MCP sampling.

A client of the stateless revision is asked by ending its call, and calls again with the answer. The handler then runs
from the start, may find other hits, and sees only the newest answer: so a question's name says which hits it was asked
about, and an answer to the second try is looked for when there is none to the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.answers.prompt import Prompt
from refdesk.answers.question import Question
from refdesk.calls import Client, InputRequired
from refdesk.engines.base import Hit

METHOD = "sampling/createMessage"

MAX_NAME_CHARACTERS = 100
"""Of the model's name, which the client makes up."""


def name_of(question: Question, hits: Sequence[Hit]) -> str:
    """What the request is called within its call: another name when question or hits are others."""
    about = (question.text, *(f"{hit.chunk_id} {hit.document.version}" for hit in hits))
    return f"answer-{hashlib.sha256(chr(0).join(about).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def request(question: Question, prompt: Prompt) -> dict[str, Any]:
    """The parameters of the request."""
    params: dict[str, Any] = {
        "messages": [{"role": "user", "content": {"type": "text", "text": prompt.user}}],
        "systemPrompt": prompt.system,
        "maxTokens": question.max_tokens,
        "temperature": question.temperature,
        "includeContext": "none",
    }
    if question.model:
        params["modelPreferences"] = {"hints": [{"name": question.model}]}
    return params


async def sample(client: Client, name: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """The client's answer and its model's name; raises ClientCannot, MissingCapability or InputRequired."""
    answer = await client.ask(name, METHOD, params)
    return _text_of(answer), _model_of(answer)


async def was_asked_again(client: Client, name: str, params: Mapping[str, Any]) -> tuple[str, str] | None:
    """The answer to a second try, where this call brings one."""
    try:
        return await sample(client, name, params)
    except InputRequired:
        return None


def _text_of(answer: Any) -> str:
    """The text of a message, which is one item or several; nothing of an answer that is no message."""
    content = answer.get("content") if isinstance(answer, Mapping) else None
    items = content if isinstance(content, list) else [content]
    texts = [item.get("text") for item in items if isinstance(item, Mapping) and item.get("type") == "text"]
    return "\n\n".join(text for text in texts if isinstance(text, str)).strip()


def _model_of(answer: Any) -> str:
    model = answer.get("model") if isinstance(answer, Mapping) else None
    return model[:MAX_NAME_CHARACTERS] if isinstance(model, str) and model else "sampling"
