"""predict: what a model gets, what it adds, and what rides along."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import (
    ArgumentError,
    BadInput,
    BadReturn,
    ColumnExists,
    ModelError,
    StepError,
    UnknownColumn,
)
from later import Later

torch = Later("torch")  # or each worker would import it

Batch = dict[str, np.ndarray[Any, Any]]

RIDES = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "km": pa.array([i / 2 for i in range(10)]),
        "city": pa.array([None if i % 3 == 0 else f"c{i}" for i in range(10)]),
    }
)


@pytest.fixture
def rides() -> hr.Dataset:
    return hr.from_arrow(RIDES)


class Fare:
    """A model as users write it: made once per worker, then called."""

    def __init__(self, base: float = 3.0) -> None:
        self.base = base

    def __call__(self, batch: Batch) -> np.ndarray[Any, Any]:
        return self.base + 2 * batch["km"]


class Doubler:
    """A predictor of the user's own."""

    def __init__(self, log: str = "") -> None:
        self.log = log
        self.ready = False

    def _note(self, word: str) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{word} {os.getpid()}\n")

    def load(self) -> None:
        self._note("load")
        self.ready = True

    def predict(self, batch: Batch) -> np.ndarray[Any, Any]:
        assert self.ready
        return batch["id"] * 2

    def close(self) -> None:
        self._note("close")


class DoublesFrames(Doubler):
    batch_format = "pandas"
    label = "doubles"

    def predict(self, batch: Any) -> Any:
        assert isinstance(batch, pd.DataFrame)
        return batch["id"] * 2


FARES = [3.0 + i for i in range(10)]


# ---------------------------------------------------------------- what a model may be


def fare(batch: Batch, base: float = 3.0) -> np.ndarray[Any, Any]:
    return base + 2 * batch["km"]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        (Fare, {}),
        (Fare(), {}),
        (fare, {}),
        (functools.partial(fare, base=3.0), {}),
        (lambda batch: fare(batch), {}),
        (Fare, {"fn_constructor_args": [3.0]}),
        (Fare, {"fn_constructor_kwargs": {"base": 3.0}}),
        (fare, {"fn_args": [3.0]}),
        (fare, {"fn_kwargs": {"base": 3.0}}),
    ],
)
def test_a_class_an_object_or_a_function(rides: hr.Dataset, engine: str, model: Any, options: Any) -> None:
    done = (
        rides.predict(model, inputs=["km"], output="fare", **options).with_options(engine=engine).to_arrow()
    )
    assert done.select(RIDES.column_names).equals(RIDES)
    assert done.column("fare").to_pylist() == FARES
    assert done.column_names == ["id", "km", "city", "fare"]


@pytest.mark.parametrize("model", [Doubler, Doubler(), DoublesFrames, DoublesFrames()])
def test_a_predictor_of_ones_own(rides: hr.Dataset, engine: str, model: Any) -> None:
    done = rides.predict(model, inputs="id").with_options(engine=engine).to_arrow()
    assert done.column("prediction").to_pylist() == [2 * i for i in range(10)]


