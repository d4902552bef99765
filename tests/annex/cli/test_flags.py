"""Flags that are no options of the run: they make its observers, and say what its cluster is to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.annex.cli.flags import Flags

Headrace = Callable[..., Any]


def test_a_log_of_a_prediction_and_of_a_script(headrace: Headrace, place: Path) -> None:
    assert headrace("predict", "fares:Fare", "trips/", "-o", "one", "--log", "runs.jsonl").code == 0
    (place / "job.py").write_text("import headrace as hr\ndataset = hr.range(3)\n")
    assert headrace("run", "job.py", "-o", "two", "--log", "runs.jsonl").code == 0
    assert (place / "runs.jsonl").read_text().count('"event":"described"') == 2


def test_a_port_that_is_none(headrace: Headrace, place: Path) -> None:
    said = headrace("predict", "fares:Fare", "trips/", "-o", "out", "--metrics-port", "many")
    assert said.code == 2 and "a port is a whole number" in said.err
    assert not (place / "out").exists()


def test_what_has_a_flag_of_its_own_is_no_option(headrace: Headrace, place: Path) -> None:
    said = headrace("predict", "fares:Fare", "trips/", "-o", "out", "-O", "log=runs.jsonl")
    assert said.code == 2 and "--log runs.jsonl" in said.err


def test_what_a_cluster_is_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "local")
    monkeypatch.setenv("HEADRACE_ALLOW_UNAUTHENTICATED", "1")
    given = Flags(engine="ray://head:1", option=["pool_timeout=60"]).options()
    assert given == {"engine": hr.Ray("ray://head:1", pool_timeout=60, allow_unauthenticated=True)}
    assert Flags(option=["pool_timeout=60"]).options() == {}, "there is no cluster"
