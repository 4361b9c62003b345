"""ONNX embedding model, run by onnxruntime in this process: one text at a time, on one thread.

Texts aren't batched: nothing is padded, and a text's vector doesn't depend on its neighbours. Throughput comes from
more threads or processes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refdesk.documents import tokens
from refdesk.documents.sandbox_worker import Progress
from refdesk.engines.embedded.embedding import Vector, Vectors
from refdesk.errors import EngineError

if TYPE_CHECKING:
    import onnxruntime

BUILTIN_FOLDER = Path(__file__).with_name("minilm")

BUILTIN_VOCABULARY = Path(tokens.__file__).with_name("wordpiece.txt")
"""Vocabulary of the built-in model. It is also used to measure chunks."""

DEFAULT_MAX_TOKENS = 512
"""Maximum input of a BERT model whose folder doesn't state it."""

LENGTH_KEYS = ("max_tokens", "max_seq_length", "model_max_length", "max_position_embeddings")
"""Configuration keys that state the maximum input. The smallest value applies."""

LENGTH_FILES = ("model.json", "sentence_bert_config.json", "tokenizer_config.json", "config.json")

ERRORS_ONLY = 3
"""Log level of onnxruntime. Its warnings are about processors and drivers that aren't present."""


def _can_overflow() -> bool:
    """Whether 8-bit products can overflow on this CPU: x86-64 without VNNI, or unknown."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return "vnni" not in Path("/proc/cpuinfo").read_text()
    except OSError:
        return True


IS_EXACT = _can_overflow()
"""Whether slower, exact 8-bit products are used. Determined at import: the sandbox later hides the CPU information."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """Model description, known before the model is loaded."""

    path: Path
    vocabulary: Path
    name: str
    max_tokens: int
    dimensions: int = 0
    """0 if only the model itself can tell."""


def read_model_folder(path: Path) -> ModelFolder:
    """Read a folder with `model.onnx` and `vocab.txt`. Raises EngineError if it has no compatible model."""
    model, vocabulary = path / "model.onnx", path / "vocab.txt"
    for file in (model, vocabulary):
        if not file.is_file():
            raise EngineError(f"embedding.model_path: {path} has no {file.name}")
    configs = [_read_json(path / name) for name in LENGTH_FILES]
    if any(config.get("do_lower_case") is False for config in configs):
        raise EngineError(f"embedding.model_path: {path} has a cased model; only uncased models are supported")
    lengths = [config[key] for config in configs for key in LENGTH_KEYS if isinstance(config.get(key), int)]
    max_tokens = min([length for length in lengths if length > 2], default=DEFAULT_MAX_TOKENS)
    with model.open("rb") as opened:
        revision = hashlib.file_digest(opened, "sha256").hexdigest()[:12]
    return ModelFolder(path, vocabulary, f"{path.name}@{revision}", max_tokens)


def read_builtin_model() -> ModelFolder:
    """Return the built-in model. Its revision is stored, to avoid hashing the file."""
    config = _read_json(BUILTIN_FOLDER / "model.json")
    name = f"{config['name']}@{config['revision']}"
    return ModelFolder(BUILTIN_FOLDER, BUILTIN_VOCABULARY, name, config["max_tokens"], config["dimensions"])


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise EngineError(f"embedding.model_path: {path} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}


class OnnxModel:
    """BERT-like model, loaded once on first use. Thread-safe."""

    def __init__(self, folder: ModelFolder) -> None:
        self.name = folder.name
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: _LoadedModel | None = None

    @cached_property
    def dimensions(self) -> int:
        """Length of a vector, as stated by the folder or the model, or measured."""
        return self._folder.dimensions or self._load().stated_dimensions or len(self.embed("dimensions"))

    def embed(self, text: str) -> Vector:
        """Return the normalized vector of one text."""
        return self._load().embed(text)

    def embed_all(self, texts: Sequence[str]) -> Vectors:
        """Return one row per text."""
        import numpy as np

        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        return np.stack([self.embed(text) for text in texts])

    def _load(self) -> _LoadedModel:
        with self._lock:
            if self._loaded is None:
                self._loaded = _LoadedModel(self._folder)
            return self._loaded


_INPUTS: Mapping[str, Callable[[Any], Any]] = {
    "input_ids": lambda ids: ids,
    "attention_mask": lambda ids: ids * 0 + 1,
    "token_type_ids": lambda ids: ids * 0,
}
"""Model inputs, computed from the token ids of one text."""


class _LoadedModel:
    """Inference session and tokenizer of a model."""

    def __init__(self, folder: ModelFolder) -> None:
        self._session = _open_session(folder.path / "model.onnx")
        self._inputs = {given.name for given in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name
        shape = self._session.get_outputs()[0].shape
        self.stated_dimensions: int = shape[-1] if shape and isinstance(shape[-1], int) else 0
        self._max_text_tokens = folder.max_tokens - 2
        if unknown := self._inputs - _INPUTS.keys():
            raise EngineError(f"embedding.model_path: the model needs unsupported inputs: {', '.join(sorted(unknown))}")
        try:
            self._tokenizer = tokens.WordPieces(folder.vocabulary.read_text("utf-8").splitlines())
            self._first, self._last = self._tokenizer.number("[CLS]"), self._tokenizer.number("[SEP]")
        except (KeyError, UnicodeDecodeError) as error:
            raise EngineError(f"embedding.model_path: {folder.vocabulary} isn't a BERT vocabulary: {error}") from error

    def embed(self, text: str) -> Vector:
        import numpy as np

        ids = np.array([[self._first, *self._tokenizer.ids(text, self._max_text_tokens), self._last]], np.int64)
        (output,) = self._session.run([self._output], {name: _INPUTS[name](ids) for name in self._inputs})
        # Some models return a vector per token; their mean represents the text.
        vector: Vector = output[0].mean(axis=0) if output.ndim == 3 else output[0]
        return vector / np.float32(math.sqrt(vector.dot(vector)) or 1)


def _open_session(path: Path) -> onnxruntime.InferenceSession:
    import onnxruntime

    onnxruntime.set_default_logger_severity(ERRORS_ONLY)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    # Every text has another length, so memory plans would never be reused.
    options.enable_mem_pattern = False
    if IS_EXACT:
        # Half as fast. Without it, 8-bit products saturate on CPUs that accumulate them in 16 bits.
        options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen exception types and no common base
        raise EngineError(f"The embedding model {path} cannot be loaded: {error}") from error


def run_embedding_job(
    job: dict[str, Any], source: int | None, output: int | None, progress: Progress
) -> dict[str, Any]:
    """Embed the texts of the source, a JSON list, with the built-in model. Runs in a sandboxed worker process.

    The output is the concatenated float32 vectors in the order of the texts.
    """
    if source is None or output is None:
        raise ValueError("every job has a source and an output")
    texts: list[str] = json.loads(os.pread(source, os.fstat(source).st_size, 0))
    vectors = memoryview(_load_builtin_model().embed_all(texts).tobytes())
    while vectors:
        vectors = vectors[os.write(output, vectors) :]
    return {"count": len(texts)}


@cache
def _load_builtin_model() -> OnnxModel:
    return OnnxModel(read_builtin_model())
