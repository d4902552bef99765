"""Preprocessors that a checkpoint holds: of scikit-learn, of Ray's kind, and functions; applied once, always."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import headrace as hr
from headrace.compat.ray.air import Checkpoint
from headrace.compat.ray.data.preprocessors import BatchMapper, Chain, TorchVisionPreprocessor
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.compat.ray.train.predictor import Predictor
from headrace.compat.ray.train.torch import TorchCheckpoint
from headrace.errors import ArgumentError, HeadraceError, NotOffered, StepError

torch = pytest.importorskip("torch")
FRAME = pd.DataFrame({"A": [1.0, 2.0, 3.0], "B": [10.0, 20.0, 60.0], "id": list("xyz")}, index=[7, 8, 9])


def net() -> Any:
    made = torch.nn.Linear(2, 1)
    with torch.no_grad():
        made.weight.copy_(torch.tensor([[1.0, 100.0]]))
        made.bias.zero_()
    return made


class Halves:
    """As Ray's preprocessors are; it writes to what it gets."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def transform_batch(self, batch: Any) -> Any:
        batch["A"] = batch["A"] / 2
        batch["B"] = batch["B"] / 2
        return batch


class ArrayHalves(Halves):
    @classmethod
    def preferred_batch_format(cls) -> str:
        return "numpy"

    def transform_batch(self, batch: Any) -> Any:
        assert isinstance(batch, dict)
        batch["A"] /= 2
        batch["B"] /= 2
        return batch


def halves(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(A=frame["A"] / 2, B=frame["B"] / 2)


def scaler() -> Any:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    made = preprocessing.MaxAbsScaler().fit(FRAME[["A", "B"]])
    made.scale_ = np.array([2.0, 2.0])
    return made


HALVES: dict[str, Any] = {
    "function": lambda: halves,
    "transform_batch": Halves,
    "arrays": ArrayHalves,
    "scikit-learn": scaler,
    "BatchMapper": lambda: BatchMapper(halves, batch_format="pandas"),
    "Chain": lambda: Chain(
        BatchMapper(lambda b: {**b, "A": b["A"] / 2}, batch_format="numpy"), lambda f: f.assign(B=f["B"] / 2)
    ),
}
WANTED = [0.5 + 500, 1 + 1000, 1.5 + 3000]


@pytest.mark.parametrize("name", HALVES)
def test_the_data_pass_through_it(name: str) -> None:
    checkpoint = TorchCheckpoint.from_model(net(), preprocessor=HALVES[name]())
    predictor = BatchPredictor.from_checkpoint(checkpoint, hr.TorchPredictor)
    before = FRAME.copy()
    options: Any = {"feature_columns": ["A", "B"], "dtype": torch.float32, "batch_size": 2}
    made = predictor.predict(FRAME, keep_columns=["id", "A"], **options)
    assert list(made.columns) == ["id", "A", "predictions"] and list(made.index) == [7, 8, 9]
    assert made["predictions"].tolist() == WANTED and made["id"].tolist() == list("xyz")
    assert made["A"].tolist() == [0.5, 1, 1.5], "of what the preprocessor gives, as in Ray AIR"
    pd.testing.assert_frame_equal(FRAME, before)
    lazy = predictor.predict(hr.from_pandas(FRAME), keep_columns="id", **options)
    assert [row["predictions"] for row in lazy.take_all()] == WANTED
    empty = predictor.predict(FRAME[:0], keep_columns=["id"], **options)
    assert (len(empty), list(empty.columns)) == (0, ["id", "predictions"])
    alone = hr.TorchPredictor.from_checkpoint(checkpoint, input_dtype="float32")
    assert alone.predict(FRAME[["A", "B"]])["predictions"].tolist() == WANTED
    with pytest.raises(ArgumentError, match="has a preprocessor, which predict would leave out"):
        hr.from_pandas(FRAME).predict(alone, inputs=["A", "B"])


def test_new_columns_and_other_preprocessors() -> None:
    checkpoint = TorchCheckpoint.from_model(
        torch.nn.Identity(), preprocessor=lambda f: pd.DataFrame({"sum": f["A"] + f["B"]})
    )
    predictor = BatchPredictor.from_checkpoint(checkpoint, hr.TorchPredictor)
    assert predictor.predict(FRAME)["predictions"].tolist() == [11, 22, 63]
    with pytest.raises(HeadraceError, match=r"'id'.*sum|sum.*'id'"):
        predictor.predict(FRAME, keep_columns=["id"])
    predictor.set_preprocessor(lambda f: pd.DataFrame({"sum": f["A"]}))
    assert predictor.predict(FRAME)["predictions"].tolist() == [1, 2, 3]
    predictor.set_preprocessor(None)
    assert predictor.get_preprocessor() is None
    assert predictor.predict(FRAME, feature_columns="B")["predictions"].tolist() == [10, 20, 60]
    checkpoint.set_preprocessor(None)
    assert checkpoint.get_preprocessor() is None


def test_workers_prepare_too_and_a_stage_of_its_own_for_gpus() -> None:
    checkpoint = TorchCheckpoint.from_model(net(), preprocessor=halves)
    predictor = BatchPredictor.from_checkpoint(checkpoint, hr.TorchPredictor)
    made = predictor.predict(
        FRAME, feature_columns=["A", "B"], dtype=torch.float32, min_scoring_workers=2, max_scoring_workers=2
    )
    assert made["predictions"].tolist() == WANTED
    lazy = predictor.predict(hr.from_pandas(FRAME), num_gpus_per_worker=1)
    needs = [need.num_gpus or None for step in lazy._plan.steps for need in step.needs()]
    assert needs == [None, 1]


def test_a_preprocessor_of_ray_itself() -> None:
    """It prefers tables of Arrow, and says so by another word."""
    preprocessors = pytest.importorskip("ray.data.preprocessors")
    scaled = preprocessors.StandardScaler(["A", "B"])
    scaled.stats_ = {"mean(A)": 0.0, "std(A)": 2.0, "mean(B)": 0.0, "std(B)": 2.0}
    scaled._fitted = True
    checkpoint = TorchCheckpoint.from_model(net(), preprocessor=scaled)
    predictor = BatchPredictor.from_checkpoint(checkpoint, hr.TorchPredictor)
    made = predictor.predict(FRAME, feature_columns=["A", "B"], keep_columns=["id"], dtype=torch.float32)
    assert made["predictions"].tolist() == WANTED and made["id"].tolist() == list("xyz")


# ---------------------------------------------------------------- predictors of one's own


class Own(Predictor):
    """Made as Ray AIR's pages do it: its base applies the checkpoint's preprocessor."""

    def __init__(self, factor: float, preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self.factor = factor

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, **kwargs: Any) -> Own:
        return cls(checkpoint.to_dict()["factor"], preprocessor=checkpoint.get_preprocessor())

    def _predict_pandas(self, data: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"predictions": data["A"] * self.factor})


