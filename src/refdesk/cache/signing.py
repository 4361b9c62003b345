"""Answers as bytes for a place that is not trusted: sealed to their name, so that nothing else passes for them.

    16 bytes   the seal: a digest of the name, the generation and the answer, with a secret where there is one
    16 bytes   the generation: of which state of the tenant's documents it is
    the rest   the answer as JSON

Without a secret the seal tells what is broken, or belongs elsewhere; with one, also what somebody has forged.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from typing import Any

import orjson

from refdesk.cache.response_meta import WireAnswer

SEAL_BYTES = 16
GENERATION_BYTES = 16
HEAD_BYTES = SEAL_BYTES + GENERATION_BYTES

PARTS = frozenset({"content", "structuredContent", "_meta"})
"""What an answer has that is worth keeping; one that says `isError` is not."""


class Broken(ValueError):
    """Bytes that are no answer to what was asked."""


def sealed(name: str, generation: bytes, answer: WireAnswer, secret: bytes) -> bytes:
    """The answer as bytes that `unsealed` gives back under the same name only."""
    body = orjson.dumps(answer)
    return _seal(name, generation, body, secret) + generation + body


def unsealed(name: str, value: bytes, secret: bytes) -> WireAnswer:
    """The answer that was sealed under this name; raises Broken for everything else."""
    generation, body = value[SEAL_BYTES:HEAD_BYTES], value[HEAD_BYTES:]
    if not compare_digest(value[:SEAL_BYTES], _seal(name, generation, body, secret)):
        raise Broken("the seal does not fit")
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Broken("not JSON") from error
    if not is_answer(answer):
        raise Broken("not an answer of a tool")
    return dict(answer)


def is_answer(value: Any) -> bool:
    """Whether this has the shape of what a tool answers: text items, and perhaps structured content."""
    return (
        isinstance(value, dict)
        and value.keys() <= PARTS
        and isinstance(value.get("content"), list)
        and all(map(_is_text, value["content"]))
        and isinstance(value.get("structuredContent", {}), dict)
        and isinstance(value.get("_meta", {}), dict)
    )


def _is_text(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str)


def _seal(name: str, generation: bytes, body: bytes, secret: bytes) -> bytes:
    seal = blake2b(key=secret, digest_size=SEAL_BYTES)
    # The name ends where the generation begins, which is always as long: no two values are sealed alike.
    for part in (name.encode(), b"\n", generation, body):
        seal.update(part)
    return seal.digest()