def test_a_predictor_is_loaded_and_closed_once_per_worker(tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = hr.range(1000).predict(Doubler(str(log)), inputs=["id"], batch_size=10)
    result = data.with_options(engine="local", workers=2, shard_rows=50).write_parquet(tmp_path / "out")
    assert result.rows == 1000
    words = [line.split() for line in log.read_text().splitlines()]
    workers = {pid for _, pid in words}
    assert str(os.getpid()) not in workers
    assert sorted(word for word, _ in words) == sorted(["close", "load"] * len(workers))


def test_a_torch_module(rides: hr.Dataset, engine: str) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU()).train()
    done = rides.predict(net, inputs=["id", "km"], output="out").with_options(engine=engine).to_arrow()
    given = torch.tensor(np.stack([RIDES["id"].to_numpy(), RIDES["km"].to_numpy()], 1), dtype=torch.float32)
    assert done.schema.field("out").type == pa.list_(pa.float32(), 3)
    assert np.allclose(done.column("out").to_pylist(), net(given).detach().numpy(), atol=1e-6)
    assert net.training, "the user's own module is left as it was"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (3, r"predict\(3\)"),
        (None, r"predict\(None\)"),
        ({}, "no model"),
        ({"a": {"modle": fare}}, "has no model"),
        ({"a": {"model": fare, "batchsize": 3}}, "Did you mean 'batch_size'"),
        ({"": fare}, "output=''"),
        ({3: fare}, "output=3"),
        (type("NoCall", (), {}), "__call__"),
        ("", "path"),
    ],
)
def test_what_is_no_model(rides: hr.Dataset, model: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        rides.predict(model)


def test_a_class_of_networks_and_their_weights_are_no_models(rides: hr.Dataset) -> None:
    with pytest.raises(ArgumentError, match=r"Linear\(…\)"):
        rides.predict(torch.nn.Linear)
    with pytest.raises(ArgumentError, match=r"has no model|it takes a function"):
        rides.predict(torch.nn.Linear(2, 1).state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"output": ""}, "output=''"),
        ({"output": 3}, "output=3"),
        ({"inputs": []}, "inputs"),
        ({"inputs": ["km", "km"]}, "twice"),
        ({"keep": [3]}, "keep"),
        ({"keep": "any"}, None),
        ({"replace": 1}, "replace"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_format": "torch"}, "batch_format"),
        ({"inptus": "km"}, "Did you mean 'inputs'"),
        ({"fn_constructor_args": [1]}, "for a class"),
        ({"version": 3}, "version"),
    ],
)
def test_wrong_arguments(rides: hr.Dataset, options: Any, message: str | None) -> None:
    error = ArgumentError if message else UnknownColumn
    with pytest.raises(error, match=message):
        rides.predict(fare, **options).take()


def test_a_predictor_takes_no_further_arguments(rides: hr.Dataset) -> None:
    with pytest.raises(ArgumentError, match=r"predict\(doubles\): a predictor takes no fn_args"):
        rides.predict(DoublesFrames(), fn_args=[1])
    with pytest.raises(ArgumentError, match=r"in a dict, its keys name"):
        rides.predict({"a": fare}, output="x")


# ---------------------------------------------------------------- what it gets


@pytest.mark.parametrize("batch_format", ["numpy", "pandas", "pyarrow"])
def test_it_gets_its_inputs_and_no_more(rides: hr.Dataset, batch_format: Any) -> None:
    def look(batch: Any) -> list[str]:
        names = list(batch) if isinstance(batch, dict) else list(getattr(batch, "column_names", batch))
        return [f"{type(batch).__name__}: {names}"] * len(batch["km"])

    done = rides.predict(look, inputs=["km", "id"], batch_format=batch_format).take(1)
    kind = {"numpy": "dict", "pandas": "DataFrame", "pyarrow": "Table"}[batch_format]
    assert done[0]["prediction"] == f"{kind}: ['km', 'id']"


