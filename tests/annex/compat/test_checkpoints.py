"""Ray AIR's checkpoints, of every library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headrace as hr
from headrace.compat.air import checkpoint as checkpoints
from headrace.compat.air.batch_predictor import BatchPredictor
from headrace.compat.air.checkpoint import TorchCheckpoint
from headrace.errors import ArgumentError, HeadraceError, ModelError, ModelUnreadable, NotOffered
from later import needs_tensorflow

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


MODELS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "torch": (lambda: Net(), "TorchCheckpoint", "TorchPredictor"),
    "sklearn": (sklearn_model, "SklearnCheckpoint", "SklearnPredictor"),
    "XGBClassifier": (xgboost_classifier, "XGBoostCheckpoint", "XGBoostPredictor"),
    "xgboost": (xgboost_booster, "XGBoostCheckpoint", "XGBoostPredictor"),
    "lightgbm": (lightgbm_booster, "LightGBMCheckpoint", "LightGBMPredictor"),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_holds_the_model_and_predicts_with_it(name: str) -> None:
    make, kind, predictor = MODELS[name]
    model = make()
    checkpoint, adapter = getattr(checkpoints, kind).from_model(model), getattr(hr, predictor)
    assert checkpoint.get_model() is model
    made = adapter.from_checkpoint(checkpoint).predict(FRAME)
    assert list(made.index) == list(FRAME.index)
    pd.testing.assert_frame_equal(made, adapter(model).predict(FRAME))


@needs_tensorflow
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # Keras's own
def test_keras_has_a_checkpoint_too() -> None:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    expected = model(ROWS).numpy()
    predictor = BatchPredictor.from_checkpoint(
        checkpoints.KerasCheckpoint.from_model(model), hr.KerasPredictor, model_definition=None
    )
    assert np.allclose(np.stack(predictor.predict(FRAME)["predictions"]), expected)


# ---------------------------------------------------------------- PyTorch: what the weights belong to


def test_weights_alone() -> None:
    net = Net()
    bare = TorchCheckpoint.from_state_dict(net.state_dict())
    with pytest.raises(ModelError, match="holds weights"):
        bare.get_model()
    with pytest.raises(ModelError, match="model="):
        hr.TorchPredictor.from_checkpoint(bare)
    for model in (Net, Net()):
        assert np.array_equal(by_hand(bare.get_model(model)), by_hand(net))
        found = hr.TorchPredictor.from_checkpoint(bare, model=model).predict(FRAME)
        assert np.array_equal(found["predictions"], by_hand(net)[:, 0])
    with pytest.raises(ModelUnreadable, match="do not fit"):
        bare.get_model(nn.Linear(4, 1))
    given = Net()
    before = by_hand(given)
    filled = TorchCheckpoint.from_state_dict(net.state_dict(), given).get_model()
    assert np.array_equal(by_hand(filled), by_hand(net))
    assert np.array_equal(by_hand(given), before), "what is given is not changed"


# ---------------------------------------------------------------- what is refused


def test_wrong_models() -> None:
    with pytest.raises(ArgumentError, match=r"TorchCheckpoint\.from_model takes a model of torch, not int"):
        TorchCheckpoint.from_model(3)
    with pytest.raises(ArgumentError, match="takes an estimator"):
        checkpoints.SklearnCheckpoint.from_model("model.skops")
    with pytest.raises(ArgumentError, match="makes nothing"):
        TorchCheckpoint(Net())
    with pytest.raises(ArgumentError, match="is for TorchPredictor"):
        hr.SklearnPredictor.from_checkpoint(TorchCheckpoint.from_model(Net()))
    with pytest.raises(ArgumentError, match="takes a checkpoint, not Net"):
        hr.TorchPredictor.from_checkpoint(Net())
    with pytest.raises(ArgumentError, match="cannot know the library"):
        checkpoints.Checkpoint.from_model(Net())
    with pytest.raises(HeadraceError, match=r"library's own format.*predictor"):
        TorchCheckpoint.from_model(Net(), path="folder")
    with pytest.raises(NotOffered, match=r"library's own format.*predictor"):
        TorchCheckpoint.from_directory("folder")
    for kind in (dict, 3, nn.Linear):
        with pytest.raises(ArgumentError, match="not a predictor class"):
            BatchPredictor.from_checkpoint(None, kind)
    with pytest.raises(ArgumentError, match="takes a checkpoint such as"):
        BatchPredictor.from_checkpoint("folder", hr.TorchPredictor)


@pytest.mark.parametrize(
    "name", ["BatchPredictor", "Checkpoint", "TorchCheckpoint", "KerasCheckpoint", "OnnxCheckpoint"]
)
def test_names_that_headrace_had_say_where_they_are(name: str) -> None:
    with pytest.raises(NotOffered, match=rf"no {name}: .*dataset\.predict"):
        getattr(hr, name)
