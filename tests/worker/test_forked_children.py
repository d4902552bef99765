"""The user's code forks a worker: the child ends once it leaves that code, and does nothing of the worker's."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from crossed import sampled
from headrace.errors import HeadraceError

pytestmark = [pytest.mark.local, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

ROWS = 2_000


def forked(leave: Callable[[], Any]) -> tuple[int | None, Any]:
    """Fork; return the exit code of the child, and in the child what ``leave`` returns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks beside threads
        pid = os.fork()
    if not pid:
        return None, leave()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), None


LEAVES: dict[str, tuple[Callable[[], Any], int]] = {
    "exits": (lambda: sys.exit(7), 7),
    "exits well": (lambda: sys.exit(), 0),
    "exits with words": (lambda: sys.exit("enough"), 1),
    "returns": (lambda: None, 0),
    "fails": (lambda: 1 / 0, 1),
    "stops": (lambda: next(iter(())), 1),
    "ends at once": (lambda: os._exit(9), 9),
}


@pytest.fixture(params=sampled("returns", "exits"))
def leave(request: pytest.FixtureRequest) -> tuple[Callable[[], Any], int]:
    return LEAVES[request.param]


def codes(dataset: hr.Dataset, out: Path, on_error: Any = "reject") -> set[int | None]:
    """Return the exit codes that parents saw, after a look at whether all rows are there once."""
    made = dataset.with_options(engine="local", on_error=on_error, workers=1, commit_every=None)
    result = made.write_parquet(out)
    assert (result.rows, result.rejected) == (ROWS, 0)
    table = hr.read_parquet(out).to_arrow()
    assert sorted(table["id"].to_pylist()) == list(range(ROWS))
    files = {path.name for path in out.rglob("*") if path.is_file()}
    assert not [name for name in files if name.endswith((".staged", ".tmp"))]
    assert hr.verify(out).good
    found = set(table["code"].to_pylist()) - {-1}
    assert found
    return found


@pytest.mark.parametrize("leave", LEAVES)
def test_in_rows(leave: str, tmp_path: Path) -> None:
    leaves, expected = LEAVES[leave]

    def function(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "code": forked(leaves)[0] if row["id"] % 999 == 1 else -1}

    assert codes(hr.range(ROWS).map(function), tmp_path / "out", "reject") == {expected}
    if leave == "exits":
        assert codes(hr.range(ROWS).map(function), tmp_path / "raise", "raise") == {expected}


def test_in_generators_of_rows(leave: Any, tmp_path: Path) -> None:
    def function(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        code = forked(leave[0])[0] if row["id"] % 999 == 1 else -1
        yield {"id": row["id"], "code": code}

    assert codes(hr.range(ROWS).flat_map(function), tmp_path / "out") == {leave[1]}


def test_in_filters(leave: Any, tmp_path: Path) -> None:
    def keeps(row: dict[str, Any]) -> bool:
        return row["id"] % 999 != 1 or forked(leave[0])[0] == leave[1]

    source = hr.range(ROWS).with_column("code", hr.lit(leave[1]))
    assert codes(source.filter(keeps), tmp_path / "out") == {leave[1]}


@pytest.mark.parametrize("options", [{}, {"max_in_flight": 2}])
def test_in_batches(leave: Any, options: Any, tmp_path: Path) -> None:
    def function(batch: dict[str, Any]) -> dict[str, Any]:
        code = forked(leave[0])[0] if batch["id"][0] % 1000 == 0 else -1
        return {"id": batch["id"], "code": [code] * len(batch["id"])}

    made = hr.range(ROWS).map_batches(function, batch_size=500 if options else 16, **options)
    assert codes(made, tmp_path / "out") == {leave[1]}


def test_in_generators_and_coroutines(leave: Any, tmp_path: Path) -> None:
    def yields(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield {"id": batch["id"][:1], "code": [-1]}
        code = forked(leave[0])[0]
        yield {"id": batch["id"][1:], "code": [code] * (len(batch["id"]) - 1)}

    async def waits(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "code": [forked(leave[0])[0]] * len(batch["id"])}

    async def waits_and_yields(batch: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        yield {"id": batch["id"], "code": [forked(leave[0])[0]] * len(batch["id"])}

    for function in (yields, waits, waits_and_yields):
        made = hr.range(ROWS).map_batches(function, batch_size=1000)
        assert codes(made, tmp_path / function.__name__) == {leave[1]}


def test_in_constructors(leave: Any, tmp_path: Path) -> None:
    class Model:
        def __init__(self) -> None:
            self.code = forked(leave[0])[0]

        def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"id": batch["id"], "code": [self.code] * len(batch["id"])}

    assert codes(hr.range(ROWS).map_batches(Model), tmp_path / "out") == {leave[1]}


def test_in_tasks_and_actors(leave: Any) -> None:
    class Actor:
        def __init__(self) -> None:
            self.code = forked(leave[0])[0]

        def now(self) -> tuple[int | None, int | None]:
            return self.code, forked(leave[0])[0]

        async def later(self) -> int | None:
            return forked(leave[0])[0]

    with hr.connect(workers=2) as executor:
        assert executor.submit(lambda: forked(leave[0])[0]).result() == leave[1]
        actor = executor.actor(Actor)
        assert actor.now().result() == (leave[1], leave[1])
        assert actor.later().result() == leave[1]


def test_processes_of_multiprocessing(tmp_path: Path) -> None:
    def function(row: dict[str, Any]) -> dict[str, Any]:
        if row["id"] % 999 != 1:
            return {"id": row["id"], "code": -1}
        context = multiprocessing.get_context("fork")
        process = context.Process(target=sys.exit, args=(5,))
        process.start()
        process.join()
        with context.Pool(1) as pool:
            assert pool.apply(abs, (-3,)) == 3
        return {"id": row["id"], "code": process.exitcode}

    assert codes(hr.range(ROWS).map(function), tmp_path / "out") == {5}


def test_what_a_child_says_is_heard(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise LookupError("nothing is there")

    def function(row: dict[str, Any]) -> dict[str, Any]:
        return {"id": row["id"], "code": forked(fails)[0] if row["id"] == 1 else -1}

    assert codes(hr.range(ROWS).map(function), tmp_path / "out") == {1}
    said = capfd.readouterr().err
    assert "LookupError: nothing is there" in said and "send a message" not in said


def test_the_program_itself_may_fork_as_it_likes() -> None:
    def function(row: dict[str, Any]) -> dict[str, Any]:
        raise SystemExit(row["id"])

    with pytest.raises(HeadraceError, match="SystemExit"):
        hr.range(3).map(function).with_options(engine="inline").take_all()