@pytest.mark.parametrize("size", [1, 7, 100, 1000, "auto", None])
def test_batches_have_the_size_asked_for_whatever_was_read(engine: str, size: Any) -> None:
    table = pa.table({"id": range(500)})
    pieces = [table.slice(at, count) for at, count in ((0, 1), (1, 199), (200, 33), (233, 267))]
    data = hr.from_arrow(pa.concat_tables(pieces)).with_options(engine=engine, workers=1, shard_rows=10_000)
    done = data.predict(lambda batch: [len(batch["id"])] * len(batch["id"]), batch_size=size).to_arrow()
    assert done.column("id").to_pylist() == list(range(500))
    sizes = done.column("prediction").to_pylist()
    if isinstance(size, int):
        assert sizes == [min(size, 500 - at // size * size) for at in range(500)]


# ---------------------------------------------------------------- what it gives back


@pytest.mark.parametrize(
    "result",
    [
        lambda b: b["km"] * 2,
        lambda b: (b["km"] * 2).tolist(),
        lambda b: torch.from_numpy(b["km"] * 2),
        lambda b: pd.Series(b["km"] * 2),
        lambda b: pl.Series(b["km"] * 2),
        lambda b: pa.array(b["km"] * 2),
        lambda b: pa.chunked_array([pa.array(b["km"] * 2)]),
        lambda b: {"prediction": b["km"] * 2},
        lambda b: pd.DataFrame({"prediction": b["km"] * 2}),
        lambda b: pl.DataFrame({"prediction": b["km"] * 2}),
        lambda b: pa.table({"prediction": b["km"] * 2}),
        lambda b: pa.record_batch({"prediction": b["km"] * 2}),
    ],
)
def test_one_result_per_row_in_any_form(rides: hr.Dataset, result: Any) -> None:
    done = rides.predict(result, inputs=["km"]).to_arrow()
    assert done.column_names == ["id", "km", "city", "prediction"]
    assert done.column("prediction").to_pylist() == RIDES.column("id").to_pylist()
    assert done.drop_columns("prediction").equals(RIDES)


@pytest.mark.parametrize("shape", [(2,), (2, 3), (4, 2, 2)])
def test_arrays_of_more_dimensions_are_tensor_columns(rides: hr.Dataset, shape: tuple[int, ...]) -> None:
    done = rides.predict(lambda b: np.zeros((len(b["id"]), *shape), np.float32), inputs=["id"]).to_arrow()
    type_ = done.schema.field("prediction").type
    assert type_ == (
        pa.list_(pa.float32(), 2) if len(shape) == 1 else pa.fixed_shape_tensor(pa.float32(), shape)
    )


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda b: b["km"][:2], "returned 2 rows for 10; a model gives one result per row"),
        (lambda b: {"x": [1]}, "returned 1 row for 10"),
        (lambda b: np.zeros((3, 10)), "returned 3 rows for 10"),
        (lambda b: None, "is a `return` missing"),
        (lambda b: 1.5, "one value per row"),
        (lambda b: "yes", "one value per row"),
        (lambda b: (value for value in b["km"]), "generator.*map_batches"),
        (lambda b: {}, "without columns"),
        (lambda b: {3: b["km"]}, "names are strings"),
    ],
)
def test_results_that_are_none(rides: hr.Dataset, engine: str, result: Any, said: str) -> None:
    with pytest.raises(
        BadReturn, match=rf"predict\(.*\) returned something that is not one result per row: .*{said}"
    ):
        rides.predict(result, inputs=["km"]).with_options(engine=engine, workers=1).to_arrow()


def test_an_error_says_which_model_and_which_rows(tmp_path: Path, engine: str) -> None:
    pq.write_table(RIDES, tmp_path / "rides.parquet")

    def fails(batch: Batch) -> Any:
        return 1 / (batch["id"] - 5).all() and batch["id"][99]

    data = hr.read_parquet(tmp_path / "rides.parquet").with_options(engine=engine)
    with pytest.raises(StepError, match=r"predict\(b: .*fails\) raised IndexError.*rides.parquet, row 0: "):
        data.predict({"a": fare, "b": {"model": fails, "batch_size": 4}}, inputs=["km", "id"]).to_arrow()


def test_a_models_own_words_for_bad_input(rides: hr.Dataset) -> None:
    class Picky(Doubler):
        def predict(self, batch: Batch) -> Any:
            raise BadInput("it takes 3 features, and got 1.")

    with pytest.raises(
        BadInput, match=r"^predict\(.*Picky\): it takes 3 features, and got 1\. It was working on "
    ):
        rides.predict(Picky(), inputs=["id"]).to_arrow()


