"""Options: by name, by environment, and what a result says."""

from __future__ import annotations

import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, get_args

import pytest

import headrace as hr
from headrace.core.engine_ports import ENGINES, EngineName, EngineTraits, PoolSpec
from headrace.engines.inline import InlineEngine
from headrace.engines.local.pool import LocalEngine
from headrace.errors import ArgumentError, UnknownArgument
from headrace.options import RunOptions

from .data import numbers


def test_the_environment_gives_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "local")
    monkeypatch.setenv("HEADRACE_WORKERS", "5")
    monkeypatch.setenv("HEADRACE_PROGRESS", "off")
    monkeypatch.setenv("HEADRACE_DURABILITY", "process")
    data = hr.range(3)
    assert data._options == RunOptions(engine="local", workers=5, progress=False, durability="process")
    assert "local: 5 workers" in data.explain()
    assert "local: 7 workers" in data.with_options(workers=7).explain()


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HEADRACE_WORKERS", "many", "HEADRACE_WORKERS is 'many'"),
        ("HEADRACE_WORKERS", "-2", "HEADRACE_WORKERS is '-2'"),
        ("HEADRACE_WORKERS", "0", "workers=0"),
        ("HEADRACE_ENGINE", "loca", "engine='loca' is not one of .* Did you mean 'local'"),
        ("HEADRACE_DURABILITY", "none", "durability='none'"),
        ("HEADRACE_POOL_TIMEOUT", "soon", "HEADRACE_POOL_TIMEOUT is 'soon'"),
        ("HEADRACE_ALLOW_UNAUTHENTICATED", "perhaps", "HEADRACE_ALLOW_UNAUTHENTICATED is 'perhaps'"),
    ],
)
def test_a_bad_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ArgumentError, match=words):
        hr.range(3)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("log", "give observers=[hr.observers.Log(…)]"),
        ("pool_timeout", "give engine=hr.Ray(pool_timeout=…)"),
        ("batch_size", "give it to the step"),
        ("price_per_hour", "multiply the hours"),
    ],
)
def test_what_belongs_elsewhere_is_named(name: str, instead: str) -> None:
    with pytest.raises(UnknownArgument, match=re.escape(f"{name}= is not an option of the run: {instead}")):
        hr.range(3).with_options(**{name: 1})


def test_executors_are_of_this_machine() -> None:
    with pytest.raises(hr.errors.NotOffered, match=r"connect\('ray'\): .*processes of this machine"):
        hr.connect("ray")


def test_a_cluster_is_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The short forms have what the environment says; ``Ray`` says all itself."""
    monkeypatch.setenv("HEADRACE_POOL_TIMEOUT", "60")
    monkeypatch.setenv("HEADRACE_ALLOW_UNAUTHENTICATED", "1")
    short = RunOptions(engine="ray").ray
    assert short == hr.Ray(pool_timeout=60, allow_unauthenticated=True)
    assert RunOptions(engine="ray://head:10001").ray.address == "ray://head:10001"
    explicit = hr.range(3).with_options(engine=hr.Ray(remote_args={"resources": {"disk": 1}}))._options
    assert (
        explicit.traits.is_cluster
        and explicit.ray.pool_timeout == 600
        and not explicit.ray.allow_unauthenticated
    )
    assert (str(explicit.engine), str(hr.Ray("ray://head:10001"))) == ("ray", "ray://head:10001")
    assert "disk" not in repr(explicit)  # nor what runtime_env sets, which may be secret


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"address": "head:10001"}, "such as 'ray://head:10001'"),
        ({"pool_timeout": 0}, "pool_timeout=0"),
        ({"allow_unauthenticated": 1}, "allow_unauthenticated=1"),
        ({"remote_args": {"num_cpus": 2}}, "remote_args: num_cpus"),
        ({"ray_remote_args": {}}, "Did you mean 'remote_args'"),
    ],
)
def test_a_cluster_that_makes_no_sense(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError if "ray_" not in str(arguments) else UnknownArgument, match=words):
        hr.Ray(**arguments)


class Counted(LocalEngine):
    """An engine of one's own: workers of this machine, which are counted."""

    started: ClassVar[list[str]] = []

    def start(self, spec: PoolSpec, notify: Any) -> Any:
        self.started.append(spec.name)
        return super().start(spec, notify)


class Here(InlineEngine):
    """One that is this process."""

    def __init__(self) -> None:
        super().__init__()
        Counted.started.append("here")


class Afar(LocalEngine):
    traits = EngineTraits(is_cluster=True)


def test_an_engine_of_ones_own(tmp_path: Path) -> None:
    data = hr.range(200).map(lambda row: {"pid": os.getpid()}, concurrency=1).with_options(shard_rows=50)
    mine = data.with_options(engine=Counted, progress=False)
    assert {row["pid"] for row in mine.take_all()} != {os.getpid()}
    assert mine.write_parquet(tmp_path / "out").rows == 200
    assert Counted.started == ["stage 1", "stage 1"]  # each run has one of its own
    assert "engine   Counted: " in mine.explain()
    assert {row["pid"] for row in data.with_options(engine=Here, progress=False).take_all()} == {os.getpid()}
    assert Counted.started[2:] == ["here"]


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        (dict, "engine=dict: the class has no start, hold, release, machine, close"),
        (SimpleNamespace(start=print), "give the class, engine=SimpleNamespace"),
        (Afar, "engine=Afar: its workers are on other machines"),
    ],
)
def test_what_is_no_engine_of_ones_own(engine: Any, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        hr.range(3).with_options(engine=engine)


def test_each_engine_that_has_a_name_is_in_the_table() -> None:
    assert list(ENGINES.ours) == list(get_args(EngineName))
    traits = {name: RunOptions(engine=name).traits for name in ENGINES.ours}
    assert traits == {
        "local": EngineTraits(),
        "inline": EngineTraits(in_process=True),
        "ray": EngineTraits(is_cluster=True),
    }


def test_options_add_up() -> None:
    data = hr.range(3).with_options(workers=3).with_options(max_attempts=1)
    assert (data._options.workers, data._options.max_attempts) == (3, 1)
    assert data.with_options(workers=None)._options.workers is None


def test_max_attempts(tmp_path: Path) -> None:
    def dies(batch: dict[str, object]) -> dict[str, object]:
        import os

        with open(tmp_path / "deaths", "a") as file:
            file.write("x")
        os._exit(1)

    with pytest.raises(hr.errors.EngineError):
        numbers(200).map_batches(dies).with_options(engine="local", max_attempts=1).write_parquet(
            tmp_path / "out"
        )
    assert 1 <= len((tmp_path / "deaths").read_text()) <= 2


def test_a_result_says_where_every_row_went(tmp_path: Path, engine: str) -> None:
    data = numbers(1000).filter(lambda row: row["id"] % 2 == 0).flat_map(lambda row: [row, row])
    result = data.with_options(engine=engine).write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected, result.metrics) == (1000, 0, {})
    assert (result.ledger.read, result.ledger.written) == (1000, 1000)
    assert result.ledger.steps == ((1000, 500), (500, 1000))
    assert result.path == tmp_path / "out"
    parts = list(result.path.glob("*.parquet"))  # at least ten: what a slow machine is at may be parted
    assert result.files == len(parts) >= 10
    assert result.bytes == sum(file.stat().st_size for file in parts)
    assert "1,000" in str(result) and result.seconds > 0 and not result.resumed
    again = data.with_options(engine=engine).write_parquet(tmp_path / "out")
    assert (again.rows, again.run, again.ledger) == (result.rows, result.run, result.ledger)
