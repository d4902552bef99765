"""BatchPredictor: data of every form, models and functions, and the arguments that came with Ray AIR."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.compat.ray.train.sklearn import SklearnCheckpoint
from headrace.compat.ray.train.torch import TorchCheckpoint
from headrace.errors import ArgumentError, ColumnExists, StepError, UnknownArgument, UnknownColumn

torch = pytest.importorskip("torch")
nn = torch.nn

N = 10_000
ROWS = np.random.default_rng(0).normal(size=(N, 3)).astype(np.float32)
NET = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))


def frame(rows: int = N) -> pd.DataFrame:
    made = pd.DataFrame(ROWS[:rows], columns=["a", "b", "c"], index=[f"row {i}" for i in range(rows)])
    made["city"] = pd.Categorical.from_codes(np.arange(rows) % 2, ["Oslo", "Bonn"])
    return made


def by_hand(rows: np.ndarray, size: int = 4096) -> np.ndarray:
    NET.eval()
    with torch.inference_mode():
        parts = [NET(torch.from_numpy(rows[at : at + size])) for at in range(0, len(rows), size)]
    return torch.cat(parts).squeeze(1).numpy()


@pytest.fixture
def predictor() -> BatchPredictor:
    return BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(NET), hr.TorchPredictor)


# ---------------------------------------------------------------- data in every form


@pytest.mark.parametrize("size", [1000, 4096, 200_000])
def test_a_frame_gives_a_frame_bit_for_bit_what_the_loop_gives(predictor: BatchPredictor, size: int) -> None:
    given = frame()
    for _ in range(2):
        made = predictor.predict(given, feature_columns=["a", "b", "c"], batch_size=size)
        assert list(made.columns) == ["predictions"]
        assert made["predictions"].dtype == np.float32
        pd.testing.assert_index_equal(made.index, given.index)
        assert np.array_equal(made["predictions"], by_hand(ROWS, size))
    made["predictions"] += 1  # it is the caller's own


def test_kept_columns_stay_what_they_are(predictor: BatchPredictor) -> None:
    given = frame()
    made = predictor.predict(given, feature_columns=["a", "b", "c"], keep_columns=["city", "b"])
    assert list(made.columns) == ["city", "b", "predictions"]
    pd.testing.assert_frame_equal(made[["city", "b"]], given[["city", "b"]])


def test_the_module_is_as_it_was() -> None:
    NET.train()
    checkpoint = TorchCheckpoint.from_model(NET)
    BatchPredictor.from_checkpoint(checkpoint, hr.TorchPredictor).predict(frame(9)[["a", "b", "c"]])
    assert NET.training
    hr.TorchPredictor.from_checkpoint(checkpoint).predict(ROWS)
    assert NET.training


def test_datasets_stay_lazy(predictor: BatchPredictor, tmp_path: Path) -> None:
    pq.write_table(
        pa.Table.from_pandas(frame().drop(columns="city"), preserve_index=False), tmp_path / "in.parquet"
    )
    data = hr.read_parquet(tmp_path / "in.parquet")
    made = predictor.predict(data, feature_columns=["a", "b", "c"], keep_columns=["a"])
    assert isinstance(made, hr.Dataset)
    result = made.with_options(progress=False).write_parquet(tmp_path / "out")
    written = pq.read_table(tmp_path / "out")
    assert (result.rows, written.schema.names) == (N, ["a", "predictions"])
    assert np.allclose(written.column("predictions").to_numpy(), by_hand(ROWS), atol=1e-6)


def test_missing_numbers_reach_the_model_as_they_are() -> None:
    seen = BatchPredictor.from_checkpoint(None, Seen)
    given = pd.DataFrame({"x": [1.0, np.nan], "n": pd.array([1, None], "Int64"), "s": ["a", None]})
    made = seen.predict(given)
    assert made["predictions"].tolist() == [3, 0]


def test_no_rows(predictor: BatchPredictor) -> None:
    made = predictor.predict(frame(0), feature_columns=["a", "b", "c"], keep_columns=["city"])
    assert (len(made), list(made.columns)) == (0, ["city", "predictions"])


# ---------------------------------------------------------------- models


class Named(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": a + b, "pair": torch.stack([a, b], 1)}


def test_several_results_are_columns_of_their_names() -> None:
    predictor = BatchPredictor.from_checkpoint(TorchCheckpoint.from_model(Named()), hr.TorchPredictor)
    made = predictor.predict(frame(), feature_columns=["b", "a"])
    assert np.array_equal(made["sum"], ROWS[:, 0] + ROWS[:, 1])
    assert np.array_equal(np.stack(made["pair"]), ROWS[:, :2])


def test_options_and_the_name_of_the_column_come_with_the_call() -> None:
    from sklearn.linear_model import LogisticRegression

    names = ["a", "b", "c"]
    model = LogisticRegression().fit(frame()[names], ROWS[:, 0] > 0)
    predictor = BatchPredictor.from_checkpoint(SklearnCheckpoint.from_model(model), hr.SklearnPredictor)
    plain = predictor.predict(frame(500), feature_columns=names)
    assert plain["predictions"].tolist() == model.predict(frame(500)[names]).tolist()
    called = predictor.predict(
        frame(500),
        feature_columns=names,
        predict_batch_kwargs={"method": "predict_proba", "output_column_name": "p"},
    )
    assert np.allclose(np.stack(called["p"]), model.predict_proba(frame(500)[names]))
    with pytest.raises(UnknownArgument, match="method"):
        predictor.predict(frame(5), predict_batch_kwargs={"methd": "predict"})


class Seen:
    """Counts what is there in each row."""

    @classmethod
    def from_checkpoint(cls, checkpoint: Any) -> Seen:
        return cls()

    def predict(self, batch: pd.DataFrame) -> np.ndarray:
        return batch.notna().sum(axis=1).to_numpy()


class Own:
    """A predictor as users of Ray AIR have written them; it leaves a file for each time it is made."""

    def __init__(self, factor: float, folder: str) -> None:
        self.factor = factor
        (Path(folder) / f"made-{os.getpid()}-{os.urandom(4).hex()}").touch()

    @classmethod
    def from_checkpoint(cls, checkpoint: dict[str, float], folder: str) -> Own:
        return cls(checkpoint["factor"], folder)

    def predict(self, batch: pd.DataFrame, plus: float = 0.0) -> pd.DataFrame:
        assert len(batch) <= 1000
        return pd.DataFrame({"out": batch["a"] * self.factor + plus})


class OwnNumpy(Own):
    predict = None  # type: ignore[assignment]

    def _predict_numpy(self, batch: dict[str, np.ndarray]) -> np.ndarray:
        return batch["a"] * self.factor


@pytest.mark.parametrize("workers", [1, 2])
def test_a_class_of_ones_own_is_made_once_per_worker(workers: int, tmp_path: Path) -> None:
    predictor = BatchPredictor.from_checkpoint({"factor": 2.0}, Own, folder=str(tmp_path))
    made = predictor.predict(
        frame(),
        batch_size=1000,
        min_scoring_workers=workers,
        max_scoring_workers=workers,
        feature_columns="a",
        predict_batch_kwargs={"plus": 1.0},
    )
    assert np.array_equal(made["out"], ROWS[:, 0] * 2 + 1)
    assert 1 <= len(list(tmp_path.iterdir())) <= workers
    other = BatchPredictor.from_checkpoint({"factor": 3.0}, OwnNumpy, folder=str(tmp_path))
    assert np.array_equal(other.predict(frame(9))["predictions"], ROWS[:9, 0] * 3)


# ---------------------------------------------------------------- functions


def test_a_function_may_change_the_number_of_rows() -> None:
    positive = BatchPredictor.from_pandas_udf(lambda df: df[df["a"] > 0])
    made = positive.predict(frame(), feature_columns=["a"])
    assert np.array_equal(made["a"], ROWS[:, 0][ROWS[:, 0] > 0])
    same = BatchPredictor.from_pandas_udf(lambda df, by: df * by)
    made = same.predict(frame(), feature_columns=["a"], keep_columns=["city"], predict_batch_kwargs={"by": 2})
    assert list(made.columns) == ["city", "a"]
    pd.testing.assert_index_equal(made.index, frame().index)


@pytest.mark.parametrize("form", ["frame", "dataset"])
def test_batches_of_about_so_many_bytes(form: str) -> None:
    given = pd.DataFrame({"x": np.arange(8000.0), "y": np.arange(8000.0)})  # 16 bytes in a row
    count = BatchPredictor.from_pandas_udf(
        lambda df: pd.DataFrame({"rows": [len(df)]}), batch_size_bytes=16_000
    )
    data: Any = given if form == "frame" else hr.from_pandas(given)
    made = count.predict(data, max_scoring_workers=1)
    rows = made["rows"].tolist() if form == "frame" else [row["rows"] for row in made.take_all()]
    assert sum(rows) == 8000 and rows.count(1000) >= 6  # a shard's last batch is smaller
    assert max(rows) == 1000
    with pytest.raises(ArgumentError, match="batch_size_bytes"):
        count.predict(given, batch_size=7)
    with pytest.raises(ArgumentError, match="batch_size_bytes=0"):
        BatchPredictor.from_pandas_udf(len, 0)


# ---------------------------------------------------------------- what is wrong


def test_errors_name_rows_and_columns(predictor: BatchPredictor) -> None:
    def fails(df: pd.DataFrame) -> pd.DataFrame:
        if (df["a"] == ROWS[4321, 0]).any():
            raise RuntimeError("this one")
        return df

    with pytest.raises(StepError, match=r"this one.*row 4321"):
        BatchPredictor.from_pandas_udf(fails).predict(frame(), max_scoring_workers=1)
    with pytest.raises(UnknownColumn, match="Did you mean 'city'"):
        predictor.predict(frame(), feature_columns=["a"], keep_columns=["citi"])
    with pytest.raises(ColumnExists, match="'a'"):
        predictor.predict(frame(), keep_columns=["a"], predict_batch_kwargs={"output_column_name": "a"})
    with pytest.raises(StepError, match="takes 3 features"):
        predictor.predict(frame(), feature_columns=["a", "b"])
    for wrong in (3, ROWS, "in.parquet"):
        with pytest.raises(ArgumentError, match=r"a Dataset or a DataFrame, not \w+\. hr\.read_parquet"):
            predictor.predict(wrong)


def test_arguments_that_came_with_ray(predictor: BatchPredictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HEADRACE_ENGINE", "local")
    given = {"ray_remote_args": {"max_restarts": 2, "num_cpus": 1}, "separate_gpu_stage": True}
    made = predictor.predict(frame(9), feature_columns=["a", "b", "c"], **given)
    assert np.allclose(made["predictions"], by_hand(ROWS[:9]), atol=1e-6)
    with pytest.raises(UnknownArgument, match="Did you mean 'num_cpus'"):
        predictor.predict(frame(9), ray_remote_args={"num_cpu": 1})
    with pytest.raises(UnknownArgument, match="Did you mean 'batch_size'"):
        predictor.predict(frame(9), batchsize=1)
    with pytest.raises(ArgumentError, match="less than"):
        predictor.predict(frame(9), min_scoring_workers=3, max_scoring_workers=2)
    with pytest.raises(hr.errors.ResourcesUnavailable, match=r"GPU.*this machine has 0"):
        predictor.predict(frame(9), feature_columns=["a", "b", "c"], num_gpus_per_worker=1)