def test_a_model_that_cannot_be_loaded(rides: hr.Dataset, engine: str, tmp_path: Path) -> None:
    class Broken(Doubler):
        def load(self) -> None:
            raise OSError("no such weights")

    class Damaged(Doubler):
        def load(self) -> None:
            raise ModelError("The weights are damaged.")

    data = rides.with_options(engine=engine)
    with pytest.raises(
        StepError, match=r"Broken could not be loaded for predict\(.*OSError: no such weights"
    ):
        data.predict(Broken(), inputs=["id"]).write_parquet(tmp_path / "a")
    with pytest.raises(ModelError, match=r"^The weights are damaged\.$"):
        data.predict(Damaged(), inputs=["id"]).write_parquet(tmp_path / "b")


# ---------------------------------------------------------------- what is carried


@pytest.mark.parametrize(
    ("keep", "names"),
    [
        ("all", ["id", "km", "city", "fare"]),
        ("none", ["fare"]),
        (None, ["fare"]),
        (["city"], ["city", "fare"]),
        (["city", "id"], ["id", "city", "fare"]),
        ("city", ["city", "fare"]),
    ],
)
def test_keep(rides: hr.Dataset, keep: Any, names: list[str]) -> None:
    done = rides.predict(fare, inputs=["km"], output="fare", keep=keep)
    assert done.columns() == names
    assert done.to_arrow().column("fare").to_pylist() == FARES


def test_a_clash_is_refused_before_any_work(rides: hr.Dataset, tmp_path: Path) -> None:
    with pytest.raises(
        ColumnExists, match=r"predict\(fare\) would add a column 'km', and there is one.*replace=True"
    ):
        rides.predict(fare, inputs=["km"], output="km").write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ColumnExists, match=r"add a column 'id', but the input has one"):
        rides.predict(lambda b: {"id": b["km"]}, inputs=["km"]).take()


def test_a_clash_of_two_models(rides: hr.Dataset) -> None:
    with pytest.raises(ColumnExists, match="another model has one of that name"):
        rides.predict(fare, inputs=["km"], output="a").predict(fare, inputs=["km"], output="a").take()


def test_replace_puts_the_result_in_the_columns_place(rides: hr.Dataset) -> None:
    done = rides.predict(fare, inputs=["km"], output="km", replace=True).to_arrow()
    assert done.column_names == ["id", "km", "city"]
    assert done.column("km").to_pylist() == FARES
    again = rides.predict(lambda b: {"new": b["km"], "id": b["km"]}, inputs=["km"], replace=True).to_arrow()
    assert again.column_names == ["id", "km", "city", "new"]
    assert again.column("id").to_pylist() == RIDES.column("km").to_pylist()


def test_what_is_not_kept_may_be_named_again(rides: hr.Dataset) -> None:
    done = rides.predict(fare, inputs=["km"], output="km", keep=["id"]).to_arrow()
    assert done.column_names == ["id", "km"]
    assert done.column("km").to_pylist() == FARES


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda d: d.predict(fare, inputs=["kn"]), r"asks for column 'kn'.*Did you mean 'km'"),
        (lambda d: d.predict(fare, inputs=["km"], keep=["ciity"]), r"'ciity'.*Did you mean 'city'"),
        (lambda d: d.map_batches(lambda b: b).predict(fare, inputs=["kn"]), r"predict\(fare\) asks.*'km'"),
        (
            lambda d: d.map_batches(lambda b: b).predict(fare, inputs=["km"], keep=["ciity"]),
            r"asks for column 'ciity'",
        ),
        (lambda d: d.predict(fare, inputs=["km"]).predict(fare, inputs=["fares"], output="b"), "'fares'"),
        (
            lambda d: d.predict(fare, inputs=["km"]).select_columns(["prediciton"]),
            "Did you mean 'prediction'",
        ),
        (lambda d: d.predict(fare, inputs=["km"]).drop_columns(["prediciton"]), "Did you mean 'prediction'"),
    ],
)
def test_columns_that_are_not_there(rides: hr.Dataset, chain: Any, message: str) -> None:
    with pytest.raises(UnknownColumn, match=message):
        chain(rides).take()


