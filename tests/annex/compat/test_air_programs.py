"""Programs as users of Ray AIR (2.0 to 2.6) wrote them around BatchPredictor: only the imports differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import headrace as hr
from headrace.compat import ray
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.compat.ray.train.predictor import Predictor
from headrace.compat.ray.train.torch import TorchCheckpoint
from headrace.errors import ArgumentError, NotOffered, StepError, UnknownArgument

torch = pytest.importorskip("torch")
nn = torch.nn

FRAME = pd.DataFrame({"feature_1": [1, 2, 3], "label": [1, 5, 3]}, index=["a", "b", "c"])


def plain(made: Any) -> list[Any]:
    """Return the predictions of a frame or a dataset as a list."""
    if isinstance(made, pd.DataFrame):
        return np.stack(made["predictions"].to_list()).tolist()
    return [np.asarray(row["predictions"]).tolist() for row in made.take_all()]


# ---------------------------------------------------------------- functions of DataFrames

RETURNED: dict[str, tuple[Any, list[Any]]] = {
    "(n,)": (lambda df: df["feature_1"].to_numpy() * 2, [2, 4, 6]),
    "(n, 1)": (lambda df: df[["feature_1"]].to_numpy() * 2, [2, 4, 6]),
    "(n, k)": (lambda df: df[["feature_1"] * 2].to_numpy(), [[1, 1], [2, 2], [3, 3]]),
    "a Series": (lambda df: df["feature_1"] * 2, [2, 4, 6]),
    "a list": (lambda df: [2, 4, 6], [2, 4, 6]),
    "a tensor": (lambda df: torch.tensor(df["feature_1"].to_numpy() * 2), [2, 4, 6]),
    "a DataFrame": (lambda df: pd.DataFrame({"predictions": df["feature_1"] * 2}), [2, 4, 6]),
}


@pytest.mark.parametrize("keep", [None, ["label"]])
@pytest.mark.parametrize("returned", RETURNED)
def test_a_function_may_return_arrays(returned: str, keep: Any) -> None:
    function, wanted = RETURNED[returned]
    predictor = BatchPredictor.from_pandas_udf(function)
    made = predictor.predict(FRAME, feature_columns=["feature_1"], keep_columns=keep)
    assert plain(made) == wanted
    assert list(made.columns) == [*(keep or []), "predictions"]
    pd.testing.assert_index_equal(made.index, FRAME.index)
    lazy = predictor.predict(hr.from_pandas(FRAME), feature_columns=["feature_1"], keep_columns=keep)
    assert plain(lazy) == wanted and lazy.columns() == [*(keep or []), "predictions"]


@pytest.mark.parametrize("keep", [None, ["label"]])
def test_the_column_has_the_name_that_was_asked_for(keep: Any) -> None:
    named = {"predict_batch_kwargs": {"output_column_name": "my_preds"}}
    columns = [*(keep or []), "my_preds"]
    once = BatchPredictor.from_pandas_udf(lambda df: df["feature_1"].to_numpy(), **named)
    assert list(once.predict(FRAME, keep_columns=keep).columns) == columns
    each = BatchPredictor.from_pandas_udf(lambda df: df["feature_1"].to_numpy())
    assert list(each.predict(FRAME, keep_columns=keep, **named).columns) == columns
    assert list(each.predict(FRAME, keep_columns=keep, output_column_name="my_preds").columns) == columns
    assert list(once.predict(FRAME, output_column_name="other").columns) == ["other"]
    net = TorchCheckpoint.from_model(nn.Linear(1, 1))
    model = BatchPredictor.from_checkpoint(net, hr.TorchPredictor)
    made = model.predict(
        FRAME, feature_columns=["feature_1"], keep_columns=keep, output_column_name="my_preds"
    )
    assert list(made.columns) == columns


def test_arguments_of_a_function_come_by_name_too() -> None:
    predictor = BatchPredictor.from_pandas_udf(lambda df, by=1: df["feature_1"] * by)
    assert plain(predictor.predict(FRAME, by=3)) == [3, 6, 9]
    assert plain(predictor.predict(FRAME, predict_batch_kwargs={"by": 4})) == [4, 8, 12]
    with pytest.raises(UnknownArgument, match=r"no argument 'bye'.*Did you mean 'by'"):
        predictor.predict(FRAME, bye=3)
    with pytest.raises(ArgumentError, match="takes a dict"):
        BatchPredictor.from_pandas_udf(len, predict_batch_kwargs=["x"])


@pytest.mark.parametrize("keep", [None, ["label"]])
def test_a_function_that_names_its_column_is_told_the_name(keep: Any) -> None:
    def named(df: pd.DataFrame, output_column_name: str = "p") -> pd.DataFrame:
        return pd.DataFrame({output_column_name: df["feature_1"]})

    def needs(df: pd.DataFrame, *, output_column_name: str) -> pd.DataFrame:
        return named(df, output_column_name)

    options = {"output_column_name": "score"}
    for function, default in ((named, "p"), (needs, "predictions")):
        predictor = BatchPredictor.from_pandas_udf(function)
        for column, more in ((default, {}), ("score", options)):
            made = predictor.predict(FRAME, keep_columns=keep, predict_batch_kwargs=more)
            assert list(made.columns) == [*(keep or ()), column]
        assert "score" in predictor.predict(FRAME, keep_columns=keep, **options).columns
        always = BatchPredictor.from_pandas_udf(function, predict_batch_kwargs=options)
        assert "score" in always.predict(FRAME, keep_columns=keep).columns


def test_an_error_in_a_function_names_the_function() -> None:
    def broken(df: pd.DataFrame) -> Any:
        return df["nothing"]

    with pytest.raises(StepError, match=r"broken\) raised KeyError: 'nothing'") as caught:
        BatchPredictor.from_pandas_udf(broken).predict(FRAME)
    assert "batch_predictor.py" not in str(caught.value.__cause__)
    with pytest.raises(StepError, match="returned None"):
        BatchPredictor.from_pandas_udf(lambda df: None).predict(FRAME)


def test_accuracy_over_a_dataset() -> None:
    predictor = BatchPredictor.from_pandas_udf(lambda data: pd.DataFrame({"predictions": data["feature_1"]}))
    predictions = predictor.predict(
        ray.data.from_pandas(FRAME), feature_columns=["feature_1"], keep_columns=["label"]
    )
    correct = predictions.map_batches(lambda df: pd.DataFrame({"correct": df["predictions"] == df["label"]}))
    assert correct.sum(on="correct") / correct.count() == pytest.approx(2 / 3)


# ---------------------------------------------------------------- PyTorch


class ByName(nn.Module):
    """The module of Ray's documentation: its input is a dict of columns (n, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(1, 1), nn.Linear(1, 1)
        for layer, weight in ((self.a, 1.0), (self.b, 10.0)):
            nn.init.constant_(layer.weight, weight)
            nn.init.zeros_(layer.bias)

    def forward(self, input_dict):  # type: ignore[no-untyped-def]
        return self.a(input_dict["A"]) + self.b(input_dict["B"])


