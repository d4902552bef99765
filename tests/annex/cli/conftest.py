from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import forked
from headrace.annex.cli import main

FUNCTIONS = """
import numpy as np


class Fare:
    def __init__(self, per_km=2.5):
        self.per_km = per_km

    def __call__(self, batch):
        return 3.0 + self.per_km * batch["km"]


def picky(batch):
    if (batch["id"] % 100 == 7).any():
        raise ValueError("not this one")
    return batch["km"] * 2.0


def interrupts(batch):
    raise KeyboardInterrupt
"""
ROWS = 400


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        lines = self.out.splitlines()
        assert len(lines) == 1, self.out
        found: dict[str, Any] = json.loads(lines[0])
        return found


def trips(start: int, rows: int) -> pa.Table:
    ids = np.arange(start, start + rows)
    city = [("Oslo", "Bonn", "Rome")[i % 3] for i in ids]
    return pa.table({"id": ids, "km": ids * 0.5, "city": city})


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trips as Parquet, CSV and JSON, and functions."""
    folder = tmp_path_factory.mktemp("place")
    (folder / "fares.py").write_text(FUNCTIONS)
    for kind in ("trips", "csv", "json"):
        (folder / kind).mkdir()
    for part in range(4):
        table = trips(part * 100, 100)
        pq.write_table(table, folder / "trips" / f"{part}.parquet")
        pyarrow.csv.write_csv(table, folder / "csv" / f"{part}.csv")
        lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
        (folder / "json" / f"{part}.jsonl").write_text(lines)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of one's own with trips and functions; the present one."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_ENGINE", "inline")
    monkeypatch.setenv("HEADRACE_PROGRESS", "0")
    monkeypatch.setenv("HEADRACE_DURABILITY", "process")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    environment = dict(os.environ)
    yield tmp_path
    for name, module in [*sys.modules.items()]:
        if name == "fare" or str(getattr(module, "__file__", "")).startswith(
            f"{tmp_path}/"
        ):  # of a demo, and ours
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(environment)


@pytest.fixture
def headrace(place: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Carry out a command line in this process, in the folder with the trips."""

    def run(*argv: str | Path) -> Said:
        capfd.readouterr()
        code = main([str(word) for word in argv])
        sys.stdout.flush()
        said = capfd.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def program(place: Path) -> Callable[..., Said]:
    """Carry out a command line in a process of its own, as a shell would."""

    def run(*argv: str | Path, env: dict[str, str] | None = None, **more: Any) -> Said:
        done = forked.run(
            [sys.executable, "-m", "headrace", *map(str, argv)],
            cwd=more.pop("cwd", place),
            env={**os.environ, "HEADRACE_WORKERS": "2", **(env or {})},
            timeout=280,  # a busy machine may give it a tenth of a core
            workers=True,
            **more,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    return run