# ---------------------------------------------------------------- several models


def test_several_models_see_the_same_rows(rides: hr.Dataset, engine: str) -> None:
    done = (
        rides.predict(
            {"small": Fare, "large": {"model": Fare, "fn_constructor_args": [5.0], "batch_size": 3}}
        )
        .with_options(engine=engine)
        .to_arrow()
    )
    assert done.column_names == ["id", "km", "city", "small", "large"]
    assert done.column("small").to_pylist() == FARES
    assert done.column("large").to_pylist() == [fare + 2 for fare in FARES]


def test_they_do_not_see_each_other(rides: hr.Dataset) -> None:
    def seen(batch: Batch) -> list[str]:
        return [" ".join(batch)] * len(batch["id"])

    done = rides.predict({"a": seen, "b": seen}).take(1)[0]
    assert done["a"] == done["b"] == "id km city"
    one_by_one = rides.predict(seen, output="a").predict(seen, output="b").take(1)[0]
    assert one_by_one["b"] == "id km city a"


def test_named_results_are_prefixed(rides: hr.Dataset) -> None:
    done = rides.predict(
        {"a": lambda b: {"label": b["id"], "score": b["km"]}, "b": fare}, keep="none"
    ).to_arrow()
    assert done.column_names == ["a_label", "a_score", "b"]


def several(batch: Batch) -> Batch:
    return {"x": batch["id"], "y": batch["km"]}


@pytest.mark.parametrize(
    ("model", "output", "columns"),
    [
        (several, None, ["x", "y"]),
        (several, "a", ["a_x", "a_y"]),
        (several, "prediction", ["prediction_x", "prediction_y"]),
        (lambda b: {"x": b["id"]}, None, ["x"]),
        (lambda b: {"x": b["id"]}, "a", ["a"]),
        (lambda b: pd.DataFrame({"x": b["id"], "y": b["km"]}), "a", ["a_x", "a_y"]),
        (lambda b: pa.table({"x": b["id"]}), "a", ["a"]),
        (lambda b: b["id"], None, ["prediction"]),
        (lambda b: b["id"], "a", ["a"]),
    ],
)
def test_output_is_obeyed(rides: hr.Dataset, model: Any, output: str | None, columns: list[str]) -> None:
    done = rides.predict(model, inputs=["id", "km"], output=output, keep="none").to_arrow()
    assert done.column_names == columns
    assert done.column(0).to_pylist() == list(range(10))
    if output is not None:
        assert rides.predict({output: model}, inputs=["id", "km"], keep="none").to_arrow().equals(done)


def test_a_prefixed_name_that_is_there_is_an_error(rides: hr.Dataset) -> None:
    taken = rides.rename_columns({"city": "a_x"})
    with pytest.raises(ColumnExists, match="column 'a_x', but the input has one"):
        taken.predict(several, inputs=["id", "km"], output="a").take()
    made = taken.predict(several, inputs=["id", "km"], output="a", replace=True).take(1)
    assert made == [{"id": 0, "km": 0.0, "a_x": 0, "a_y": 0.0}]


def test_with_column_adds_its_column_or_none(rides: hr.Dataset) -> None:
    made = rides.with_column("z", lambda frame: frame[["id"]] + 1).to_arrow()
    assert made.column_names == ["id", "km", "city", "z"]
    assert made.column("z").to_pylist() == list(range(1, 11))
    with pytest.raises(BadReturn, match="it returned 2 columns, and with_column adds one"):
        rides.with_column("z", lambda frame: frame[["id", "km"]]).take()


