"""Embedding job of a sandboxed worker process: passages in, vectors out."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import orjson

from refdesk.documents.worker import Progress
from refdesk.engines.embedded.embedding.onnx import OnnxModel, can_overflow, read_builtin_model

IS_EXACT = can_overflow()
"""Determined at import: the sandbox later hides the CPU information."""


def run(job: dict[str, Any], source: int | None, output: int | None, progress: Progress) -> dict[str, Any]:
    """Embed the texts of the source, a JSON list, with the built-in model.

    The output is the concatenated float32 vectors in the order of the texts.
    """
    if source is None or output is None:
        raise ValueError("every job has a source and an output")
    texts: list[str] = orjson.loads(os.pread(source, os.fstat(source).st_size, 0))
    vectors = memoryview(_load_model().embed_all(texts).tobytes())
    while vectors:
        vectors = vectors[os.write(output, vectors) :]
    return {"count": len(texts)}


@cache
def _load_model() -> OnnxModel:
    return OnnxModel(read_builtin_model(), is_exact=IS_EXACT)
