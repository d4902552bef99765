"""Rows that fail: reported, set aside, or kept with a null; the others come out as if those had never been there."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, StepError, TooManyErrors

ROWS = 3_000
BAD = [0, 7, 8, 999, 1000, 1500, 2999]

Batch = dict[str, Any]


def check(ids: Any) -> None:
    found = np.isin(ids, BAD)
    if np.any(found):
        raise ValueError(f"cannot do row {np.asarray(ids)[found][0]}")


def batches(batch: Batch) -> Batch:
    check(batch["id"])
    return {"id": batch["id"], "y": batch["id"] * 2.0}


def yields(batch: Batch) -> Any:
    yield {"id": batch["id"][:1], "y": batch["id"][:1] * 2.0}
    check(batch["id"])
    if len(batch["id"]) > 1:
        yield {"id": batch["id"][1:], "y": batch["id"][1:] * 2.0}


def row(row: dict[str, Any]) -> dict[str, Any]:
    check(row["id"])
    return {"id": row["id"], "y": row["id"] * 2.0}


def rows(given: dict[str, Any]) -> Any:
    yield {"id": given["id"], "y": given["id"] * 2.0}
    check(given["id"])


def keep(row: dict[str, Any]) -> bool:
    check(row["id"])
    return True


class Model:
    def __call__(self, batch: Batch) -> Any:
        check(batch["id"])
        return batch["id"] * 2.0


class Short:
    """Gives no result for some rows, without a word."""

    def __call__(self, batch: Batch) -> Any:
        return batch["id"][~np.isin(batch["id"], BAD)] * 2.0


class Several:
    async def __call__(self, batch: Batch) -> Any:
        check(batch["id"])
        return {"y": batch["id"] * 2.0, "z": batch["id"].astype(str)}


Build = Callable[[Dataset], Dataset]

STEPS: dict[str, Build] = {
    "map_batches": lambda d: d.map_batches(batches, batch_size=100),
    "map_batches auto": lambda d: d.map_batches(batches),
    "map_batches yields": lambda d: d.map_batches(yields, batch_size=64),
    "map_batches threads": lambda d: d.map_batches(batches, batch_size=50, max_in_flight=3),
    "map": lambda d: d.map(row),
    "flat_map": lambda d: d.flat_map(rows),
    "predict": lambda d: d.predict(Model, inputs=["id"], output="y", batch_size=128),
    "predict short": lambda d: d.predict(Short, inputs=["id"], output="y", batch_size=100),
    "predict async": lambda d: d.predict({"m": Several}, inputs=["id"], batch_size=100).rename_columns(
        {"m_y": "y"}
    ),
    "two models": lambda d: d.predict({"y": Model, "w": Model}, inputs=["id"]),
    "filter": lambda d: d.filter(keep).predict(lambda b: b["id"] * 2.0, inputs=["id"], output="y"),
    "two stages": lambda d: d.map_batches(batches, batch_size=64, num_cpus=1).predict(
        Model, inputs=["id"], output="p", concurrency=1
    ),
    "late": lambda d: d.map_batches(lambda b: b, num_cpus=1).predict(
        Model, inputs=["id"], output="y", concurrency=1
    ),
}


@pytest.fixture
def source(tmp_path: Path) -> Dataset:
    folder = tmp_path / "in"
    folder.mkdir()
    for i, start in enumerate(range(0, ROWS, 1000)):
        ids = np.arange(start, start + 1000)
        table = pa.table({"id": ids, "text": ids.astype(str), "unused": ids * 1.5})
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=250)
    return hr.read_parquet(str(folder)).with_options(progress=False, workers=2, shard_rows=700)


def ids_in(out: Path) -> list[int]:
    return pq.read_table(out).column("id").to_pylist()


@pytest.mark.parametrize("name", STEPS)
def test_rejected_rows_leave_the_others_as_they_are(name: str, source: Dataset, tmp_path: Path) -> None:
    data = STEPS[name](source)
    result = data.with_options(on_error="reject").write_parquet(tmp_path / "out")
    good = [i for i in range(ROWS) if i not in BAD]
    assert ids_in(tmp_path / "out") == good
    assert pq.read_table(tmp_path / "out").column("y").to_pylist() == [2.0 * i for i in good]
    assert (result.rows, result.rejected) == (ROWS - len(BAD), len(BAD))
    assert result.ledger.read == result.ledger.written + result.ledger.rejected
    assert sum(result.ledger.rejects) == len(BAD)

    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert rejected.column("id").to_pylist() == BAD
    assert rejected.column("text").to_pylist() == [str(i) for i in BAD], "what no step reads is there as well"
    assert rejected.column("unused").to_pylist() == [i * 1.5 for i in BAD]
    assert [Path(file).name for file in rejected.column("_file").to_pylist()] == [
        f"{i // 1000}.parquet" for i in BAD
    ]
    assert rejected.column("_row").to_pylist() == [i % 1000 for i in BAD]
    kind = "BadReturn" if name == "predict short" else "ValueError"
    assert set(rejected.column("_error_type").to_pylist()) == {kind}
    if kind == "ValueError":
        assert rejected.column("_error").to_pylist() == [f"cannot do row {i}" for i in BAD]
    assert set(rejected.column("_attempts").to_pylist()) == {1}

    again = data.with_options(on_error="raise").write_parquet(tmp_path / "out")
    assert (again.rows, again.rejected, again.resumed) == (result.rows, result.rejected, True)


@pytest.mark.parametrize("name", [name for name in STEPS if name not in ("filter", "two stages")])
def test_rows_that_are_kept_have_a_null(name: str, source: Dataset, tmp_path: Path) -> None:
    result = STEPS[name](source).with_options(on_error="null").write_parquet(tmp_path / "out")
    assert ids_in(tmp_path / "out") == list(range(ROWS))
    expected = [None if i in BAD else 2.0 * i for i in range(ROWS)]
    assert pq.read_table(tmp_path / "out").column("y").to_pylist() == expected
    assert (result.rows, result.rejected) == (ROWS, 0)
    times = 2 if name == "two models" else 1
    assert result.ledger.nulled == times * len(BAD)
    assert not (tmp_path / "out" / "_rejected").exists()


def test_a_filter_that_fails_sets_the_row_aside_rather_than_null_it(source: Dataset, tmp_path: Path) -> None:
    result = source.filter(keep).with_options(on_error="null").write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected, result.ledger.nulled) == (ROWS - len(BAD), len(BAD), 0)


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "inline") for name in STEPS),
        *((name, "local") for name in ("map", "predict async", "two stages")),
    ],
)
def test_the_first_bad_row_is_named(name: str, engine: str, source: Dataset, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"0\.parquet, row 0: .*id=0|returned \d+ rows for \d+") as caught:
        STEPS[name](source).with_options(engine=engine, workers=1).write_parquet(tmp_path / "out")
    if name != "predict short":
        assert "ValueError: cannot do row 0" in str(caught.value)


def test_values_are_hidden(source: Dataset, tmp_path: Path) -> None:
    data = source.predict(Model, inputs=["id"], output="y").with_options(show_data=False)
    with pytest.raises(StepError) as caught:
        data.write_parquet(tmp_path / "out")
    told = f"{caught.value} {caught.value.__cause__}"
    assert "cannot do row …" in told and "row 0." in told and "id=0" not in told
    result = data.with_options(on_error="reject").write_parquet(tmp_path / "out2")
    assert "cannot do row" not in result.summary and "ValueError" in result.summary


def test_few_calls_for_few_rows(tmp_path: Path) -> None:
    calls: list[int] = []

    def fails(batch: Batch) -> Any:
        calls.append(len(batch["id"]))
        check(batch["id"])
        return batch["id"]

    data = hr.range(1024).predict(fails, inputs=["id"], output="y", batch_size=1024)
    result = data.with_options(engine="inline", on_error="reject", progress=False).write_parquet(
        tmp_path / "out"
    )
    assert result.rejected == 5
    assert len(calls) <= 1 + 2 * 5 * 10 and sum(calls) <= 1024 * 10


@pytest.mark.parametrize("on_error", ["reject", "null"])
def test_every_row_fails(on_error: Any, tmp_path: Path) -> None:
    def fails(batch: Batch) -> Any:
        raise RuntimeError("never")

    data = hr.range(300).predict(fails, inputs=["id"], output="y", batch_size=100)
    data = data.with_options(on_error=on_error, progress=False, shard_rows=100)
    result = data.write_parquet(tmp_path / "out")
    kept = 300 if on_error == "null" else 0
    assert (result.rows, result.rejected, result.ledger.nulled) == (kept, 300 - kept, kept)
    assert hr.read_rejected(tmp_path / "out").count() == 300 - kept


def test_what_fails_only_together_is_no_bad_row(tmp_path: Path) -> None:
    def same(batch: Batch) -> Any:
        if len(set(batch["id"] // 100)) > 1:
            raise ValueError("all rows of a batch must be of one hundred")
        return batch["id"]

    data = (
        hr.range(1000).predict(same, inputs=["id"], output="y", batch_size=250).with_options(progress=False)
    )
    result = data.with_options(on_error="reject").write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (1000, 0)
    assert pq.read_table(tmp_path / "out").column("y").to_pylist() == list(range(1000))


@pytest.mark.parametrize(("most", "fails"), [(7, False), (6, True), (0.01, False), (0.001, True), (0, True)])
@pytest.mark.parametrize("name", ["predict", "late"])
def test_too_many(name: str, most: float, fails: bool, source: Dataset, tmp_path: Path) -> None:
    data = STEPS[name](source).with_options(on_error="reject", max_errors=most)
    if not fails:
        assert data.write_parquet(tmp_path / "out").rejected == len(BAD)
        return
    with pytest.raises(TooManyErrors, match=r"rows read so far failed, more than max_errors=.*ValueError"):
        data.write_parquet(tmp_path / "out")
    more = data.with_options(max_errors=None).write_parquet(tmp_path / "out")
    assert (more.rows, more.rejected) == (ROWS - len(BAD), len(BAD))


def test_reading_says_what_is_left_out(source: Dataset) -> None:
    data = STEPS["predict"](source).with_options(on_error="reject")
    with pytest.warns(UserWarning, match=r"7 of 3,000 rows failed and are left out: 7 in predict\(Model\)"):
        assert data.to_arrow().num_rows == ROWS - len(BAD)
    with pytest.warns(UserWarning, match="7 of 3,000"):
        assert data.count() == ROWS - len(BAD)
    with pytest.warns(UserWarning, match=r"3 of 1,000 rows failed and are left out"):
        assert len(data.take(3)) == 3  # of a batch with rows 0, 7 and 8
    assert len(source.filter(expr="id > 8").take(3)) == 3


def test_rows_that_nobody_can_tell_apart_any_more(source: Dataset, tmp_path: Path) -> None:
    twice = source.map_batches(lambda b: {"id": np.repeat(b["id"], 2)}, batch_size=500)
    result = (
        twice.map_batches(batches, batch_size=500)
        .with_options(on_error="reject")
        .write_parquet(tmp_path / "out")
    )
    assert result.rejected == 2 * len(BAD) and result.rows == 2 * (ROWS - len(BAD))
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert rejected.column("_row").null_count == rejected.num_rows == 2 * len(BAD)
    assert rejected.column("id").null_count == rejected.num_rows


def test_an_expression(tmp_path: Path) -> None:
    data = hr.from_items([{"n": str(i) if i % 10 else "none"} for i in range(50)])
    cast = data.filter(expr=pc.field("n").cast(pa.int64()) > 25).with_options(progress=False)
    with pytest.raises(StepError, match="cannot be evaluated"):
        cast.write_parquet(tmp_path / "raise")
    result = cast.with_options(on_error="reject").write_parquet(tmp_path / "out")
    assert (result.rejected, result.rows) == (5, 22)
    assert hr.read_rejected(tmp_path / "out").to_arrow().column("n").to_pylist() == ["none"] * 5


class Flaky:
    """Fails a few times before each batch succeeds; asynchronously if asked to."""

    def __init__(self, times: int, kind: type[Exception] = TimeoutError) -> None:
        self.times = times
        self.kind = kind
        self.calls = 0

    def __call__(self, batch: Batch) -> Any:
        self.calls += 1
        if self.calls % (self.times + 1):
            raise self.kind("try later")
        return batch["id"] * 2.0


class FlakyRow(Flaky):
    def __call__(self, row: dict[str, Any]) -> Any:
        return {"id": row["id"], "y": super().__call__({"id": np.array([row["id"]])})[0]}


@pytest.mark.parametrize("shape", ["batch", "row", "in flight"])
def test_calls_that_fail_for_a_while(shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.worker.user_code.FIRST_RETRY_SECONDS", 0.0)
    data = hr.range(60).with_options(engine="inline", progress=False, retry_on=(TimeoutError, KeyError))
    if shape == "row":
        data = data.map(FlakyRow, fn_constructor_args=[2])
    else:
        more: dict[str, Any] = {"max_in_flight": 2} if shape == "in flight" else {}
        data = data.predict(Flaky, inputs=["id"], output="y", fn_constructor_args=[2], batch_size=20, **more)
    result = data.write_parquet(tmp_path / "out")
    assert pq.read_table(tmp_path / "out").column("y").to_pylist() == [2.0 * i for i in range(60)]
    calls = 120 if shape == "row" else 6
    assert re.search(rf"{calls} calls of \w+\(Flaky(Row)?\) tried again after TimeoutError", result.summary)


def test_other_errors_are_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.worker.user_code.FIRST_RETRY_SECONDS", 0.0)
    calls: list[int] = []

    def fails(batch: Batch) -> Any:
        calls.append(len(batch["id"]))
        raise ValueError("no")

    data = hr.range(1).map_batches(fails).with_options(engine="inline", progress=False, retry_on=TimeoutError)
    with pytest.raises(StepError, match="ValueError: no"):
        data.write_parquet(tmp_path / "out")
    assert calls == [1]
    calls.clear()
    with pytest.raises(StepError, match="ValueError: no"):
        data.with_options(retry_on=ValueError, max_retries=4).write_parquet(tmp_path / "out")
    assert calls == [1] * 5


def test_overwrite_takes_the_rejected_along(source: Dataset, tmp_path: Path) -> None:
    STEPS["predict"](source).with_options(on_error="reject").write_parquet(tmp_path / "out")
    clean = source.predict(lambda b: b["id"], inputs=["id"], output="y")
    clean.with_options(mode="overwrite").write_parquet(tmp_path / "out")
    assert not (tmp_path / "out" / "_rejected").exists()
    assert hr.read_rejected(tmp_path / "out").count() == 0


def test_an_endpoint_that_is_down_is_not_asked_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.worker.user_code.FIRST_RETRY_SECONDS", 0.0)
    calls: list[int] = []

    def down(batch: Batch) -> Any:
        calls.append(len(batch["id"]))
        raise TimeoutError("no answer")

    data = hr.range(4).map_batches(down, batch_size=4)
    data = data.with_options(engine="inline", progress=False, retry_on=[TimeoutError], max_retries=3)
    result = data.with_options(on_error="reject").write_parquet(tmp_path / "out")
    asked = [rows for rows in calls if rows]  # no rows at all: for the columns of an output without any
    assert asked == [4] * 4 + [2] * 2 + [1] * 4 + [2] * 2 + [1] * 4
    assert result.rejected == 4
    assert "no row was written: what fails may be the function, or its batch_size" in result.summary


def test_rows_set_aside_have_the_source_s_columns_even_if_there_are_none(tmp_path: Path) -> None:
    data = hr.from_items([{"id": 1, "text": "a"}]).with_options(
        engine="inline", on_error="reject", progress=False
    )
    data.select_columns(["id"]).write_parquet(tmp_path / "out")
    rejected = hr.read_rejected(tmp_path / "out")
    assert rejected.select_columns(["id", "text", "_error"]).take_all() == []
    again = rejected.drop_columns([name for name in rejected.columns() if name.startswith("_")])
    again.with_options(progress=False).write_parquet(tmp_path / "again")
    assert pq.read_table(tmp_path / "again").schema.names == ["id", "text"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_errors": float("inf")}, "a whole number of rows, or a share"),
        ({"batch_timeout": float("nan")}, "a number above zero"),
        (
            {"batch_size": 5},
            r"batch_size= is not an option of the run: give it to the step, such as map_batches",
        ),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        hr.range(3).with_options(**options)


def test_an_option_given_to_a_verb(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"on_error=.*with_options"):
        hr.range(3).write_parquet(tmp_path / "out", on_error="reject")  # type: ignore[call-arg]
    hr.range(3).with_options(max_retries=0, workers=np.int64(1), progress=False).write_parquet(
        tmp_path / "out"
    )


def test_a_timeout_holds_for_a_reader_of_few_rows_and_not_in_this_process() -> None:
    def hangs(batch: Batch) -> Any:
        if 2 in batch["id"]:
            time.sleep(600)
        return batch

    data = hr.range(5).map_batches(hangs, batch_size=1)
    data = data.with_options(engine="local", on_error="reject", batch_timeout=2.0)
    with pytest.warns(UserWarning, match="1 of 5 rows failed"):
        assert [row["id"] for row in data.take_all()] == [0, 1, 3, 4]
    with pytest.warns(UserWarning, match="no effect with engine='inline'"):
        hr.range(1).with_options(engine="inline", batch_timeout=1.0).take_all()


def for_a_row(batch: Batch) -> Batch:
    """Take a batch for a row: one row at a time it gives a number, or a column by chance."""
    return {"y": 1 if batch["id"] > 3 else batch["id"]}


def asks_for_another_column(batch: Batch) -> Batch:
    return {"y": batch["nope"]}


@pytest.mark.parametrize("on_error", ["reject", "null"])
def test_a_row_that_fails_otherwise_than_its_batch_says_how_the_batch_failed(
    on_error: Any, tmp_path: Path
) -> None:
    data = hr.range(20).with_options(engine="inline", progress=False, on_error=on_error)
    result = data.map_batches(for_a_row).write_parquet(tmp_path / "out")
    if on_error == "null":
        assert result.ledger.nulled == 16
        return
    assert result.rejected == 16
    for row in hr.read_rejected(tmp_path / "out").take_all():
        assert re.search(
            r"^column 'y': .*\. The batch as a whole failed with ValueError: The truth value .*use map", row["_error"]
        )  # fmt: skip


def test_a_batch_of_which_every_row_fails_alike_says_that_the_function_may_be_at_fault(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    data = hr.range(20).with_options(engine="inline", progress=False, on_error="reject")
    with pytest.warns(
        UserWarning, match=r"All 20 rows of the batch failed like this, so the error may be in"
    ):
        data.map_batches(asks_for_another_column).take_all()
    with pytest.raises(TooManyErrors, match=r"All 20 rows of the batch .*The columns that it gets are id\."):
        data.with_options(max_errors=5).map_batches(asks_for_another_column).write_parquet(tmp_path / "out")


def test_rows_that_fail_like_their_batch_say_no_more() -> None:
    data = hr.range(20).with_options(engine="inline", progress=False, on_error="reject")
    with pytest.warns(UserWarning, match=r"such as \"cannot do row 0\"\."):
        data.map_batches(batches).take_all()
