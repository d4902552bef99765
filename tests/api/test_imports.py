"""Start-up is imports: what is not needed is not imported, in the driver or in a worker."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

HEAVY = ["pandas", "torch", "ray", "rich", "pyarrow.dataset", "polars", "duckdb", "typer", "sklearn"]


@pytest.fixture
def script(script: Callable[..., Any]) -> Callable[..., Any]:
    """What is imported is looked at, so a script is a new interpreter."""
    return partial(script, fresh=True)


def test_building_a_plan_imports_little(script: Callable[..., Any]) -> None:
    ended = script(
        f"""
        import sys
        import headrace as hr

        assert "numpy" not in sys.modules and "pyarrow" not in sys.modules, "even these can wait"
        data = hr.range(10).map_batches(lambda batch: batch).filter(lambda row: True).limit(3)
        assert not set({HEAVY!r}) & set(sys.modules), set({HEAVY!r}) & set(sys.modules)
        print("fine")
        """
    )
    assert (ended.code, ended.out) == (0, "fine\n"), ended.err


@pytest.mark.parametrize("source", ["range(10)", "read_parquet('in')", "read_csv('in')"])
def test_the_first_worker_starts_before_the_driver_imports_the_rest(
    script: Callable[..., Any], source: str
) -> None:
    ended = script(
        f"""
        import sys
        import headrace as hr
        from headrace.engines.local.spawner import Spawner

        def worker(*_):
            rooms = ["numpy", "pyarrow", "pathlib", "urllib", "json", "zipfile"]
            rooms += [f"headrace.{{room}}" for room in ("driver", "worker", "output", "observers", "sinks")]
            print([room for room in rooms if room in sys.modules])
            sys.exit()

        Spawner.worker = worker
        hr.{source}.map_batches(lambda batch: batch).predict(len, inputs=["id"], output="x").write_parquet("out")
        """
    )
    assert (ended.code, ended.out) == (0, "[]\n"), ended.err


def test_a_job_without_pandas_never_imports_it(script: Callable[..., Any]) -> None:
    ended = script(
        f"""
        import datetime, sys
        import numpy as np
        import pyarrow as pa, pyarrow.parquet as pq
        import pyarrow.compute as pc
        import headrace as hr

        HEAVY = {HEAVY!r}
        n = 40_000
        numbers = pa.Array.from_buffers(pa.int64(), n, [None, pa.py_buffer(np.arange(n))])
        when = pa.Array.from_buffers(pa.timestamp("ns"), n, [None, pa.py_buffer(np.arange(n) * 1000)])
        for part in range(3):
            pq.write_table(pa.Table.from_arrays([numbers, when], names=["id", "when"]), f"in-{{part}}.parquet")
        pandas_before = "pandas" in sys.modules

        class Model:
            def __call__(self, batch):
                n = len(batch["id"])
                return {{
                    "id": batch["id"],
                    "half": batch["id"] / 2,
                    "keep": batch["id"] % 100 == 0,
                    "vector": np.zeros((n, 3), np.float32),
                    "text": [str(i) for i in batch["id"]],
                    "maybe": [None, *range(n - 1)],
                    "when": batch["when"],
                }}

        def rows(row):
            ours = {{"headrace.options", "headrace.plan.verb_options", "headrace.session.write"}}  # for the driver
            seen = sorted((set(HEAVY) | ours) & set(sys.modules))
            day = datetime.date(2020, 1, 1)
            return {{**row, "list": [1, 2], "dict": {{"a": None, "b": [0.5]}}, "day": day, "seen": ",".join(seen)}}

        data = (
            hr.read_parquet("in-*.parquet")
            .map_batches(Model)
            .filter(expr=pc.field("keep"))
            .map(rows)
            .filter(lambda row: row["seen"] == "" or print("worker imported", row["seen"]))
            .flat_map(lambda row: [row])
        )
        result = data.drop_columns(["seen"]).write_parquet("out")
        assert result.rows == 1200, result.rows
        assert hr.read_parquet("out").count() == 1200
        assert len(hr.read_parquet("out").take(5)) == 5
        for batch in hr.read_parquet("out").iter_batches(batch_size=500):
            assert batch["vector"].shape[1] == 3
        assert hr.read_parquet("out").limit(7).to_arrow().num_rows == 7
        if not pandas_before:
            assert not set(HEAVY) & set(sys.modules), set(HEAVY) & set(sys.modules)
        print("fine", pandas_before)
        """
    )
    assert (ended.code, ended.err) == (0, "")
    assert ended.out == "fine False\n"


def test_every_public_name_is_there() -> None:
    import headrace as hr

    assert sorted(hr.__all__) == list(hr.__all__)
    assert all(getattr(hr, name) is not None for name in hr.__all__)
    assert set(dir(hr)) >= set(hr.__all__)


def test_what_type_checkers_see_is_what_is_there() -> None:
    import headrace as hr
    from headrace import predictors
    from headrace.accumulators import METRICS
    from headrace.readers import FUNCTIONS

    (block,) = (node for node in ast.parse(Path(hr.__file__).read_text()).body if isinstance(node, ast.If))
    found = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    stars = {node.module for node in found if node.names[0].name == "*"}
    readers = {*FUNCTIONS.values()}
    assert stars == {"headrace.accumulators", *readers}
    named = {each.asname: node.module for node in found for each in node.names if each.name != "*"}
    rooms = {name: predictors.predictor_named(name).__module__ for name in predictors.predictor_names()}
    homes = {name: home for home, names in hr._HOMES.items() for name in names}
    assert named == {**rooms, **homes, **dict.fromkeys(hr._MODULES, "headrace")}
    begin = {name: home for home in readers for name in importlib.import_module(home).__all__}
    assert begin == FUNCTIONS
    assert set(hr.__all__) == {*named, *METRICS.ours, *begin, "__version__"}
    assert all(METRICS.get(name).__name__ == name for name in METRICS.ours)
    assert set(importlib.import_module("headrace.accumulators").__all__) == set(METRICS.ours)


def test_numbers_in_text_are_read_without_pandas(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import sys
        import headrace as hr

        texts = {"a.json": '{"x": 1.5, "y": [0.5, null]}\\n{"x": null}\\n', "a.csv": "x,y\\n1.5,2\\n,3.5\\n"}
        for name, text in texts.items():
            with open(name, "w") as file:
                file.write(text)
        sources = hr.read_json("a.json"), hr.read_csv("a.csv")
        print([data.take_all()[0]["x"] for data in sources], "pandas" in sys.modules)
        """
    )
    assert (ended.code, ended.out) == (0, "[1.5, 1.5] False\n"), ended.err
