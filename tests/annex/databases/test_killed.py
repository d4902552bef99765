"""The driver is killed between filling the table and committing, and after committing: no row is lost or doubled."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import forked
import headrace as hr
from annex.databases.conftest import Store, of_stores
from headrace.core import failpoints
from headrace.sources.range import RangeSource

JOB = """
import sys
from annex.databases.test_killed import job
from headrace.core import failpoints

failpoints.activate({sys.argv[1]: f"kill@{sys.argv[2]}"})
job(sys.argv[3], sys.argv[4])
"""


def job(uri: str, output: str, mode: str = "append") -> hr.Result:
    data = hr.Dataset.from_source(RangeSource(100, rows_per_split=25))
    return data.with_options(engine="inline", shard_rows=25).write_sql("t", uri, output=output, mode=mode)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("store", "at"),
    of_stores([("table.filled", 2), ("publish.rename", 1), ("publish.renamed", 4)]),
    indirect=["store"],
)
def test_each_row_is_in_the_table_once(store: Store, tmp_path: Path, at: tuple[str, int]) -> None:
    point, passage = at
    store.run("CREATE TABLE other (x BIGINT)")
    out = str(tmp_path / "out")
    command = [sys.executable, "-c", JOB, point, str(passage), store.uri, out]
    tests = str(Path(__file__).parents[2])
    ended = forked.run(command, cwd=tests, timeout=120)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert point in failpoints.POINTS
    committed = 25 * (1 if point == "table.filled" else passage)
    assert store.run("SELECT count(*) FROM t") == [(committed,)]
    assert job(store.uri, out).rows == 100
    assert sorted(store.run("SELECT id FROM t")) == [(i,) for i in range(100)]
