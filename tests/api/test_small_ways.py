"""Small things that programs for Ray Data, pandas and PyTorch do with a dataset."""

from __future__ import annotations

import asyncio
import datetime
import enum
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ArgumentError, BadReturn, NotASequence, OutputExists, PlanChanged

from .data import numbers

# ---------------------------------------------------------------- async generators


class Twice:
    """Yields each batch again, from one array that it fills anew."""

    async def __call__(self, batch: dict[str, Any], add: int = 10) -> AsyncIterator[dict[str, Any]]:
        reused = np.empty(len(batch["id"]), np.int64)
        for i in range(2):
            await asyncio.sleep(0)
            reused[:] = batch["id"] + add * i
            yield {"id": reused}


async def lengths(batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield {"n": np.array([len(batch["id"])])}
    if 3 in batch["id"]:
        raise ValueError("three")


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_async_generators_yield_batches(engine: Any) -> None:
    data = numbers(4, 2).with_options(engine=engine)
    twice = data.map_batches(Twice, batch_size=2, fn_kwargs={"add": 100}, max_in_flight=3)
    assert [row["id"] for row in twice.take_all()] == [0, 1, 100, 101, 2, 3, 102, 103]


def test_what_an_async_generator_yields_counts_only_if_it_ends_well(tmp_path: Path) -> None:
    data = numbers(6, 6).map_batches(lengths, batch_size=2)
    result = data.with_options(engine="inline", on_error="reject", progress=False).write_parquet(
        tmp_path / "o"
    )
    assert hr.read_parquet(tmp_path / "o").take_all() == [{"n": 2}, {"n": 1}, {"n": 2}]
    assert result.rejected == 1


def test_an_async_generator_that_is_given_back() -> None:
    async def batches() -> AsyncIterator[Any]:
        yield {}

    with pytest.raises(BadReturn, match="async generator: yield in the function itself"):
        hr.range(3).map_batches(lambda batch: batches()).take(1)


# ---------------------------------------------------------------- columns and numbers


@pytest.mark.parametrize("batch_format", ["pandas", "numpy", "pyarrow"])
@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (5, pa.int64()),
        (np.float32(0.5), None),
        ("text", pa.string()),
        (True, pa.bool_()),
        (datetime.date(2024, 2, 29), pa.date32()),
        (np.array(7), pa.int64()),
    ],
)
def test_a_value_for_all_rows(batch_format: Any, value: Any, type_: Any) -> None:
    made = hr.range(3).add_column("x", lambda batch: value, batch_format=batch_format)
    table = made.to_arrow()
    assert table.to_pydict() == {"id": [0, 1, 2], "x": [value] * 3}
    assert type_ is None or table.schema.field("x").type == type_
    assert made.limit(0).to_arrow().schema == table.schema


def test_a_model_still_gives_one_result_per_row() -> None:
    with pytest.raises(BadReturn):
        hr.range(3).predict(lambda batch: 5, inputs=["id"], output="x").take_all()


def test_dropping_nothing() -> None:
    assert hr.range(2).drop_columns([]).take_all() == [{"id": 0}, {"id": 1}]
    with pytest.raises(ArgumentError):
        hr.range(2).select_columns([])


def test_one_column_gives_a_number_and_several_a_dict() -> None:
    data = hr.from_items([{"a": 1, "b": 2.0}, {"a": 3, "b": None}])
    assert (data.sum("a"), data.sum(["a"]), data.mean(["b"])) == (4, 4, 2.0)
    assert data.max(["a", "b"]) == {"max(a)": 3, "max(b)": 2.0} == data.max()
    assert (hr.range(3).std(), hr.range(3).min()) == (1.0, 0)


def test_size_bytes() -> None:
    assert hr.range(5).size_bytes() == 40
    assert numbers(1000).filter(expr="id < 10").map_batches(lambda b: {"x": b["id"] * 1.0}).size_bytes() == 80
    assert hr.range(0).size_bytes() == 0


# ---------------------------------------------------------------- iterating


def test_a_dataset_is_an_iterable() -> None:
    data = numbers(250)
    assert [row["id"] for row in data] == list(range(250))
    assert len(data) == 250 and len(data.limit(7)) == 7 and list(data.limit(1)) == [{"id": 0}]
    odd = data.filter(lambda row: row["id"] % 2)
    assert bool(odd) and sum(1 for _ in odd) == 125
    with pytest.raises(NotASequence, match=r"count\(\) counts them"):
        len(odd)


def test_how_many_batches_there_will_be() -> None:
    data = numbers(250).map_batches(lambda batch: batch)
    assert len(numbers(250).iter_batches(batch_size=100)) == 3
    assert len(numbers(250).iter_batches(batch_size=100, drop_last=True)) == 2
    assert len(numbers(250).iter_rows()) == 250
    for unknown in (data.iter_batches(), numbers(5).iter_batches(batch_size=None)):
        assert bool(unknown)
        with pytest.raises(TypeError, match="not known"):
            len(unknown)
    assert (
        len(list(data.iter_batches(batch_size=100))) == 3
    )  # list() asks for the length, and goes on without