def test_each_has_its_own_batches_and_inputs(rides: hr.Dataset) -> None:
    def sizes(batch: Batch) -> list[str]:
        count = len(next(iter(batch.values())))
        return [f"{count} of {' '.join(batch)}"] * count

    done = rides.predict(
        {"a": {"model": sizes, "batch_size": 4, "inputs": ["id"]}, "b": {"model": sizes, "batch_size": 3}},
        inputs=["km"],
    ).to_arrow()
    assert done.column("a").to_pylist() == ["4 of id"] * 8 + ["2 of id"] * 2
    assert done.column("b").to_pylist() == ["3 of km"] * 9 + ["1 of km"]


def test_a_chain_of_models_is_the_same_plan(rides: hr.Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    chained = rides.predict(Fare, inputs=["km"], output="a").predict(fare, inputs=["km"], output="b")
    together = rides.predict({"a": Fare, "b": fare}, inputs=["km"])
    assert repr(chained) == repr(together) == "Dataset(Memory) → predict(a: Fare, b: fare)"
    first = chained.write_parquet(out)
    again = together.write_parquet(out)
    assert again.run == first.run and again.resumed


def test_a_chain_with_replace_sees_what_was_replaced(rides: hr.Dataset) -> None:
    done = (
        rides.predict(lambda b: b["km"] + 1, inputs=["km"], output="km", replace=True)
        .predict(lambda b: b["km"], inputs=["km"], output="seen")
        .to_arrow()
    )
    assert done.column("seen").to_pylist() == [i / 2 + 1 for i in range(10)]


# ---------------------------------------------------------------- runs


def test_counting_needs_no_model(rides: hr.Dataset) -> None:
    def never(batch: Batch) -> Iterator[Any]:
        raise AssertionError("nobody asked for a result")

    assert rides.predict(never).count() == 10


def test_explain_says_what_each_model_reads(rides: hr.Dataset) -> None:
    text = rides.predict({"a": Fare, "b": {"model": fare, "batch_size": 256}}, inputs=["km"]).explain()
    how = "batches from 128 rows up to about 16 MiB, whatever is fastest, as numpy"
    assert f"predict(a: Fare): reads km, {how}; one object per worker" in text
    assert "predict(b: fare): reads km, batches of 256 rows as numpy; a function" in text


def test_explain_says_which_memory_is_whose(rides: hr.Dataset) -> None:
    table = np.ones(1 << 20)
    text = rides.predict({"f": lambda b: b["km"] + table[0], "n": torch.nn.Linear(512, 1024)}).explain()
    assert "a function (8 MiB shared by all, " in text
    assert "all workers share one copy of the weights of Linear (2 MiB shared by all, " in text


def test_one_number_per_row_is_a_plain_column(rides: hr.Dataset) -> None:
    done = rides.predict(torch.nn.Linear(2, 1), inputs=["id", "km"]).to_arrow()
    assert done.schema.field("prediction").type == pa.float32()
    named = rides.predict(
        lambda b: {"y": b["km"].reshape(-1, 1) * 2, "z": np.zeros((len(b["km"]), 2))}
    ).to_arrow()
    assert named.column("y").to_pylist() == RIDES.column("id").to_pylist()
    assert named.schema.field("z").type == pa.list_(pa.float64(), 2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ([fare, fare], "several models come in a dict"),
        (pd.DataFrame({"a": [1]}), r"predict\(a DataFrame\): this is data"),
        (type("Thing", (), {"predict": fare})(), "write a class that makes the model in its"),
    ],
)
def test_hints_for_what_is_no_model(rides: hr.Dataset, model: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        rides.predict(model)


def test_a_method_of_a_model_is_not_the_model(rides: hr.Dataset) -> None:
    from sklearn.linear_model import LinearRegression

    model = LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(ArgumentError, match=r"predict\(LinearRegression\.predict\): give the model itself"):
        rides.predict(model.predict, inputs=["km"])


def test_a_librarys_model_has_a_format_of_its_own(rides: hr.Dataset) -> None:
    with pytest.raises(
        ArgumentError, match=r"batch_format='pandas': predict\(Linear\) takes its batches in a form"
    ):
        rides.predict(torch.nn.Linear(2, 1), batch_format="pandas")


def test_a_named_result_that_is_there_already_says_how_to_keep_both(rides: hr.Dataset) -> None:
    with pytest.raises(
        ColumnExists, match=r"column 'city', but the input has one.*say output='x': .* names such as 'x_city'"
    ):
        rides.predict(lambda b: {"city": b["km"]}, inputs=["km"]).take()


def test_a_function_that_writes_to_its_inputs_spoils_no_column() -> None:
    """PyTorch does not know that an array is read-only."""
    data = hr.from_arrow(pa.table({"x": np.arange(100.0), "t": ["a"] * 100}))
    spoil = {"a": lambda b: torch.as_tensor(b["x"]).sub_(1), "b": lambda b: b["x"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's words about such arrays
        done = data.predict(spoil, inputs=["x"]).to_arrow()
    assert done.column("x").to_pylist() == done.column("b").to_pylist() == list(range(100))
    assert done.column("a").to_pylist() == list(range(-1, 99))


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_column_that_was_left_out_cannot_be_kept(tmp_path: Path, engine: str) -> None:
    pq.write_table(RIDES, tmp_path / "rides.parquet")
    data = hr.read_parquet(tmp_path / "rides.parquet").with_options(engine=engine)
    dropped = data.predict(fare, inputs=["km"], output="y").drop_columns(["city"])
    with pytest.raises(UnknownColumn, match="asks for column 'city'"):
        dropped.predict(fare, inputs=["km"], output="z", keep=["city", "y"]).to_arrow()
    with pytest.raises(UnknownColumn, match="asks for column 'city'"):
        dropped.drop_columns(["city"]).to_arrow()
    with pytest.raises(UnknownColumn, match="asks for column 'id'"):
        data.predict(fare, inputs=["km"], keep=["city"]).drop_columns(["id"]).to_arrow()


def test_a_look_leaves_the_users_objects_as_they_were(rides: hr.Dataset, tmp_path: Path) -> None:
    class Loads:
        def load(self) -> None:
            self.table = np.ones(3)

        def predict(self, batch: Batch) -> Any:
            return batch["km"]

        def close(self) -> None:
            self.table = np.zeros(0)

    class Counts:
        def __call__(self, batch: Batch) -> Any:
            self.calls = getattr(self, "calls", 0) + 1
            return batch["km"]

    net = torch.nn.Linear(1, 1).train()
    data = rides.predict({"a": Loads(), "b": Counts(), "c": net, "d": net}, inputs=["km"])
    first = data.write_parquet(tmp_path / "out")
    data.take(3)
    assert net.training
    assert data.write_parquet(tmp_path / "out").run == first.run


def test_every_predictor_is_closed_whatever_one_says(rides: hr.Dataset, tmp_path: Path) -> None:
    log = tmp_path / "log"

    class Fails(Doubler):
        def close(self) -> None:
            raise RuntimeError("cannot be closed")

    data = rides.predict({"a": Doubler(str(log)), "b": Fails()}, inputs=["id"])
    with pytest.raises(RuntimeError, match="cannot be closed"):
        data.take(3)
    assert log.read_text().split()[0::2] == ["load", "close"]


def test_results_that_mean_two_things_are_refused(rides: hr.Dataset) -> None:
    with pytest.raises(BadReturn, match=r"returned a tuple; .*`return \{"):
        rides.limit(2).predict(lambda b: (b["km"], b["id"])).take()
    with pytest.raises(BadReturn, match=r"shape \(\d+, 0\), which has no values"):
        rides.predict(lambda b: np.zeros((len(b["km"]), 0))).take()


def test_a_form_that_there_is_not(rides: hr.Dataset) -> None:
    class Odd(Doubler):
        batch_format = "polars"

    with pytest.raises(ArgumentError, match=r"Odd\.batch_format is 'polars'"):
        rides.predict(Odd(), inputs=["id"]).take()
