"""A run behind a query whose output is in a store, where nothing of the query outlives the driver."""

import signal
import subprocess
import sys

import pytest

import headrace as hr
from forked import Forked

pytest.importorskip("duckdb")
job = pytest.importorskip("annex.queries.job")
ORDERED = "SELECT id, name, km FROM rides JOIN zones USING (zone) ORDER BY id"


@pytest.mark.annex
def test_a_killed_run_goes_on_if_the_result_is_the_same(bucket, tmp_path):
    job.write_input(tmp_path)
    out = f"{bucket.url}/out"
    call = f"job.main(*sys.argv[1:], text={ORDERED!r}, out={out!r})"
    text = f"import sys; from annex.queries import job; {call}"
    words = [sys.executable, "-c", text, str(tmp_path), "store.appended=kill@2"]
    process = Forked(words, stderr=subprocess.PIPE, also="duckdb annex.queries.job")
    _, err = process.communicate(timeout=100)
    assert process.returncode == -signal.SIGKILL, err.decode()
    result = job.dataset(tmp_path, ORDERED).write_parquet(out)
    assert result.resumed and result.rows == len(job.expected())
    assert hr.read_parquet(out).take_all() == job.expected()
    assert job.dataset(tmp_path, ORDERED).write_parquet(out).resumed
