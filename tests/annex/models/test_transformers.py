from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch
import transformers

import headrace as hr
from headrace.annex.models.transformers import TransformersPredictor, kind_of
from headrace.errors import (
    ArgumentError,
    BadInput,
    MissingLibrary,
    ModelUnreadable,
    UntrustedPickle,
)
from headrace.testing.predictors import PredictorContract
from predictors.news import TEXTS, tokenizer

LABELS = {0: "world", 1: "sports", 2: "weather"}
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert(head: str = "ForSequenceClassification") -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(tokenizer()),
        max_position_embeddings=64,
        initializer_range=0.5,
        id2label=LABELS,
        label2id={label: number for number, label in LABELS.items()},
        **SMALL,
    )
    return getattr(transformers, f"Bert{head}")(config).eval()


def gpt() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=len(tokenizer()), n_positions=64, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 2, 3, 0
    return transformers.GPT2LMHeadModel(config).eval()


def pipeline(task: str = "text-classification", model: Any = None, **options: Any) -> Any:
    return transformers.pipeline(task, model=model or bert(), tokenizer=tokenizer(**options), device="cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny models are no work for several threads, which only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transformers")
    for name, model in (("classes", bert()), ("words", bert("ForMaskedLM")), ("text", gpt())):
        model.save_pretrained(folder / name)
        tokenizer(**({"padding_side": "left"} if name == "text" else {})).save_pretrained(folder / name)
    return folder


def loaded(model: Any, **options: Any) -> TransformersPredictor:
    predictor = TransformersPredictor(model, **options)
    predictor.load()
    return predictor


def objects(values: list[Any]) -> Any:
    made = np.empty(len(values), object)
    made[:] = values
    return made


# ---------------------------------------------------------------- the mode of a model


def test_a_pipeline_in_training_mode_predicts_without_dropout_and_comes_back_as_it_was() -> None:
    given = pipeline()
    expected = [row["score"] for row in given(TEXTS.tolist(), batch_size=32)]
    given.model.train()
    given.model.bert.embeddings.eval()
    modes = [part.training for part in given.model.modules()]
    predictor = loaded(given)
    np.testing.assert_allclose(predictor.predict({"text": TEXTS})["score"], expected, atol=1e-6)
    predictor.close()
    assert [part.training for part in given.model.modules()] == modes
    rows = hr.from_items([{"text": text} for text in TEXTS]).with_options(engine="inline", progress=False)
    made = rows.predict(given, inputs=["text"]).take_all()
    np.testing.assert_allclose([row["score"] for row in made], expected, atol=1e-6)
    assert [part.training for part in given.model.modules()] == modes


# ---------------------------------------------------------------- the contract


class TestClassification(PredictorContract):
    tolerance = 1e-6  # texts are sorted, so that padding differs

    def make(self) -> Any:
        return TransformersPredictor(pipeline())

    def batch(self) -> Any:
        return {"text": TEXTS}

    def direct(self) -> Any:
        return pipeline()(TEXTS.tolist(), batch_size=32)

    def expected(self) -> Any:
        rows = self.direct()
        return {
            "label": objects([row["label"] for row in rows]),
            "score": np.array([row["score"] for row in rows]),
        }

    def bad_batches(self) -> Any:
        yield {"text": np.arange(9)}, "'text' should hold texts, but row 0 of the batch is of type int"
        yield {"text": np.array(["a"] * 8 + [None], object)}, "row 8 of the batch is a null"
        yield {"text": TEXTS, "n": np.arange(50)}, "'n' should hold texts"


class TestFolder(TestClassification):
    @pytest.fixture(autouse=True)
    def _folders(self, folders: Path) -> None:
        self.folders = folders

    def make(self) -> Any:
        return TransformersPredictor(self.folders / "classes", device="cpu")


class TestSeveralLabels(TestClassification):
    """Rounded: scores in lists are compared as they are."""

    def make(self) -> Any:
        return Rounded(pipeline(), call_kwargs={"top_k": 2})

    def expected(self) -> Any:
        rows = pipeline()(TEXTS.tolist(), batch_size=32, top_k=2)
        return {
            "label": objects([[each["label"] for each in row] for row in rows]),
            "score": objects([[round(each["score"], 4) for each in row] for row in rows]),
        }


class Rounded(TransformersPredictor):
    def predict(self, batch: Any) -> Any:
        made = super().predict(batch)
        return {**made, "score": objects([[round(score, 4) for score in row] for row in made["score"]])}