class Annotated(ByName):
    def forward(self, columns: dict[str, torch.Tensor]) -> torch.Tensor:
        assert isinstance(columns, dict)
        return self.a(columns["A"]) + self.b(columns["B"])


class Items(ByName):
    def forward(self, given):  # type: ignore[no-untyped-def]
        return torch.cat([value for _, value in sorted(given.items())], 1).sum(1)


class Looping(ByName):
    names = ("distance", "hour")

    def forward(self, given):  # type: ignore[no-untyped-def]
        return sum(given[name] for name in self.names)


class Failing(ByName):
    def forward(self, given):  # type: ignore[no-untyped-def]
        return self.a(given["A"]) + given["C"]


PAIRS = pd.DataFrame({"A": [1, 2, 3, 4], "B": [5, 6, 7, 8], "id": list("wxyz")})


@pytest.mark.parametrize(("module", "b"), [(ByName, 10), (Annotated, 10), (Items, 1)])
@pytest.mark.parametrize("form", ["frame", "dataset"])
def test_a_module_whose_forward_takes_a_dict_of_columns(module: Any, b: int, form: str) -> None:
    checkpoint = TorchCheckpoint.from_model(module())
    predictor = BatchPredictor.from_checkpoint(checkpoint, hr.TorchPredictor)
    data: Any = hr.from_pandas(PAIRS) if form == "dataset" else PAIRS
    made = predictor.predict(
        data, feature_columns=["A", "B"], keep_columns=["id"], batch_size=3, dtype=torch.float32
    )
    assert plain(made) == [1 + 5 * b, 2 + 6 * b, 3 + 7 * b, 4 + 8 * b]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_a_module_that_looks_its_columns_up_by_longer_names() -> None:
    rides = PAIRS.rename(columns={"A": "distance", "B": "hour"})[["distance", "hour"]]
    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(Looping()), hr.TorchPredictor)
    assert plain(predictor.predict(rides)) == [6, 8, 10, 12]
    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(Looping()), hr.TorchPredictor)
    assert plain(predictor.predict(hr.from_pandas(rides), batch_size=1)) == [6, 8, 10, 12]
    with pytest.raises(StepError, match="too many indices"):
        predictor.predict(PAIRS[["A", "B"]])


def test_a_module_with_a_dict_that_fails_tells_its_own_error() -> None:
    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(Failing()), hr.TorchPredictor)
    with pytest.raises(StepError, match=r"raised KeyError: 'C'\. The columns that it gets are A, B\."):
        predictor.predict(PAIRS, feature_columns=["A", "B"], dtype=torch.float32)


