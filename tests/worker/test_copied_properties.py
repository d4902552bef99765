"""Any table, cut in any row groups, through any plan that carries columns: both ways give the same."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.parquet.files import WAYS, every_type
from crossed import few
from headrace.dataset.dataset import Dataset
from headrace.sinks.parquet_joined import JoinedEncoder
from headrace.worker import copy_choice

from .test_copied_columns import both, doubled

EVERY = every_type(400)
WHOLE = every_type(400, nulls=False)
NAMES = [name for name in EVERY.schema.names if name != "required"]
WITHOUT_DICTIONARIES = [name for name in NAMES if name != "coded"]  # which rejected rows cannot have twice

cases = st.fixed_dictionaries(
    {
        "names": st.lists(st.sampled_from(NAMES), min_size=1, max_size=7, unique=True),
        "rows": st.integers(1, 400),
        "group": st.integers(1, 150),
        "files": st.integers(1, 3),
        "way": st.sampled_from(sorted(WAYS)),
        "seed": st.integers(0, 2**32),
        "steps": st.lists(st.sampled_from(["rename", "drop", "select", "limit", "again"]), max_size=3),
        "bad": st.sampled_from([0, 0, 0, 1, 5]),
        "batch": st.sampled_from([None, 7, 64, 100]),
    }
)


def _written(case: dict[str, Any], folder: Path, chance: random.Random) -> None:
    names = [name for name in case["names"] if not case["bad"] or name in WITHOUT_DICTIONARIES]
    whole = chance.random() < 0.5  # no nulls, and some of the columns cannot have any
    table = (WHOLE if whole else EVERY).select([*names, "required"]).slice(0, case["rows"])
    if whole:
        fields = [
            field.with_nullable(chance.random() < 0.5 or field.name == "none") for field in table.schema
        ]
        table = pa.Table.from_arrays(table.columns, schema=pa.schema(fields))
    cut = [*sorted(chance.randrange(len(table) + 1) for _ in range(case["files"] - 1)), len(table)]
    start = 0
    for number, stop in enumerate(cut):
        path = folder / f"{number}.parquet"
        pq.write_table(
            table.slice(start, stop - start), path, row_group_size=case["group"], **WAYS[case["way"]]
        )
        start = stop


def _plan(case: dict[str, Any], seed: int) -> Any:
    bad = random.Random(seed).sample(range(400), case["bad"])

    def model(batch: dict[str, Any]) -> Any:
        if np.isin(batch["required"], bad).any():
            raise ValueError("bad")
        return batch["required"] * 2

    def build(data: Dataset) -> Dataset:
        chance = random.Random(seed)
        data = data.predict(model, inputs=["required"], output="twice", batch_size=case["batch"])
        names = [*case["names"], "required", "twice"]
        names = [name for name in names if not case["bad"] or name != "coded"]
        for number, step in enumerate(case["steps"]):
            one = chance.choice(names)
            if step == "rename":
                data = data.rename_columns({one: f"new {number}.{one}"})
                names[names.index(one)] = f"new {number}.{one}"
            elif step == "drop" and len(names) > 1:
                data = data.drop_columns([one])
                names.remove(one)
            elif step == "select":
                names = chance.sample(names, chance.randint(1, len(names)))
                data = data.select_columns(names)
            elif step == "limit":
                data = data.limit(chance.randint(1, 400))
            elif step == "again" and "required" in names and f"more {number}" not in names:
                data = data.predict(
                    lambda batch: batch["required"] + 1, inputs=["required"], output=f"more {number}"
                )
                names.append(f"more {number}")
        return data

    return build


def _same(case: dict[str, Any]) -> None:
    chance = random.Random(case["seed"])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_choice, "LEAST_ROWS", 1)
        source = Path(folder) / "in"
        source.mkdir()
        _written(case, source, chance)
        options = {"on_error": "reject", "max_errors": 400} if case["bad"] else {}
        both(source, Path(folder), _plan(case, chance.randrange(2**32)), **options)


@settings(max_examples=few(5), deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
def test_both_roads_give_the_same(case: dict[str, Any]) -> None:
    _same(case)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@settings(max_examples=3_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases)
def test_both_roads_give_the_same_of_many(case: dict[str, Any]) -> None:
    _same(case)


@pytest.mark.parametrize("library", ["duckdb", "polars"])
def test_files_of_other_writers(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = pytest.importorskip(library)
    monkeypatch.setattr(copy_choice, "LEAST_ROWS", 1)
    copied: set[str] = set()
    write_group = JoinedEncoder.write_group

    def counted(self: Any, *arguments: Any) -> None:
        copied.update(self._copied)
        write_group(self, *arguments)

    monkeypatch.setattr(JoinedEncoder, "write_group", counted)
    names = [
        "flag",
        "int8",
        "uint16",
        "int32",
        "int64",
        "double",
        "at_us",
        "day",
        "decimal_15",
        "string",
        "binary",
    ]
    names += ["lists", "struct", "required"]
    table = EVERY.select(names)
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "a.parquet"
    if library == "duckdb":
        connection = module.connect()
        connection.register("t", table)
        connection.execute(f"copy t to '{path}' (format parquet, compression zstd, row_group_size 2048)")
    else:
        module.from_arrow(table).write_parquet(path, row_group_size=130)
    made = both(tmp_path / "in", tmp_path, doubled)
    assert made["required"].to_pylist() == list(range(400))
    assert made.select(names).to_pylist() == pq.read_table(path).select(names).to_pylist()
    assert copied == set(names) - {"decimal_15"}  # which they store as an integer
    part = next((tmp_path / "copied").glob("part-*"))
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    plain = made.drop(["struct"])
    listed = ", ".join(f'"{name}"' for name in plain.schema.names)
    rows = duckdb.sql(f"select {listed} from '{part}'").fetchall()
    assert rows == [tuple(row.values()) for row in plain.to_pylist()]
    assert duckdb.sql(f"select count(*) from '{part}' where int32 = 20").fetchall()[0][0] == sum(
        value == 20 for value in table["int32"].to_pylist()
    )
    assert polars.read_parquet(part).select(plain.schema.names).rows() == rows
