"""Which columns are read: only what steps and the output need, whatever the chain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.plan.compile import columns_read

SCHEMA = pa.schema([(name, pa.int64()) for name in "abcdef"] + [("text", pa.string())])


def model(batch: Any) -> Any:
    return next(iter(batch.values()))


def first(data: hr.Dataset) -> hr.Dataset:
    return data.predict(model, inputs=["a"])


@pytest.mark.parametrize(
    ("chain", "read"),
    [
        (lambda d: d, None),
        (lambda d: d.predict(model), None),
        (lambda d: d.predict(model, inputs=["a"]), None),
        (lambda d: d.predict(model, inputs=["a"], keep="none"), "a"),
        (lambda d: d.predict(model, inputs=["c", "a"], keep=["b"]), "abc"),
        (lambda d: d.predict(model, keep="none"), None),
        (lambda d: first(d).select_columns(["prediction"]), "a"),
        (lambda d: first(d).select_columns(["b", "prediction"]), "ab"),
        (lambda d: first(d).drop_columns(["b", "text"]), "acdef"),
        (lambda d: first(d).drop_columns(["a", "b"]), ["a", "c", "d", "e", "f", "text"]),
        (lambda d: first(d).drop_columns(["prediction"]), None),
        (lambda d: first(d).rename_columns({"b": "x"}).select_columns(["x", "prediction"]), "ab"),
        (
            lambda d: first(d).rename_columns({"b": "x"}).drop_columns(["c"]),
            ["a", "b", "d", "e", "f", "text"],
        ),
        (lambda d: d.predict(model, inputs=["a"], keep=["b", "c"]).select_columns(["c"]), "ac"),
        (
            lambda d: d.predict(
                {"x": model, "y": {"model": model, "inputs": ["b"]}}, inputs=["a"], keep="none"
            ),
            "ab",
        ),
        (
            lambda d: d.predict(
                {"x": model, "y": {"model": model, "inputs": None}}, inputs=["a"], keep="none"
            ),
            None,
        ),
        (lambda d: first(d).predict(model, inputs=["b"], output="q", keep="none"), "ab"),
        (lambda d: first(d).predict(model, inputs=["prediction"], output="q", keep=["c"]), "ac"),
        (lambda d: d.predict(model, inputs=["a"], output="a", replace=True, keep="none"), "a"),
        (lambda d: first(d).map_batches(model, columns=["prediction", "c"]), "ac"),
        (lambda d: first(d).map_batches(model), None),
        (lambda d: first(d).filter(lambda row: True).select_columns(["b"]), None),
        (lambda d: first(d).filter(expr=pc.field("c") > 1).select_columns(["b"]), "abc"),
        (
            lambda d: d.filter(expr=(pc.field("c") > 1) & ~pc.field("d").is_null()).select_columns(["b"]),
            "bcd",
        ),
        (lambda d: d.filter(expr=pc.field("text").isin(["x"])).select_columns(["b"]), ["b", "text"]),
        (lambda d: first(d).filter(expr=pc.field("prediction") > 1).select_columns(["b"]), "ab"),
        (
            lambda d: d.filter(expr=pc.field("c") > 1).drop_columns(["c", "d"]),
            ["a", "b", "c", "e", "f", "text"],
        ),
        (lambda d: first(d).limit(3).select_columns(["b"]), "ab"),
        (lambda d: first(d).drop_columns(["b"]).select_columns(["c"]), "ac"),
        (lambda d: d.select_columns(["a", "b", "c"]).predict(model, inputs=["a"]).drop_columns(["b"]), "abc"),
    ],
)
def test_columns_that_are_read(chain: Any, read: Any) -> None:
    table = pa.Table.from_batches([], SCHEMA)
    steps = chain(hr.from_arrow(table))._plan.steps
    assert columns_read(steps, SCHEMA)[0].columns == (None if read is None else tuple(read))


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_what_is_not_read_may_still_be_named(tmp_path: Path, engine: str) -> None:
    """Columns that a later step leaves out are not read, and the steps before it do not miss them."""
    table = pa.table({name: [1, 2, 3] for name in "abcd"})
    pq.write_table(table, tmp_path / "in.parquet")
    data = hr.read_parquet(tmp_path / "in.parquet").with_options(engine=engine)
    kept = data.predict(model, inputs=["a"], keep=["b", "c"]).select_columns(["c", "prediction"])
    assert kept.to_arrow().column_names == ["c", "prediction"]
    dropped = data.predict(model, inputs=["a"]).drop_columns(["a", "b"])
    assert dropped.to_arrow().column_names == ["c", "d", "prediction"]
    assert data.filter(expr=pc.field("b") > 1).drop_columns(["b", "d"]).to_arrow().to_pydict() == {
        "a": [2, 3],
        "c": [2, 3],
    }


def _bytes_read() -> int:
    """What this process has asked the system to read from files so far."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar")


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts them")
def test_only_bytes_of_needed_columns_leave_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pa.table({f"c{i:02d}": rng.random(100_000) for i in range(40)})
    file = tmp_path / "in.parquet"
    pq.write_table(table, file, row_group_size=25_000, compression="none", use_dictionary=False)
    size = file.stat().st_size
    data = hr.read_parquet(file).with_options(engine="inline")
    read = {}
    for name, plan in {
        "warm": data.predict(model, inputs=["c05"], keep=["c07"]),
        "two": data.predict(model, inputs=["c05"], keep=["c07"]),
        "dropped": data.predict(model, inputs=["c05"]).select_columns(["c07", "prediction"]),
        "filtered": data.filter(expr=pc.field("c09") < 0.5).predict(model, inputs=["c05"], keep="none"),
        "all": data.predict(model, inputs=["c05"]),
    }.items():
        before = _bytes_read()
        for _ in plan.iter_batches(batch_format="pyarrow"):
            pass
        read[name] = (_bytes_read() - before) / size
    assert 2 / 40 <= read["two"] < 2.4 / 40
    assert 2 / 40 <= read["dropped"] < 2.4 / 40
    assert 2 / 40 <= read["filtered"] < 2.4 / 40
    assert 1 <= read["all"] < 1.1