def test_the_dtype_of_a_call_is_that_of_the_inputs() -> None:
    class Dtypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, columns: dict[str, torch.Tensor]) -> Any:
            names = torch.float32, torch.float64, torch.int64, torch.bfloat16
            return {k: torch.full((len(v),), float(names.index(v.dtype))) for k, v in columns.items()}

    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(Dtypes()), hr.TorchPredictor)

    def seen(**options: Any) -> list[float]:
        return [
            float(x) for x in predictor.predict(PAIRS, feature_columns=["A", "B"], **options).iloc[0].tolist()
        ]

    assert seen() == [2, 2]
    assert seen(dtype=torch.float32) == [0, 0]
    assert seen(dtype="float64") == [1, 1]
    assert seen(dtype=torch.bfloat16) == [3, 3]
    assert seen(dtype={"A": torch.float64}) == [1, 2]
    assert seen(predict_batch_kwargs={"dtype": {"B": torch.float32}}) == [2, 0]
    with pytest.raises(ArgumentError, match="input_dtype= is one of"):
        seen(dtype="float31")


def test_integers_side_by_side_and_alone() -> None:
    net = nn.Linear(2, 1)
    nn.init.ones_(net.weight), nn.init.zeros_(net.bias)
    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(net), hr.TorchPredictor)
    assert plain(predictor.predict(PAIRS, feature_columns=["A", "B"], dtype=torch.float)) == [6, 8, 10, 12]
    with pytest.raises(StepError, match="with values that do not fit"):
        predictor.predict(pd.DataFrame({"x": [0.5]}), dtype=torch.int64)


def test_the_article_in_one_go(tmp_path: Any) -> None:
    """Read, predict with workers, keep columns, write."""
    PAIRS.to_csv(tmp_path / "pairs.csv", index=False)
    dataset = ray.data.read_csv(str(tmp_path / "pairs.csv"))
    checkpoint = ray.train.torch.TorchCheckpoint.from_model(ByName())
    batch_predictor = BatchPredictor.from_checkpoint(checkpoint, ray.train.torch.TorchPredictor)
    predicted = batch_predictor.predict(
        dataset,
        batch_size=2,
        feature_columns=["A", "B"],
        keep_columns=["id"],
        min_scoring_workers=2,
        max_scoring_workers=2,
        num_cpus_per_worker=1,
        dtype=torch.float,
    )
    result = predicted.with_options(progress=False).write_parquet(tmp_path / "out")
    assert result.rows == 4
    assert hr.read_parquet(tmp_path / "out").take(2) == [
        {"id": "w", "predictions": 51.0},
        {"id": "x", "predictions": 62.0},
    ]


# ---------------------------------------------------------------- other libraries, and predictors of one's own


def test_the_names_of_ray_train() -> None:
    from headrace.compat.ray.train.huggingface import HuggingFaceCheckpoint, TransformersPredictor
    from headrace.compat.ray.train.lightgbm import LightGBMCheckpoint, LightGBMPredictor
    from headrace.compat.ray.train.sklearn import SklearnCheckpoint, SklearnPredictor
    from headrace.compat.ray.train.tensorflow import TensorflowCheckpoint, TensorflowPredictor
    from headrace.compat.ray.train.xgboost import XGBoostCheckpoint, XGBoostPredictor

    for kind, predictor in (
        (HuggingFaceCheckpoint, TransformersPredictor),
        (LightGBMCheckpoint, LightGBMPredictor),
        (SklearnCheckpoint, SklearnPredictor),
        (TensorflowCheckpoint, TensorflowPredictor),
        (XGBoostCheckpoint, XGBoostPredictor),
    ):
        assert kind.predictor == predictor.__name__ and getattr(hr, predictor.__name__) is predictor
    with pytest.raises(NotOffered, match=r"ray\.train\.xgboost\.XGBoostTrainer"):
        _ = ray.train.xgboost.XGBoostTrainer


class Times(Predictor):
    """As the documentation of Ray AIR has it."""

    def __init__(self, factor: float, preprocessor: Any = None) -> None:
        super().__init__(preprocessor)
        self.factor = factor

    @classmethod
    def from_checkpoint(cls, checkpoint: Any, **kwargs: Any) -> Times:
        return cls(checkpoint["factor"], **kwargs)

    def _predict_pandas(self, data: pd.DataFrame, plus: float = 0) -> pd.DataFrame:
        return pd.DataFrame({"predictions": data["A"] * self.factor + plus})


class TimesArrays(Times):
    def _predict_numpy(self, data: Any, plus: float = 0) -> Any:
        return {"predictions": data["A"] * self.factor + plus}


@pytest.mark.parametrize("kind", [Times, TimesArrays])
def test_a_predictor_of_ones_own_on_rays_base(kind: Any) -> None:
    predictor = BatchPredictor.from_checkpoint({"factor": 2}, kind)
    assert plain(predictor.predict(PAIRS)) == [2, 4, 6, 8]
    assert plain(predictor.predict(PAIRS, plus=1)) == [3, 5, 7, 9]
    assert kind.from_checkpoint({"factor": 3}).predict(PAIRS)["predictions"].tolist() == [3, 6, 9, 12]
