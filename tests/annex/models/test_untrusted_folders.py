"""Folders of Hugging Face that a stranger made: pickles beside decoys, indexes, links, names of further models."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import save_file

from headrace.annex.models.transformers import TransformersPredictor
from headrace.core.files.artifacts import Artifact
from headrace.errors import ModelUnreadable, UntrustedPickle
from headrace.predictors.huggingface import loading
from headrace.predictors.sentence_transformers import SentenceTransformersPredictor
from predictors.news import TEXTS, tokenizer

MARK = "it-ran"


class Runs:
    """When it is unpickled, there is a new file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.place),)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny classifier."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(tokenizer()), max_position_embeddings=64, **sizes)
    folder = tmp_path_factory.mktemp("untrusted") / "m"
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def _decoy(folder: Path, pickle: Path) -> None:
    shutil.move(pickle, folder / "pytorch_model.bin")
    save_file({"a": torch.zeros(1)}, folder / "other.safetensors")


def _variant(folder: Path, pickle: Path) -> None:
    shutil.move(pickle, folder / "pytorch_model.bin")
    save_file({"a": torch.zeros(1)}, folder / "model.fp16.safetensors")


def _adapter_beside(folder: Path, pickle: Path) -> None:
    shutil.move(pickle, folder / "pytorch_model.bin")
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")


