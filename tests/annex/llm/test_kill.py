"""A job that is killed while it asks pays twice for what was under way, and for nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter

import pytest

import headrace as hr
from forked import Forked
from headrace.annex.report.follow import Follower
from headrace.testing import FakeLLMServer

JOB = """
import sys, headrace as hr
rows = hr.from_items([{"i": i} for i in range(300)])
asked = rows.prompt("{i}", hr.llm.Endpoint(sys.argv[1], "m", max_in_flight=8))
asked.with_options(engine="local", workers=1, progress=False).write_parquet(sys.argv[2])
"""


@pytest.mark.local
def test_a_killed_job_asks_again_only_for_what_was_under_way(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    killed_at = [80, 170]
    jobs: list[Forked] = []

    def answer(prompt):
        if killed_at and len(server.requests) >= killed_at[0]:
            killed_at.pop(0)
            os.killpg(jobs[-1].pid, signal.SIGKILL)  # driver and workers, at one moment
        return prompt

    with FakeLLMServer(answer, latency=0.002) as server:
        for expected in (-signal.SIGKILL, -signal.SIGKILL, 0):
            command = [sys.executable, "-c", JOB, server.url, str(tmp_path / "out")]
            jobs.append(Forked(command, workers=True, start_new_session=True))
            assert jobs[-1].wait() == expected
    asked = Counter(each["messages"][0]["content"] for each in server.requests)
    assert set(asked) == {str(i) for i in range(300)}
    assert sum(asked.values()) - 300 <= 2 * 8
    table = hr.read_parquet(tmp_path / "out").to_arrow()
    assert table["i"].to_pylist() == list(range(300))
    assert table["answer"].to_pylist() == [str(i) for i in range(300)]
    told = Follower(tmp_path / "out").poll().data()["language_model"]
    assert (told["rows"], told["prompt_tokens"], told["completion_tokens"]) == (300, 300, 300)
    assert told["lengths"] == [0, 300] and told["rows_failed"] == 0
    paid = told["paid"]
    assert 300 <= paid["answers"] <= 302  # two of them at most between being counted and being kept
    assert paid["answers"] + paid["unanswered"] >= len(server.requests) and paid["unanswered"] <= 2 * 8
