"""What a worker process does for the embedder: passages in, vectors out. Runs behind the sandbox's walls."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import orjson

from refdesk.documents.worker import Progress
from refdesk.engines.embedded.embedding.onnx import OnnxModel, builtin_model, may_overflow

IS_EXACT = may_overflow()
"""Found out while this is loaded: later, what is known of the processor is behind the walls."""


def run(job: dict[str, Any], source: int | None, output: int | None, progress: Progress) -> dict[str, Any]:
    """Embed the texts of the source, a JSON list, with the model that Refdesk carries.

    The output is their vectors as float32 in the order of the texts, one after the other.
    """
    if source is None or output is None:
        raise ValueError("every job has a source and an output")
    texts: list[str] = orjson.loads(os.pread(source, os.fstat(source).st_size, 0))
    vectors = memoryview(_model().embed_all(texts).tobytes())
    while vectors:
        vectors = vectors[os.write(output, vectors) :]
    return {"count": len(texts)}


@cache
def _model() -> OnnxModel:
    return OnnxModel(builtin_model(), is_exact=IS_EXACT)
