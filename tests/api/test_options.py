"""Options: by name, by environment, and what a result says."""

from __future__ import annotations

from pathlib import Path

import pytest

import millrace as mr
from millrace.errors import ArgumentError
from millrace.options import RunOptions

from .data import numbers


def test_the_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_ENGINE", "local")
    monkeypatch.setenv("MILLRACE_WORKERS", "5")
    monkeypatch.setenv("MILLRACE_PROGRESS", "off")
    monkeypatch.setenv("MILLRACE_DURABILITY", "process")
    data = mr.range(3)
    assert data._options == RunOptions(engine="local", workers=5, progress=False, durability="process")
    assert "local: 5 workers" in data.explain()
    assert "local: 7 workers" in data.with_options(workers=7).explain()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MILLRACE_WORKERS", "many", "MILLRACE_WORKERS is 'many'"),
        ("MILLRACE_WORKERS", "-2", "MILLRACE_WORKERS is '-2'"),
        ("MILLRACE_WORKERS", "0", "workers=0"),
        ("MILLRACE_ENGINE", "loca", "engine='loca' is not one of .* Did you mean 'local'"),
        ("MILLRACE_DURABILITY", "none", "durability='none'"),
    ],
)
def test_a_bad_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=words):
        mr.range(3)


def test_options_add_up() -> None:
    data = mr.range(3).with_options(workers=3).with_options(max_attempts=1)
    assert (data._options.workers, data._options.max_attempts) == (3, 1)
    assert data.with_options(workers=None)._options.workers is None


def test_max_attempts(tmp_path: Path) -> None:
    def dies(batch: dict[str, object]) -> dict[str, object]:
        import os

        with open(tmp_path / "deaths", "a") as file:
            file.write("x")
        os._exit(1)

    with pytest.raises(mr.errors.EngineError):
        numbers(200).map_batches(dies).with_options(engine="local", max_attempts=1).write_parquet(
            tmp_path / "out"
        )
    assert 1 <= len((tmp_path / "deaths").read_text()) <= 2


def test_a_result_says_where_every_row_went(tmp_path: Path, engine: str) -> None:
    data = numbers(1000).filter(lambda row: row["id"] % 2 == 0).flat_map(lambda row: [row, row])
    result = data.with_options(engine=engine).write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected, result.files, result.metrics) == (1000, 0, 10, {})
    assert (result.ledger.read, result.ledger.written) == (1000, 1000)
    assert result.ledger.steps == ((1000, 500), (500, 1000))
    assert result.path == tmp_path / "out" and result.report.exists()
    assert result.bytes == sum(file.stat().st_size for file in result.path.glob("*.parquet"))
    assert "1,000" in str(result) and result.seconds > 0 and not result.resumed
    again = data.with_options(engine=engine).write_parquet(tmp_path / "out")
    assert (again.rows, again.run, again.ledger) == (result.rows, result.run, result.ledger)
