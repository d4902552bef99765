"""Checkpoints: every library's, in memory and in folders without pickles; what is changed, damaged or forged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headrace as hr
from headrace.errors import ArgumentError, ModelChanged, ModelError, ModelUnreadable, UntrustedPickle

torch = pytest.importorskip("torch")
nn = torch.nn

ROWS = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
FRAME = pd.DataFrame(ROWS, columns=list("abcd"), index=range(100, 112))
TARGET = ROWS @ np.array([1.0, -1.0, 2.0, 0.5])


class Net(nn.Module):
    """Importable, and made without arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.drop = nn.Dropout(0.5)
        self.second = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.drop(torch.relu(self.first(x))))


class Tied(nn.Module):
    """Its two layers have one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.there = nn.Linear(4, 4, bias=False)
        self.back = nn.Linear(4, 4, bias=False)
        self.back.weight = self.there.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.back(self.there(x))


def by_hand(module: Any) -> np.ndarray:
    with torch.inference_mode():
        return module.eval()(torch.from_numpy(ROWS)).numpy()


def sklearn_model() -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression()).fit(FRAME, TARGET > 0)


def xgboost_classifier() -> Any:
    import xgboost

    return xgboost.XGBClassifier(n_estimators=3).fit(ROWS, TARGET > 0)


def xgboost_booster() -> Any:
    import xgboost

    return xgboost.train({"max_depth": 2}, xgboost.DMatrix(ROWS, TARGET), 3)


def lightgbm_booster() -> Any:
    import lightgbm

    return lightgbm.train({"verbose": -1, "min_data_in_leaf": 1}, lightgbm.Dataset(ROWS, TARGET), 3)


def onnx_model() -> Any:
    from onnx import TensorProto, helper

    doubled = helper.make_node("Add", ["x", "x"], ["y"])
    shape = ["n", 4]
    graph = helper.make_graph(
        [doubled],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


MODELS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "torch": (lambda: Net(), "TorchCheckpoint", "TorchPredictor"),
    "sklearn": (sklearn_model, "SklearnCheckpoint", "SklearnPredictor"),
    "XGBClassifier": (xgboost_classifier, "XGBoostCheckpoint", "XGBoostPredictor"),
    "xgboost": (xgboost_booster, "XGBoostCheckpoint", "XGBoostPredictor"),
    "lightgbm": (lightgbm_booster, "LightGBMCheckpoint", "LightGBMPredictor"),
    "onnx": (onnx_model, "OnnxCheckpoint", "OnnxPredictor"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_folder_predicts_what_the_object_does(name: str, tmp_path: Path) -> None:
    make, kind, predictor = MODELS[name]
    checkpoint, adapter = getattr(hr, kind).from_model(make()), getattr(hr, predictor)
    assert checkpoint.path is None
    path = checkpoint.to_directory(tmp_path / "made")

    again = hr.Checkpoint.from_directory(path)
    assert type(again) is getattr(hr, kind)
    assert again.path == path == str(tmp_path / "made")
    assert sorted(each.name for each in Path(path).iterdir()) == sorted(["checkpoint.json", again.file])
    there, here = (adapter.from_checkpoint(each).predict(FRAME) for each in (again, checkpoint))
    pd.testing.assert_frame_equal(there, here)
    assert list(here.index) == list(FRAME.index)
    assert again.get_model() is not None

    moved = again.to_directory(tmp_path / "copied")
    pd.testing.assert_frame_equal(adapter.from_checkpoint(again.from_directory(moved)).predict(FRAME), here)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
def test_keras_has_a_checkpoint_too(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    expected = model(ROWS).numpy()
    path = hr.KerasCheckpoint.from_model(model).to_directory(tmp_path / "made")
    again = hr.Checkpoint.from_directory(path)
    assert type(again) is hr.KerasCheckpoint
    assert np.allclose(again.get_model()(ROWS).numpy(), expected)
    predictor = hr.BatchPredictor.from_checkpoint(path, hr.KerasPredictor)
    assert np.allclose(predictor.predict(ROWS), expected)


@pytest.mark.parametrize("name", ["torch", "sklearn", "xgboost", "onnx"])
def test_a_changed_file_is_refused_wherever_it_is_read(name: str, tmp_path: Path) -> None:
    make, kind, predictor = MODELS[name]
    path = Path(getattr(hr, kind).from_model(make()).to_directory(tmp_path / "made"))
    checkpoint = hr.Checkpoint.from_directory(path)
    adapter = getattr(hr, predictor).from_checkpoint(checkpoint)
    file = path / checkpoint.file
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    for read in (
        checkpoint.get_model,
        lambda: getattr(hr, predictor).from_checkpoint(checkpoint),
        adapter.load,
    ):
        with pytest.raises(ModelChanged):
            read()


# ---------------------------------------------------------------- PyTorch: what the weights belong to


def test_a_module_that_cannot_be_named_has_to_be_given(tmp_path: Path) -> None:
    class Hidden(Net):
        pass

    net = Hidden()
    again = hr.TorchCheckpoint.from_directory(
        hr.TorchCheckpoint.from_model(net).to_directory(tmp_path / "made")
    )
    with pytest.raises(ModelError, match=r"Hidden is defined in a script, .*get_model\(model=Net\(\)\)"):
        again.get_model()
    with pytest.raises(ModelError, match="model="):
        hr.TorchPredictor.from_checkpoint(again)
    for model in (Hidden, Net()):
        assert np.array_equal(by_hand(again.get_model(model)), by_hand(net))
        found = hr.TorchPredictor.from_checkpoint(again, model=model).predict(FRAME)
        assert np.array_equal(found["predictions"], by_hand(net)[:, 0])


def test_layers_in_a_row_have_no_class_that_makes_them(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 1))
    again = hr.TorchCheckpoint.from_directory(
        hr.TorchCheckpoint.from_model(net).to_directory(tmp_path / "made")
    )
    with pytest.raises(ModelError, match="makes a module with other weights"):
        again.get_model()


def test_arguments_of_the_class_may_be_told(tmp_path: Path) -> None:
    net = nn.Linear(4, 2)
    sizes = {"in_features": 4, "out_features": 2}
    path = hr.TorchCheckpoint.from_model(net, init_kwargs=sizes).to_directory(tmp_path / "made")
    assert np.array_equal(by_hand(hr.TorchCheckpoint.from_directory(path).get_model()), by_hand(net))
    with pytest.raises(ArgumentError, match="other weights"):
        hr.TorchCheckpoint.from_model(net, init_kwargs={**sizes, "bias": False}).to_directory(tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_weights_alone(tmp_path: Path) -> None:
    net = Net()
    bare = hr.TorchCheckpoint.from_state_dict(net.state_dict())
    for checkpoint in (bare, hr.TorchCheckpoint.from_directory(bare.to_directory(tmp_path / "made"))):
        with pytest.raises(ModelError, match="holds weights"):
            checkpoint.get_model()
        assert np.array_equal(by_hand(checkpoint.get_model(Net)), by_hand(net))
        with pytest.raises(ModelUnreadable, match="do not fit"):
            checkpoint.get_model(nn.Linear(4, 1))
    given = Net()
    before = by_hand(given)
    assert np.array_equal(
        by_hand(hr.TorchCheckpoint.from_state_dict(net.state_dict(), given).get_model()), by_hand(net)
    )
    assert np.array_equal(by_hand(given), before), "what is given is not changed"


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    net = Tied()
    path = hr.TorchCheckpoint.from_model(net).to_directory(tmp_path / "made")
    again = hr.TorchCheckpoint.from_directory(path).get_model()
    assert again.there.weight.data_ptr() == again.back.weight.data_ptr()
    assert np.array_equal(by_hand(again), by_hand(net))


@pytest.mark.parametrize("name", ["os:system", "builtins:exec", "nowhere.at.all:Net", "torch:nn"])
def test_only_modules_are_made_of_a_name_in_a_folder(name: str, tmp_path: Path) -> None:
    path = Path(hr.TorchCheckpoint.from_model(Net()).to_directory(tmp_path / "made"))
    manifest = json.loads((path / "checkpoint.json").read_text())
    manifest["architecture"] = {"class": name, "kwargs": {"command": f"touch {tmp_path / 'forged'}"}}
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    checkpoint = hr.TorchCheckpoint.from_directory(path)
    with pytest.raises(ModelUnreadable, match=r"not a torch\.nn\.Module|cannot be imported"):
        checkpoint.get_model()
    assert not (tmp_path / "forged").exists()
    assert checkpoint.get_model(Net) is not None


# ---------------------------------------------------------------- what is refused


def test_wrong_models_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"TorchCheckpoint\.from_model takes a model of torch, not int"):
        hr.TorchCheckpoint.from_model(3)
    with pytest.raises(ArgumentError, match="takes an estimator"):
        hr.SklearnCheckpoint.from_model("model.skops")
    with pytest.raises(ArgumentError, match="makes nothing"):
        hr.TorchCheckpoint(Net())
    with pytest.raises(ArgumentError, match="is for TorchPredictor"):
        hr.SklearnPredictor.from_checkpoint(hr.TorchCheckpoint.from_model(Net()))
    with pytest.raises(ArgumentError, match="takes a checkpoint, not Net"):
        hr.TorchPredictor.from_checkpoint(Net())
    with pytest.raises(ModelUnreadable, match="There is no checkpoint"):
        hr.Checkpoint.from_directory(tmp_path)
    path = hr.TorchCheckpoint.from_model(Net()).to_directory(tmp_path / "made")
    with pytest.raises(ArgumentError, match="there already"):
        hr.TorchCheckpoint.from_model(Net()).to_directory(path)
    with pytest.raises(ArgumentError, match=r"use TorchCheckpoint\.from_directory"):
        hr.SklearnCheckpoint.from_directory(path)


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../model.safetensors": "0"}},
        {"files": {}},
        {"files": None},
        {"headrace_checkpoint": 2},
        {"kind": "pickle"},
    ],
)
def test_forged_manifests_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = Path(hr.TorchCheckpoint.from_model(Net()).to_directory(tmp_path / "made"))
    manifest = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(manifest | change))
    with pytest.raises(ModelUnreadable):
        hr.Checkpoint.from_directory(path)


def test_types_that_skops_does_not_know(tmp_path: Path) -> None:
    from sklearn.preprocessing import FunctionTransformer

    model = FunctionTransformer(np.ravel).fit(ROWS)
    path = hr.SklearnCheckpoint.from_model(model).to_directory(tmp_path / "made")
    checkpoint = hr.SklearnCheckpoint.from_directory(path)
    try:
        checkpoint.get_model()
    except UntrustedPickle as error:
        assert "numpy.ravel" in str(error)
    assert checkpoint.get_model(trusted=["numpy.ravel"]) is not None
