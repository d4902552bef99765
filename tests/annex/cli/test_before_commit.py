"""A run that ends before it has committed anything: it is told of, and stands in nobody's way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.annex.cli.app import carry_out
from headrace.annex.report.follow import Follower
from headrace.dataset.dataset import Dataset
from headrace.errors import HeadraceError, StepError, UnknownColumn

Step = Callable[[dict[str, Any]], dict[str, Any]]
ENGINES = ["inline", "local"]


def my_mistake(row: dict[str, Any]) -> dict[str, Any]:
    raise ZeroDivisionError("a mistake of mine")


def mended(row: dict[str, Any]) -> dict[str, Any]:
    return {"twice": 2 * row["id"]}


def somebody_ends_it(row: dict[str, Any]) -> dict[str, Any]:
    raise KeyboardInterrupt


def data(step: Step, **options: Any) -> Dataset:
    return hr.range(100).map(step).with_options(**{"engine": "inline", "progress": False, **options})


def fails(data: Dataset, out: Path, error: Any = StepError, **options: Any) -> None:
    with pytest.raises(error):
        data.write_parquet(out, **options)


def home(out: Path) -> Path:
    """Return the folder of the only run."""
    (found,) = (path for path in (out / "_headrace").iterdir() if path.is_dir())
    return found


def said(capsys: pytest.CaptureFixture[str], *argv: Any) -> tuple[int, dict[str, Any]]:
    code = carry_out([*map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_report_has_the_users_own_traceback(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    fails(data(my_mistake, engine=engine), out)
    page, record = (home(out) / "report.html").read_text(), (home(out) / "events.jsonl").read_text()
    last = json.loads(record.splitlines()[-1])
    assert last["event"] == "finished" and last["error"].startswith("StepError: map(my_mistake) raised")
    assert "in my_mistake\n" in last["trace"] and last["trace"].endswith(
        "ZeroDivisionError: a mistake of mine"
    )
    assert "headrace/worker" not in last["trace"]
    for words in ("Failed", "ZeroDivisionError: a mistake of mine", "in my_mistake", "no rows were written"):
        assert words in page, words
    code, told = said(capsys, "status", out)
    assert (code, told["status"], told["rows_written"], told["shards_done"]) == (1, "failed", 0, 0)
    assert told["report"] == str(home(out) / "report.html")
    assert not hr.verify(out).good and hr.verify(out).state == "unfinished"


def test_an_interrupted_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    fails(data(somebody_ends_it, progress=True), out, KeyboardInterrupt)
    assert "Interrupted; no rows were saved yet. Run the same command again" in capsys.readouterr().err
    code, told = said(capsys, "status", out)
    assert (code, told["status"]) == (1, "interrupted")
    assert "; no rows were written." in (home(out) / "report.html").read_text()


@pytest.mark.parametrize("mode", ["resume", "overwrite"])
def test_mended_code_is_not_refused(mode: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fails(data(my_mistake), out)
    result = data(mended).write_parquet(out, mode=mode)
    assert (result.rows, result.run) == (100, home(out).name)
    assert pq.read_table(out).column("twice").to_pylist() == list(range(0, 200, 2))
    assert hr.verify(out).good and "Complete" in result.report.read_text()


def test_another_plan_is_not_refused(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fails(data(my_mistake), out)
    result = hr.range(7).select_columns(["id"]).with_options(progress=False).write_csv(out)
    assert result.rows == 7 and hr.verify(out).good and not list(out.glob("*.parquet"))


def test_the_same_command_goes_on_and_the_report_knows_of_both(tmp_path: Path) -> None:
    out, flag = tmp_path / "out", tmp_path / "flag"

    def once(row: dict[str, Any]) -> dict[str, Any]:
        if not flag.exists():
            flag.touch()
            raise OSError("not yet")
        return row

    fails(data(once), out)
    failed = home(out)
    result = data(once).write_parquet(out)
    assert result.rows == 100 and home(out) == failed and hr.verify(out).good
    assert Follower(out).poll().data()["drivers"] == 2


def test_input_files_as_they_are_now_count(tmp_path: Path) -> None:
    out, folder = tmp_path / "out", tmp_path / "in"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2, 0]}), folder / "a.parquet")

    def inverse(row: dict[str, Any]) -> dict[str, Any]:
        return {"x": 1 / row["id"]}

    def run() -> Dataset:
        return hr.read_parquet(folder).map(inverse).with_options(engine="inline", progress=False)

    fails(run(), out)
    pq.write_table(pa.table({"id": [1, 2, 4, 5]}), folder / "a.parquet")
    pq.write_table(pa.table({"id": [10]}), folder / "b.parquet")
    result = run().write_parquet(out)
    assert (result.rows, result.left_out) == (5, ())


def test_other_options_count_as_well(tmp_path: Path) -> None:
    """What a message told to try, such as smaller shards, must have an effect."""
    out = tmp_path / "out"
    fails(hr.range(100_000).map(my_mistake).with_options(engine="inline", progress=False), out)
    anew = hr.range(100_000).map(my_mistake).with_options(engine="inline", progress=False, shard_rows=10_000)
    fails(anew, out)
    assert Follower(out).poll().data()["shards"] > 5


def test_an_overwrite_that_fails_leaves_the_old_output_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    old = data(mended).write_parquet(out)
    fails(data(my_mistake), out, mode="overwrite")
    assert pq.read_table(out).num_rows == 100 and hr.verify(out).good
    code, told = said(capsys, "status", out)
    assert (code, told["status"]) == (1, "failed") and told["run"] != old.run
    assert data(mended).write_parquet(out).seconds == old.seconds, "nothing to do"


def test_clean_knows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    fails(data(my_mistake), out)
    code, told = said(capsys, "clean", out)
    assert (code, told["items"]) == (0, [])
    code, told = said(capsys, "clean", out, "--unfinished", "--yes")
    (item,) = told["items"]
    assert item["why"] == "the record and report of a run that ended before it had written anything"
    assert code == 0 and not (out / "_headrace").exists()


def test_a_plan_that_is_refused_leaves_no_trace(tmp_path: Path) -> None:
    fails(hr.range(3).map(mended).select_columns(["id"]), tmp_path / "out", UnknownColumn)
    assert not (tmp_path / "out").exists()


def test_values_that_may_not_be_shown_are_in_neither(tmp_path: Path) -> None:
    def tells(row: dict[str, Any]) -> dict[str, Any]:
        raise ValueError(f"secret {row['id']}")

    out = tmp_path / "out"
    fails(data(tells, show_data=False), out, HeadraceError)
    for name in ("report.html", "events.jsonl"):
        assert "secret 0" not in (home(out) / name).read_text()
