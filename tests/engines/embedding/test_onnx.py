"""A model in a folder: the one that Refdesk carries, and any other."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from refdesk.engines.embedded.embedding.onnx import BUILTIN_FOLDER, OnnxModel, read_builtin_model, read_model_folder
from refdesk.errors import EngineError

HERE = Path(__file__).parent
TINY = HERE / "tiny"
"""A model of six words and three dimensions, which answers for every token and reads four of them at most."""

ORIGINAL = json.loads((HERE / "original.json").read_text())
"""Texts with the vectors that the model has for them before its weights are rounded."""


@pytest.fixture(scope="module")
def model() -> OnnxModel:
    return OnnxModel(read_builtin_model())


@pytest.mark.parametrize("original", ORIGINAL, ids=lambda original: original["text"][:20])
def test_the_rounded_model_means_what_the_original_means(model: OnnxModel, original: dict[str, str]) -> None:
    expected = np.frombuffer(base64.b64decode(original["vector"]), "<f4")
    assert float(model.embed(original["text"]) @ expected) > 0.985


def test_a_question_lies_closer_to_its_answer_than_to_something_else(model: OnnxModel) -> None:
    question, answer, other = model.embed_all(
        ["How do I speed up a slow query?", "An index makes SELECT statements faster.", "The cat sleeps on the sofa."]
    )
    assert question @ answer > question @ other + 0.2


def test_vectors_are_of_length_one_whatever_the_text(model: OnnxModel) -> None:
    vectors = model.embed_all(["", " ", "word", "long " * 5_000, "日本語", "\x00\ud800"])
    assert vectors.shape == (6, model.dimensions)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)


def test_no_texts_are_no_rows(model: OnnxModel) -> None:
    assert model.embed_all([]).shape == (0, model.dimensions)


def test_what_is_beyond_the_models_reach_changes_nothing(model: OnnxModel) -> None:
    assert (model.embed("word " * 254) == model.embed("word " * 254 + "and then some")).all()
    assert (model.embed("word " * 253) != model.embed("word " * 253 + "and")).any()


def test_many_threads_share_one_model_that_is_loaded_once() -> None:
    fresh, texts = OnnxModel(read_builtin_model()), [f"text number {number}" for number in range(16)]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(fresh.embed, texts))
        loaded = {id(session) for session in threads.map(lambda _: fresh._load(), range(4))}
    assert len(loaded) == 1
    assert (np.stack(found) == fresh.embed_all(texts)).all()


def test_the_name_holds_the_revision_of_the_very_file() -> None:
    digest = hashlib.sha256((BUILTIN_FOLDER / "model.onnx").read_bytes()).hexdigest()
    assert read_builtin_model().name == f"all-MiniLM-L6-v2@{digest[:12]}"


def test_a_model_that_answers_for_every_token_is_averaged() -> None:
    tiny = OnnxModel(read_model_folder(TINY))
    # [CLS], a and [SEP] are one of the three axes each.
    assert tiny.dimensions == 3
    assert tiny.embed("a") == pytest.approx(np.full(3, 3**-0.5), abs=1e-6)


def test_a_folder_says_how_much_its_model_reads() -> None:
    tiny = OnnxModel(read_model_folder(TINY))
    assert (tiny.embed("a b") == tiny.embed("a b b b b")).all()
    assert (tiny.embed("a b") != tiny.embed("a")).any()


def test_another_file_is_another_name(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny/model.onnx").write_bytes(b"another")
    assert read_model_folder(tmp_path / "tiny").name != read_model_folder(TINY).name


@pytest.mark.parametrize("missing", ["model.onnx", "vocab.txt"])
def test_a_folder_without_a_model_is_refused_by_name(tmp_path: Path, missing: str) -> None:
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny" / missing).unlink()
    with pytest.raises(EngineError, match=f"has no {missing}"):
        read_model_folder(tmp_path / "tiny")


def test_a_cased_model_is_refused(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny/tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(EngineError, match="cased"):
        read_model_folder(tmp_path / "tiny")


def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny/model.onnx").write_bytes(b"not a model")
    with pytest.raises(EngineError, match="cannot be loaded"):
        OnnxModel(read_model_folder(tmp_path / "tiny")).embed("a")


def test_a_vocabulary_without_the_marks_is_told(tmp_path: Path) -> None:
    shutil.copytree(TINY, tmp_path / "tiny")
    (tmp_path / "tiny/vocab.txt").write_text("a\nb\n")
    with pytest.raises(EngineError, match=r"vocab\.txt"):
        OnnxModel(read_model_folder(tmp_path / "tiny")).embed("a")


def test_nothing_is_printed_and_nothing_loaded_before_it_is_needed() -> None:
    script = (
        "import sys, refdesk.engines.embedded.embedding.onnx as onnx; assert 'onnxruntime' not in sys.modules;"
        "onnx.OnnxModel(onnx.read_builtin_model()).embed('a'); assert 'onnxruntime' in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
