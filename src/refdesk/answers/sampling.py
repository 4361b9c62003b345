"""Answers by the client's own model, through MCP sampling.

A client of the stateless revision is asked by ending its call, and calls again with the response. The handler then runs
from the start, may find other hits, and sees only the latest response. So the request's name identifies the hits, and a
response to the second attempt is looked up if there is none to the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from refdesk.answers.prompt import ModelPrompt
from refdesk.answers.question import Question
from refdesk.calls import Client, InputRequired
from refdesk.engines.base import Hit

METHOD = "sampling/createMessage"

MAX_NAME_CHARACTERS = 100
"""Length of the model's name, which comes from the client."""


def build_request_name(question: Question, hits: Sequence[Hit]) -> str:
    """Return the name of the request within its call, derived from the question and the hits."""
    about = (question.text, *(f"{hit.chunk_id} {hit.document.digest}" for hit in hits))
    return f"answer-{hashlib.sha256(chr(0).join(about).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def build_request(question: Question, prompt: ModelPrompt) -> dict[str, Any]:
    """Return the parameters of a sampling request."""
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
    """Return the client's answer and its model; raises ClientCannot, MissingCapability or InputRequired."""
    answer = await client.ask(name, METHOD, params)
    model = answer.get("model") if isinstance(answer, Mapping) else None
    return _extract_text(answer), model[:MAX_NAME_CHARACTERS] if isinstance(model, str) and model else "sampling"


async def sample_if_answered(client: Client, name: str, params: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the answer to the second attempt if this call carries one."""
    try:
        return await sample(client, name, params)
    except InputRequired:
        return None


def _extract_text(answer: Any) -> str:
    """Return the text of a message with one or several items; empty for anything else."""
    content = answer.get("content") if isinstance(answer, Mapping) else None
    items = content if isinstance(content, list) else [content]
    texts = [item.get("text") for item in items if isinstance(item, Mapping) and item.get("type") == "text"]
    return "\n\n".join(text for text in texts if isinstance(text, str)).strip()