class TestGeneration(PredictorContract):
    @pytest.fixture(autouse=True)
    def _folders(self, folders: Path) -> None:
        self.folders = folders

    options: ClassVar[dict[str, Any]] = {"max_new_tokens": 5, "do_sample": False}

    def make(self) -> Any:
        return TransformersPredictor(self.folders / "text", device="cpu", call_kwargs=self.options)

    def batch(self) -> Any:
        return {"prompt": TEXTS[:12]}

    def expected(self) -> Any:
        made = pipeline("text-generation", gpt(), padding_side="left")
        rows = made(TEXTS[:12].tolist(), batch_size=4, **self.options)
        return {"generated_text": objects([row[0]["generated_text"] for row in rows])}


# ---------------------------------------------------------------- other tasks


def test_features_are_lists_of_tokens() -> None:
    made = loaded(pipeline("feature-extraction", bert("Model"))).predict({"text": TEXTS[:9]})
    direct = pipeline("feature-extraction", bert("Model"))(TEXTS[:9].tolist())
    assert made.shape == (9,)
    for row, wanted in zip(made, direct, strict=True):
        assert np.shape(row) == np.shape(wanted[0])
        assert np.allclose(row, wanted[0], atol=1e-5)


def test_entities_stay_a_list_of_dicts_per_row() -> None:
    model = bert("ForTokenClassification")
    made = loaded(pipeline("token-classification", model)).predict({"text": TEXTS[:4]})
    direct = pipeline("token-classification", model)(TEXTS[:4].tolist())
    assert [[each["word"] for each in row] for row in made] == [
        [each["word"] for each in row] for row in direct
    ]
    assert all(type(each["score"]) is float for row in made for each in row)


@pytest.mark.parametrize("rows", [1, 2])
def test_words_for_a_mask(folders: Path, rows: int) -> None:
    texts = np.array([f"{text} [MASK]" for text in TEXTS[:rows]], object)
    made = loaded(folders / "words", call_kwargs={"top_k": 3}).predict({"text": texts})
    direct = pipeline("fill-mask", bert("ForMaskedLM"))(texts.tolist(), top_k=3)
    direct = [direct] if rows == 1 else direct
    assert made["token_str"].tolist() == [[each["token_str"] for each in row] for row in direct]
    assert list(made) == ["score", "token", "token_str", "sequence"]


@pytest.mark.parametrize("rows", [1, 3])
def test_zero_shot_gives_labels_and_scores(rows: int) -> None:
    options = {"candidate_labels": ["games", "rain"]}
    model = bert()
    model.config.label2id = {"entailment": 0, "neutral": 1, "contradiction": 2}
    made = loaded(pipeline("zero-shot-classification", model), call_kwargs=options).predict(
        {"text": TEXTS[:rows]}
    )
    direct = pipeline("zero-shot-classification", model)(TEXTS[:rows].tolist(), **options)
    assert list(made) == ["labels", "scores"]
    assert made["labels"].tolist() == [row["labels"] for row in direct]


def test_several_texts_per_row_are_given_by_name() -> None:
    made = loaded(pipeline()).predict({"text": TEXTS[:5], "text_pair": TEXTS[5:10]})
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS[:5], TEXTS[5:10], strict=True)]
    direct = pipeline()(pairs)
    assert made["label"].tolist() == [row["label"] for row in direct]
    assert np.allclose(made["score"], [row["score"] for row in direct], atol=1e-6)


def test_several_sequences_are_lists(folders: Path) -> None:
    options = {"num_return_sequences": 2, "num_beams": 2, "max_new_tokens": 3, "do_sample": False}
    made = loaded(folders / "text", call_kwargs=options).predict({"text": TEXTS[:3]})
    assert [len(row) for row in made["generated_text"]] == [2, 2, 2]


def test_dtype_and_device_of_a_folder_and_of_a_pipeline(folders: Path) -> None:
    predictor = loaded(folders / "classes", dtype="bfloat16", device="cpu")
    assert predictor._loaded.model.dtype == torch.bfloat16
    made = pipeline()
    moved = loaded(made, device="meta")
    assert (moved._loaded.model.device.type, moved._loaded.device.type) == ("meta", "meta")
    assert (made.model.device.type, made.device.type) == ("cpu", "cpu")


