"""Signed serialization of cache entries for an untrusted Redis, and the secret that signs them.

    16 bytes   signature: a digest of name, generation and answer, keyed with the secret if there is one
    16 bytes   generation of the tenant
    the rest   the answer as JSON

Without a secret the signature detects corrupt and misplaced entries; with one, forged entries too.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import orjson

from refdesk.cache.response_meta import WireAnswer
from refdesk.errors import StorageError

SECRET_FILE = "cache.secret"
SECRET_BYTES = 32

SIGNATURE_BYTES = 16
GENERATION_BYTES = 16
HEAD_BYTES = SIGNATURE_BYTES + GENERATION_BYTES

FIELDS = frozenset({"content", "structuredContent", "_meta"})
"""Fields of a cacheable answer; one with `isError` is not cached."""


class InvalidEntry(ValueError):
    """An entry with a wrong signature or malformed content."""


def sign(name: str, generation: bytes, answer: WireAnswer, secret: bytes) -> bytes:
    """Serialize and sign an answer; `verify` accepts it under the same name only."""
    body = orjson.dumps(answer)
    return _sign(name, generation, body, secret) + generation + body


def verify(name: str, value: bytes, secret: bytes) -> WireAnswer:
    """Return the answer that was signed under this name; raise InvalidEntry for anything else."""
    generation, body = value[SIGNATURE_BYTES:HEAD_BYTES], value[HEAD_BYTES:]
    if not compare_digest(value[:SIGNATURE_BYTES], _sign(name, generation, body, secret)):
        raise InvalidEntry("the seal does not fit")
    try:
        answer = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidEntry("not JSON") from error
    if not is_answer(answer):
        raise InvalidEntry("not an answer of a tool")
    return dict(answer)


def is_answer(value: Any) -> bool:
    """Return whether a value has the shape of a tool result: text items and optional structured content."""
    return (
        isinstance(value, dict)
        and value.keys() <= FIELDS
        and isinstance(value.get("content"), list)
        and all(map(_is_text, value["content"]))
        and isinstance(value.get("structuredContent", {}), dict)
        and isinstance(value.get("_meta", {}), dict)
    )


def _is_text(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "text" and isinstance(item.get("text"), str)


def _sign(name: str, generation: bytes, body: bytes, secret: bytes) -> bytes:
    signature = blake2b(key=secret, digest_size=SIGNATURE_BYTES)
    # The separator and the fixed length of the generation make the signed bytes unambiguous.
    for part in (name.encode(), b"\n", generation, body):
        signature.update(part)
    return signature.digest()


def load_cache_secret(data: Path) -> bytes:
    """Return the secret of all processes on a data folder."""
    try:
        return _load_or_create_secret(data)
    except OSError as error:
        raise StorageError(f"cannot keep a secret in {data}: {error.strerror}") from error


def _load_or_create_secret(data: Path) -> bytes:
    """Read the secret file; the first process creates it atomically."""
    data.mkdir(parents=True, exist_ok=True)
    path = data / SECRET_FILE
    if not path.exists():
        with NamedTemporaryFile(dir=data, prefix=f".{SECRET_FILE}.") as draft:
            draft.write(secrets.token_bytes(SECRET_BYTES))
            draft.flush()
            with suppress(FileExistsError):
                os.link(draft.name, path)
    return path.read_bytes()
