"""An embedding model in a folder, run by onnxruntime in this process: one text at a time, on one thread.

Texts are not batched: nothing is padded, and the vector of a text does not depend
on its neighbours. More speed comes from more threads or processes, each with a text of its own.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refdesk.documents import tokens
from refdesk.engines.embedded.embedding.base import Vector, Vectors
from refdesk.errors import EngineError

if TYPE_CHECKING:
    import onnxruntime

BUILTIN_FOLDER = Path(__file__).with_name("minilm")

OWN_VOCABULARY = Path(tokens.__file__).with_name("wordpiece.txt")
"""That of the model which Refdesk carries; chunks are measured by it, too."""

DEFAULT_MAX_TOKENS = 512
"""What a BERT reads at most when its folder does not say."""

LENGTH_KEYS = ("max_tokens", "max_seq_length", "model_max_length", "max_position_embeddings")
"""Where files of a model's folder say how much it reads; the smallest holds."""

LENGTH_FILES = ("model.json", "sentence_bert_config.json", "tokenizer_config.json", "config.json")

ERRORS_ONLY = 3
"""What onnxruntime may print. Its warnings are about processors and drivers that are not here."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """What is known of a model before it is loaded."""

    path: Path
    vocabulary: Path
    name: str
    max_tokens: int
    dimensions: int = 0
    """0 where only the model itself can tell."""


def read_model_folder(path: Path) -> ModelFolder:
    """Look at a folder of `model.onnx` and `vocab.txt`; raises `EngineError` when it holds no model that fits."""
    model, vocabulary = path / "model.onnx", path / "vocab.txt"
    for file in (model, vocabulary):
        if not file.is_file():
            raise EngineError(f"embedding.model_path: {path} has no {file.name}")
    said = [_read_json(path / name) for name in LENGTH_FILES]
    if any(part.get("do_lower_case") is False for part in said):
        raise EngineError(f"embedding.model_path: {path} holds a cased model; only uncased ones are understood")
    with model.open("rb") as opened:
        revision = hashlib.file_digest(opened, "sha256").hexdigest()[:12]
    return ModelFolder(path, vocabulary, f"{path.name}@{revision}", _max_tokens(said))


def builtin_model() -> ModelFolder:
    """The model that Refdesk carries; its revision is written down, to spare reading all of it."""
    said = _read_json(BUILTIN_FOLDER / "model.json")
    name = f"{said['name']}@{said['revision']}"
    return ModelFolder(BUILTIN_FOLDER, OWN_VOCABULARY, name, said["max_tokens"], said["dimensions"])


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        said = json.loads(path.read_bytes())
    except ValueError as error:
        raise EngineError(f"embedding.model_path: {path} is not JSON: {error}") from error
    return said if isinstance(said, dict) else {}


def _max_tokens(said: Sequence[dict[str, Any]]) -> int:
    lengths = [file[key] for file in said for key in LENGTH_KEYS if isinstance(file.get(key), int)]
    return min([length for length in lengths if length > 2], default=DEFAULT_MAX_TOKENS)


class OnnxModel:
    """A BERT-like model: loaded when it is first needed, once, and used from any number of threads."""

    def __init__(self, folder: ModelFolder, *, is_exact: bool | None = None) -> None:
        """`is_exact` says whether products of bytes go the slower exact way; by itself it finds out if they have to."""
        self._folder = folder
        self._is_exact = may_overflow() if is_exact is None else is_exact
        self._lock = threading.Lock()
        self._loaded: _Loaded | None = None

    @property
    def name(self) -> str:
        return self._folder.name

    @cached_property
    def dimensions(self) -> int:
        """As the folder or the model states it; one that does not is tried."""
        return self._folder.dimensions or self._load().stated_dimensions or len(self.embed("dimensions"))

    def embed(self, text: str) -> Vector:
        """The vector of one text, of length one."""
        return self._load().embed(text)

    def embed_all(self, texts: Sequence[str]) -> Vectors:
        """A row for each text."""
        import numpy as np

        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        return np.stack([self.embed(text) for text in texts])

    def _load(self) -> _Loaded:
        if self._loaded is None:
            with self._lock:
                if self._loaded is None:
                    self._loaded = _Loaded(self._folder, self._is_exact)
        return self._loaded


_INPUTS: Mapping[str, Callable[[Any], Any]] = {
    "input_ids": lambda ids: ids,
    "attention_mask": lambda ids: ids * 0 + 1,
    "token_type_ids": lambda ids: ids * 0,
}
"""What a model may ask for, made from the numbers of one text's tokens."""


class _Loaded:
    """The session of a model and its vocabulary."""

    def __init__(self, folder: ModelFolder, is_exact: bool) -> None:
        self._session = _open_session(folder.path / "model.onnx", is_exact)
        self._inputs = {given.name for given in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name
        shape = self._session.get_outputs()[0].shape
        self.stated_dimensions: int = shape[-1] if shape and isinstance(shape[-1], int) else 0
        self._room = folder.max_tokens - 2
        if unknown := self._inputs - _INPUTS.keys():
            raise EngineError(f"embedding.model_path: the model asks for {', '.join(sorted(unknown))}, unknown here")
        try:
            self._pieces = tokens.WordPieces(folder.vocabulary.read_text("utf-8").splitlines())
            self._first, self._last = self._pieces.number("[CLS]"), self._pieces.number("[SEP]")
        except (KeyError, UnicodeDecodeError) as error:
            raise EngineError(
                f"embedding.model_path: {folder.vocabulary} is no vocabulary of a BERT: {error}"
            ) from error

    def embed(self, text: str) -> Vector:
        import numpy as np

        ids = np.array([[self._first, *self._pieces.ids(text, self._room), self._last]], np.int64)
        (output,) = self._session.run([self._output], {name: _INPUTS[name](ids) for name in self._inputs})
        # Some models answer for every token; the mean of those speaks for the text.
        vector: Vector = output[0].mean(axis=0) if output.ndim == 3 else output[0]
        return vector / np.float32(math.sqrt(vector.dot(vector)) or 1)


CPU_FACTS = Path("/proc/cpuinfo")


def may_overflow() -> bool:
    """Whether this processor's products of bytes can overflow: one of Intel's kind without the instructions for them.

    Where that cannot be told, it is taken for one that can.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        return "vnni" not in CPU_FACTS.read_text()
    except OSError:
        return True


def _open_session(path: Path, is_exact: bool) -> onnxruntime.InferenceSession:
    import onnxruntime

    onnxruntime.set_default_logger_severity(ERRORS_ONLY)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = ERRORS_ONLY
    # Every text has another length: plans made for one would only be kept and never fit again.
    options.enable_mem_pattern = False
    if is_exact:
        # Half as fast. Without it, products of bytes are cut off on processors that add them up in 16 bits.
        options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a dozen kinds and no common one of its own
        raise EngineError(f"The embedding model {path} cannot be loaded: {error}") from error