def test_loading_is_silent_and_leaves_logging_as_it_was(
    folders: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = transformers.logging.get_verbosity()
    loaded(folders / "classes").predict({"text": TEXTS})
    assert transformers.logging.get_verbosity() == before
    assert transformers.utils.logging.is_progress_bar_enabled()
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------- folders and arguments


def test_names_of_the_hub_are_refused() -> None:
    for name in ("bert-base-uncased", "google-bert/bert-base-uncased"):
        with pytest.raises(ArgumentError, match=f"hf download {name} .*never downloads"):
            TransformersPredictor(name)
    with pytest.raises(ModelUnreadable, match="There is no model"):
        TransformersPredictor("./nope")


def test_weights_that_the_task_lacks_are_an_error(folders: Path) -> None:
    with pytest.raises(ModelUnreadable, match=r"lacks weights .* classifier"):
        loaded(folders / "words", task="text-classification")


def test_folders_with_pickled_weights_only(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "classes", tmp_path / "m")
    os.remove(tmp_path / "m" / "model.safetensors")
    with pytest.raises(ModelUnreadable, match="holds no weights"):
        TransformersPredictor(tmp_path / "m")
    torch.save(bert().state_dict(), tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(
        UntrustedPickle,
        match=r"pytorch_model.bin is a pickle.*writes safetensors\..*hr.load_model\((?!.*bin).*trust_pickle=True\)",
    ):
        TransformersPredictor(tmp_path / "m")
    made = loaded(tmp_path / "m", trust_pickle=True).predict({"text": TEXTS})
    assert np.allclose(made["score"], loaded(folders / "classes").predict({"text": TEXTS})["score"])


def test_weights_that_are_cut_off(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "classes", tmp_path / "m")
    weights = tmp_path / "m" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(ModelUnreadable, match=r"cannot be loaded: .*Download or save it again"):
        loaded(tmp_path / "m")


@pytest.mark.parametrize("content", ["", "{", "3"])
def test_a_config_that_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelUnreadable, match=r"no readable config.json"):
        TransformersPredictor(tmp_path)


def test_code_of_its_own_is_not_run(folders: Path, tmp_path: Path) -> None:
    shutil.copytree(folders / "classes", tmp_path / "m")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m" / "mine.py").write_text("raise SystemExit('this code ran')")
    with pytest.raises(ModelUnreadable, match="trust_remote_code=True"):
        loaded(tmp_path / "m")


def test_the_task_is_read_from_the_folder(folders: Path, tmp_path: Path) -> None:
    tasks = {"classes": "text-classification", "words": "fill-mask", "text": "text-generation"}
    assert {name: TransformersPredictor(folders / name)._task for name in tasks} == tasks
    shutil.copytree(folders / "classes", tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text('{"architectures": ["BertForChess"]}')
    with pytest.raises(ArgumentError, match=r"set task=: hr\.load_model\('.*m', task='text-"):
        TransformersPredictor(tmp_path / "m")


def test_a_task_that_there_is_not(folders: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"'text-clasification' is none .* Did you mean 'text-classification'\?"
    ):
        loaded(folders / "classes", task="text-clasification")
    with pytest.raises(ArgumentError, match="not 3"):
        TransformersPredictor(folders / "classes", task=3)  # type: ignore[arg-type]


def test_arguments_of_the_wrong_kind_are_refused() -> None:
    for options in (
        {"batch_size": 0},
        {"dtype": "int8"},
        {"call_kwargs": "top_k"},
        {"task": "ner"},
        {"sha256": "a"},
    ):
        with pytest.raises(ArgumentError):
            TransformersPredictor(pipeline(), **options)
    with pytest.raises(ArgumentError, match=r"not BertForSequenceClassification. Make one of it"):
        TransformersPredictor(bert())
    with pytest.raises(ArgumentError, match="not int"):
        TransformersPredictor(3)


def test_a_missing_library_is_named(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLibrary, match=r"needs transformers.*\.\[transformers\]"):
        TransformersPredictor(folders / "classes")


def test_identity_is_the_weights_and_the_options() -> None:
    from headrace.plan.fingerprint import fingerprint

    made = pipeline()
    before = fingerprint(TransformersPredictor(made).identity())
    assert fingerprint(TransformersPredictor(made, batch_size=4).identity()) == before
    assert fingerprint(TransformersPredictor(made, call_kwargs={"top_k": 2}).identity()) != before
    with torch.no_grad():
        made.model.classifier.bias += 1
    assert fingerprint(TransformersPredictor(made).identity()) != before


def test_kinds_are_found_by_content(folders: Path, tmp_path: Path) -> None:
    assert kind_of(str(folders / "classes")) == "transformers"
    assert kind_of(str(tmp_path)) is None
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert kind_of(str(tmp_path)) is None
    assert kind_of(str(tmp_path / "config.json")) is None


def test_bad_texts_say_what_was_given() -> None:
    with pytest.raises(BadInput, match=r"given text: text \(50,\), n: int64 \(50,\)"):
        loaded(pipeline()).predict({"text": TEXTS, "n": np.arange(50)})