def _index(folder: Path, pickle: Path) -> None:
    shutil.move(pickle, folder / "pytorch_model.bin")
    index = {"metadata": {}, "weight_map": {"a": "pytorch_model.bin"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _other_name(folder: Path, pickle: Path) -> None:
    shutil.move(pickle, folder / "weights.dat")
    index = {"metadata": {}, "weight_map": {"a": "weights.dat"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _shards(folder: Path, pickle: Path) -> None:
    shutil.move(pickle, folder / "pytorch_model-00001-of-00001.bin")
    index = {"metadata": {}, "weight_map": {"a": "pytorch_model-00001-of-00001.bin"}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    save_file({"a": torch.zeros(1)}, folder / "decoy.safetensors")


def _named(folder: Path, pickle: Path) -> None:
    shutil.move(pickle, folder / "adapter_model.bin")
    save_file({"a": torch.zeros(1)}, folder / "adapter_model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_weights": "adapter_model.bin"}))


def _linked(folder: Path, pickle: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    shutil.move(pickle, elsewhere / "pytorch_model.bin")
    (folder / "1_Dense").symlink_to(elsewhere)


@pytest.mark.parametrize(
    "attack", [_decoy, _variant, _adapter_beside, _index, _other_name, _shards, _named, _linked]
)
def test_a_pickle_is_refused_whatever_lies_beside_it(
    whole: Path, tmp_path: Path, attack: Callable[[Path, Path], None]
) -> None:
    folder, mark = tmp_path / "m", tmp_path / MARK
    shutil.copytree(whole, folder)
    if attack is not _linked:
        (folder / "model.safetensors").unlink()
    torch.save({"a": Runs(mark)}, tmp_path / "pickle")
    attack(folder, tmp_path / "pickle")
    with pytest.raises(UntrustedPickle, match="is a pickle"):
        TransformersPredictor(folder)
    assert not mark.exists()


def test_a_pickle_that_comes_after_the_check_is_not_read(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "m")
    predictor = TransformersPredictor(tmp_path / "m")
    os.rename(tmp_path / "m" / "model.safetensors", tmp_path / "kept")
    torch.save(
        transformers.AutoModelForSequenceClassification.from_pretrained(whole).state_dict(),
        tmp_path / "m" / "pytorch_model.bin",
    )
    with pytest.raises(ModelUnreadable, match="cannot be loaded"):
        predictor.load()


def test_a_pickle_beside_the_safetensors_that_are_loaded_is_let_be(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "m")
    torch.save({"a": Runs(tmp_path / MARK)}, tmp_path / "m" / "pytorch_model.bin")
    predictor = TransformersPredictor(tmp_path / "m")
    predictor.load()
    assert len(predictor.predict({"text": TEXTS})["score"]) == len(TEXTS)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("shard", ["../model.safetensors", "/dev/zero", "a/../../b.safetensors"])
def test_an_index_that_names_files_outside_of_its_folder_is_refused(
    whole: Path, tmp_path: Path, shard: str
) -> None:
    shutil.copytree(whole, tmp_path / "m")
    os.rename(tmp_path / "m" / "model.safetensors", tmp_path / "model.safetensors")
    index = json.dumps({"metadata": {}, "weight_map": {"a": shard}})
    (tmp_path / "m" / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelUnreadable, match="outside of its folder"):
        TransformersPredictor(tmp_path / "m")


def test_nothing_is_fetched_while_a_model_is_loaded(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with (
        pytest.raises(ModelUnreadable, match=r"offline|local|cache"),
        loading(Artifact(str(whole))),
    ):
        huggingface_hub.HfApi(endpoint="http://127.0.0.1:9").model_info("somebody/something")
    assert huggingface_hub.constants.HF_HUB_OFFLINE is False


@pytest.mark.parametrize("kind", ["mine.Module", "subprocess.Popen", "sentence_transformers.util.os.system"])
def test_sentence_transformers_of_a_class_that_the_folder_names_are_refused(
    whole: Path, tmp_path: Path, kind: str
) -> None:
    shutil.copytree(whole, tmp_path / "m")
    (tmp_path / "m" / "mine.py").write_text(f"import os; os.mkdir({str(tmp_path / MARK)!r})")
    modules = [{"idx": 0, "name": "0", "path": "", "type": kind}]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UntrustedPickle, match="import and run code"):
        SentenceTransformersPredictor(tmp_path / "m")
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize(
    "modules",
    [[3], [{"type": 3, "path": ""}], [{"type": "sentence_transformers.models.Pooling", "path": "../x"}]],
)
def test_modules_of_sentence_transformers_that_are_none(
    whole: Path, tmp_path: Path, modules: list[Any]
) -> None:
    shutil.copytree(whole, tmp_path / "m")
    (tmp_path / "m" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelUnreadable, match="not one of sentence-transformers"):
        SentenceTransformersPredictor(tmp_path / "m")


# ---------------------------------------------------------------- without an end


def test_a_configuration_that_nests_without_end_is_no_traceback(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text("[" * 200_000)
    with pytest.raises(ModelUnreadable, match=r"no readable config\.json"):
        TransformersPredictor(tmp_path / "m")


@pytest.mark.timeout(20)
def test_a_pipe_in_the_place_of_a_configuration_is_not_waited_for(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "m")
    (tmp_path / "m" / "config.json").unlink()
    os.mkfifo(tmp_path / "m" / "config.json")
    with pytest.raises(ModelUnreadable, match=r"no readable config\.json"):
        TransformersPredictor(tmp_path / "m")


@pytest.mark.timeout(20)
@pytest.mark.parametrize("target", ["/dev/zero", "pipe"])
def test_the_digest_of_a_folder_reads_regular_files_only(whole: Path, tmp_path: Path, target: str) -> None:
    shutil.copytree(whole, tmp_path / "m")
    if target == "pipe":
        os.mkfifo(tmp_path / "m" / "more")
    else:
        (tmp_path / "m" / "more").symlink_to(target)
    with pytest.raises(ModelUnreadable, match="not a regular file"):
        Artifact(str(tmp_path / "m")).digest()


@pytest.mark.timeout(60)
def test_a_link_to_the_whole_disk_comes_to_an_end(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.core.files import artifacts

    monkeypatch.setattr(artifacts, "_MOST_FILES", 500)
    shutil.copytree(whole, tmp_path / "m")
    (tmp_path / "m" / "more").symlink_to("/usr")
    with pytest.raises(ModelUnreadable, match="more than 500 files"):
        TransformersPredictor(tmp_path / "m")
