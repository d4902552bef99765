"""A run is recognised by what its functions use; what nobody can compare is named, and never taken for the same."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import NotPicklable, PlanChanged


def _job(function: Callable[[Any], Any], **options: Any) -> hr.Dataset:
    return hr.range(3).map(function, **options)


def test_what_nobody_can_compare_is_named_at_the_start_and_never_the_same(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    with tempfile.TemporaryFile() as held:

        def reads(row: Any) -> Any:
            return {"y": held.name is not None}

        words = r"variable 'held' → a value of type _io\.BufferedRandom"
        with pytest.warns(UserWarning, match=f"cannot be resumed.*{words}.*version="):
            _job(reads).write_parquet(out)
        with pytest.raises(PlanChanged, match=f"{words} is the same as before.*on_change=.*version="):
            _job(reads).write_parquet(out)
        assert _job(reads).write_parquet(out, on_change="continue").resumed
        fresh = str(tmp_path / "fresh")
        _job(reads, version="1").write_parquet(fresh)  # without a word
        assert _job(reads, version="1").write_parquet(fresh).resumed


class OneWay:
    """It pickles, and refuses to be made again."""

    def __reduce__(self) -> Any:
        return (_refuse, ())


def _refuse() -> Any:
    raise TypeError("not without a template")


def test_what_cannot_be_made_again_in_a_worker_is_no_defect_of_ours(tmp_path: Path) -> None:
    value = OneWay()
    with pytest.raises(
        NotPicklable, match=r"made again in a worker: TypeError: not without a template\. Make"
    ):
        job = _job(lambda row: {"y": value is not None}).with_options(engine="local")
        job.write_parquet(str(tmp_path / "out"))


def test_a_cached_function_of_the_program_itself_travels(tmp_path: Path) -> None:
    @functools.lru_cache(maxsize=7)
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def calls(row: Any) -> Any:
        return {"y": fibonacci(30), "size": fibonacci.cache_info().maxsize}

    out = str(tmp_path / "out")
    _job(calls).with_options(engine="local").write_parquet(out)
    assert hr.read_parquet(out).take_all() == [{"y": 832_040, "size": 7}] * 3


def test_a_class_uses_the_values_of_its_program_after_a_run_as_before(tmp_path: Path) -> None:
    program = """
import sys
import headrace as hr

factor = 4

class Model:
    def __call__(self, batch):
        return batch["id"] * factor

ids = hr.range(3).predict(Model, output="y").with_options(engine="inline")
ids.write_parquet(sys.argv[1])
factor = 5
print(Model()({"id": 1}), ids.take(2)[1]["y"])
try:
    ids.write_parquet(sys.argv[1])
except hr.errors.PlanChanged:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "out")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["5", "5", "refused"], done.stderr


def test_a_class_stays_as_it_is_where_its_objects_come_back(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import headrace as hr

factor = 4

class Thing:
    def __init__(self, number):
        self.number = number

    def value(self):
        return self.number * factor

class Odd(Exception):
    def value(self):
        return factor

def odd():
    raise Odd

value, odd_value = Thing.value, Odd.value
rows = hr.range(3).map(lambda row: {"thing": Thing(row["id"])}).map_batches(lambda batch: batch, concurrency=1)
(first, second, third) = rows.with_options(workers=2).iter_rows()
with hr.connect(workers=1) as engine:
    fourth = engine.submit(lambda: Thing(7)).result()
    try:
        engine.submit(odd).result()
    except Odd as error:
        print(error.value(), Odd.value is odd_value)
factor = 5
print(third["thing"].value(), fourth.value(), Thing.value is value)
""")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["4 True", "10 35 True"], done.stderr