def test_to_torch() -> None:
    torch = pytest.importorskip("torch")
    batches = numbers(10, 5).to_torch(batch_size=4, dtypes=torch.float32)
    assert isinstance(batches, torch.utils.data.IterableDataset) and len(batches) == 3
    loader = torch.utils.data.DataLoader(batches, batch_size=None)
    for _ in range(2):  # each pass runs the plan
        assert [batch["id"].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(loader) == 3
    odd = numbers(10).filter(lambda row: row["id"] % 2).to_torch(batch_size=2)
    assert [batch["id"].tolist() for batch in odd] == [[1, 3], [5, 7], [9]]
    with pytest.raises(TypeError, match="not known"):
        len(odd)
    with pytest.raises(ArgumentError, match="each worker of a DataLoader would run the plan anew"):
        list(torch.utils.data.DataLoader(batches, batch_size=None, num_workers=1))


# ---------------------------------------------------------------- what is known without running


def test_printing_names_columns_and_types_and_runs_nothing() -> None:
    def fails(*args: Any) -> Any:
        raise AssertionError("called")

    data = hr.from_arrow(pa.table({"a": [1], "long name": ["x"], "c\x1b[2J": [1.5]}))
    assert repr(data) == "Dataset(Memory)"
    assert str(data).splitlines() == [
        "Dataset(Memory)",
        "  a          int64",
        "  long name  string",
        "  c\\x1b[2J   double",
    ]
    kept = data.filter(fails).rename_columns({"a": "b"}).drop_columns(["long name"]).limit(1)
    assert str(kept).splitlines()[1:] == ["  b         int64", "  c\\x1b[2J  double"]
    scored = data.predict(fails, inputs=["a"], output="score", keep=["a"])
    assert str(scored).splitlines()[1:] == [
        "  a  int64",
        "  and what predict(test_printing_names_columns_and_types_and_runs_nothing.fails) makes: schema() runs a "
        "few rows to find out",
    ]
    assert str(scored.select_columns(["score", "a"])).splitlines()[1:] == [
        "  score  type known when it runs",
        "  a      int64",
    ]
    mapped = data.map_batches(fails)
    assert "what map_batches(" in str(mapped) and "and what" not in str(mapped)
    added = data.add_column("a", fails)
    assert "int64" not in str(added), "the column may be replaced"


def test_printing_what_cannot_be_read() -> None:
    text = str(hr.read_parquet("/nowhere/x.parquet"))
    assert (
        text.startswith("Dataset(Parquet)\n  columns are not known: No input file at")
        and text.count("\n") == 1
    )


def test_explain_prints(capsys: pytest.CaptureFixture[str]) -> None:
    told = hr.range(3).explain()
    assert isinstance(told, str) and told.startswith("source ") and repr(told) == str(told)
    assert capsys.readouterr().out == f"{told}\n"


# ---------------------------------------------------------------- modes of writing


class SaveMode(str, enum.Enum):
    """As Ray Data has it."""

    IGNORE = "ignore"
    OVERWRITE = "overwrite"


def write(data: hr.Dataset, folder: Path, **given: Any) -> hr.Result:
    return data.with_options(engine="inline", progress=False).write_parquet(folder, **given)


def test_an_output_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    first = write(hr.range(5).accumulate(top=hr.MinMax("id")), tmp_path, mode="ignore")
    before = sorted(os.listdir(tmp_path))
    again = write(hr.range(100).filter(lambda row: True), tmp_path, mode=SaveMode.IGNORE)  # another plan
    assert (again.rows, again.run, again.resumed) == (5, first.run, True)
    assert list(again.metrics) == ["top"] and "5 rows" in str(again)
    with pytest.raises(OutputExists, match="mode='ignore'"):
        write(hr.range(5), tmp_path, mode="error")
    assert sorted(os.listdir(tmp_path)) == before
    assert write(hr.range(7), tmp_path, mode=SaveMode.OVERWRITE).rows == 7
    assert write(hr.range(3), tmp_path / "new", mode="error").rows == 3


@pytest.mark.parametrize("mode", ["ignore", "error"])
def test_a_run_that_is_not_finished_goes_on(tmp_path: Path, mode: Any) -> None:
    def fails(row: Any) -> Any:
        if row["id"] == 55 and not flag.exists():
            raise ValueError
        return row

    flag = tmp_path / "flag"
    data = numbers(60, 10).map(fails, version="1")
    with pytest.raises(hr.errors.StepError):
        write(data, tmp_path / "out", mode=mode)
    with pytest.raises(PlanChanged):
        write(numbers(60, 10), tmp_path / "out", mode=mode)
    flag.touch()
    result = write(data, tmp_path / "out", mode=mode)
    assert result.rows == 60 and result.resumed
    assert [row["id"] for row in hr.read_parquet(tmp_path / "out")] == list(range(60))


def test_a_part_that_is_gone_is_not_ignored(tmp_path: Path) -> None:
    write(numbers(4, 2), tmp_path)
    os.unlink(min(tmp_path.glob("part-*")))
    with pytest.raises(PlanChanged):
        write(numbers(6, 2), tmp_path, mode="ignore")
    assert write(numbers(4, 2), tmp_path, mode="ignore").rows == 4
    assert hr.read_parquet(tmp_path).count() == 4


def test_appending_is_refused() -> None:
    with pytest.raises(ArgumentError, match="an output is one run here"):
        hr.range(3).write_parquet("x", mode="append")
