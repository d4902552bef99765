"""The command line that a process carries out."""

from __future__ import annotations

from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import PlanError
from headrace.session import invocation


def test_one_command_within_another(tmp_path: Path) -> None:
    """``headrace resume`` carries another command out; afterwards it is the present one again."""
    assert invocation.current() is None
    with invocation.running(["resume", "out"]) as outer:
        with invocation.running(["run", "job.py", "--json"], origin=tmp_path) as inner:
            assert invocation.current() is inner and inner.wants_json
            hr.range(3).write_parquet(tmp_path / "out")
        assert invocation.current() is outer and not outer.wants_json
    assert invocation.current() is None
    assert [result.rows for result in inner.results] == [3] and not outer.results
    assert inner.opened is not None
    root, run = inner.opened
    known = invocation.recorded(root / "_headrace" / run)
    assert known is not None and known["argv"] == ["run", "job.py", "--json"]


def test_flags_of_the_script_are_not_of_the_command() -> None:
    with invocation.running(["run", "job.py", "--", "--json"]) as command:
        assert not command.wants_json


def test_writing_is_refused_meanwhile(tmp_path: Path) -> None:
    with invocation.running(["explain", "job.py"]) as command:
        with command.without_writing("not now"), pytest.raises(PlanError, match="not now"):
            hr.range(3).write_parquet(tmp_path / "out")
        assert hr.range(3).write_parquet(tmp_path / "out").rows == 3