def test_a_class_of_ones_own_is_prepared_once() -> None:
    checkpoint = Checkpoint.from_dict({"factor": 10})
    checkpoint.set_preprocessor(halves)
    assert BatchPredictor.from_checkpoint(checkpoint, Own).predict(FRAME)["predictions"].tolist() == [
        5,
        10,
        15,
    ]
    alone = Own.from_checkpoint(checkpoint)
    assert alone.get_preprocessor() is halves
    assert alone.predict(FRAME)["predictions"].tolist() == [5, 10, 15]
    udf = BatchPredictor.from_pandas_udf(lambda frame: frame["A"])
    udf.set_preprocessor(halves)
    assert udf.predict(FRAME)["predictions"].tolist() == [0.5, 1, 1.5]


def test_a_class_derived_from_ours_is_refused_as_its_methods_would_not_be_called() -> None:
    class Doubling(hr.TorchPredictor):
        def call_model(self, inputs: Any) -> Any:
            return 2 * inputs

    with pytest.raises(ArgumentError, match=r"Doubling derives from TorchPredictor, .*\(call_model, …\)"):
        BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(net()), Doubling)


def test_images_by_torchvisions_transforms() -> None:
    def to_tensor(image: Any) -> Any:
        if not isinstance(image, np.ndarray):
            raise TypeError("an array, please")
        return torch.from_numpy(image.copy()).permute(2, 0, 1)

    images = np.arange(2 * 4 * 3 * 3, dtype=np.float32).reshape(2, 4, 3, 3)
    each = TorchVisionPreprocessor(columns=["image"], transform=to_tensor)
    checkpoint = TorchCheckpoint.from_model(torch.nn.Flatten(), preprocessor=each)
    data = hr.from_items([{"image": image, "id": n} for n, image in enumerate(images)])
    predicted = BatchPredictor.from_checkpoint(checkpoint, hr.TorchPredictor).predict(
        data, feature_columns=["image"], keep_columns=["id"]
    )
    rows = predicted.take_all()
    assert np.array_equal(
        np.stack([row["predictions"] for row in rows]), images.transpose(0, 3, 1, 2).reshape(2, -1)
    )
    whole = TorchVisionPreprocessor(["image"], lambda x: x / 2, output_columns=["half"], batched=True)
    batch = data.map_batches(lambda b: b).take_batch(2)
    assert np.array_equal(whole.fit_transform(data).take_batch(2)["half"], batch["image"] / 2)
    cut = TorchVisionPreprocessor(["image"], lambda x: x[: int(x[0, 0, 0]) // 36 + 1])
    assert [image.shape[0] for image in cut.transform_batch(batch)["image"]] == [1, 2]
    with pytest.raises(StepError, match="the data have image, id"):
        TorchVisionPreprocessor(["photo"], to_tensor).transform(data).take(1)


# ---------------------------------------------------------------- what is wrong


def test_what_cannot_prepare() -> None:
    for wrong, words in ((3, "transform_batch"), (Halves, r"is a class: give an object of it, Halves\(…\)")):
        with pytest.raises(ArgumentError, match=words):
            TorchCheckpoint.from_model(net(), preprocessor=wrong)
        with pytest.raises(ArgumentError, match=words):
            BatchPredictor.from_pandas_udf(len).set_preprocessor(wrong)
    udf = BatchPredictor.from_pandas_udf(lambda frame: frame["A"])
    udf.set_preprocessor(lambda frame: frame["A"].to_numpy())
    with pytest.raises(StepError, match="returned ndarray: it has to return a DataFrame"):
        udf.predict(FRAME)
    udf.set_preprocessor(scaler())
    with pytest.raises(StepError, match="fitted to the columns A, B, and the data have no B"):
        udf.predict(FRAME[["A"]])
    with pytest.raises(NotOffered, match=r"QuantileTransformer is not offered.*scikit-learn"):
        from headrace.compat.ray.data import preprocessors

        _ = preprocessors.QuantileTransformer
