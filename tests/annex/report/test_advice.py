"""What the report says to try next: each piece of advice is tried, and the job gets better by a number.

A job is run; the option that the report names is applied to it as it is typed; and it is run again. That jobs of some
seconds get faster, too, by a tenth at least, is measured with ``-m soak``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import headrace as hr
from annex.cli.conftest import headrace, made, place  # noqa: F401 - fixtures
from headrace.annex.report import advice as advising
from headrace.annex.report.advice import Advice, advice
from headrace.annex.report.facts import Facts, History, facts, history
from headrace.annex.report.follow import Follower
from headrace.annex.report.page import page, sentence
from headrace.core.work import Ledger
from headrace.engines.local.machine import private_memory
from headrace.observers import run_parts


class Ran(msgspec.Struct):
    """A run: how it was, what its function noted of each call, and the advice."""

    history: History
    facts: Facts
    rows: Counter[str]  # by what was noted: rows
    calls: Counter[str]
    advice: list[Advice]

    def option(self, title: str) -> str:
        """Return what a piece of advice says to type."""
        return next(each.option for each in self.advice if each.title.startswith(title))

    @property
    def titles(self) -> list[str]:
        return [each.title for each in self.advice]


def looked_at(out: Path, log: Path | None = None, cores: int = 0) -> Ran:
    """Read the record of an output's run; ``cores``: of the machine that it is said to have run on."""
    status = Follower(str(out), kind=History).poll()
    found = status.state
    assert isinstance(found, History)
    driver = found.last
    if cores and driver is not None and driver.described is not None:
        driver.described = msgspec.structs.replace(driver.described, cores=cores)
    rows, calls = Counter[str](), Counter[str]()
    for line in log.read_text().splitlines() if log is not None and log.exists() else ():
        what, number = line.split()
        rows[what] += int(number)
        calls[what] += 1
    return Ran(found, status.facts, rows, calls, advice(found, status.facts))


def note(log: str, what: object, rows: int) -> None:
    """Add a line in one write."""
    fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{what} {rows}\n".encode())
    os.close(fd)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs advised that take hardly longer than workers take to start."""
    for name in ("_LONG", "_LEAST", "_LEAST_SECONDS"):
        monkeypatch.setattr(advising, name, 0.0)
    monkeypatch.setattr(advising, "_ALONE", 0.05)
    monkeypatch.setattr(run_parts, "BUSY", 0.05)
    monkeypatch.setattr(run_parts, "_AHEAD", 0.01)


Job = Callable[..., hr.Dataset]  # of the options of its step


def run(dataset: hr.Dataset, out: Path, log: Path | None = None, cores: int = 0) -> Ran:
    with contextlib.suppress(hr.errors.HeadraceError):
        dataset.with_options(progress=False).write_parquet(out)
    return looked_at(out, log, cores)


def as_advised(job: Job, option: str) -> hr.Dataset:
    """Apply an option to a job, as it is typed in Python."""
    if option.startswith("with_options("):
        made = eval(f"dataset.{option}", {"dataset": job()})
        assert isinstance(made, hr.Dataset)
        return made
    return job(**eval(f"dict({option.partition('#')[0]})"))


def waits(batch: dict[str, Any], log: str, workers: int) -> dict[str, Any]:
    """Stand for a model that waits for something else than cores; its first batch waits for all workers."""
    note(log, os.getpid(), len(batch["id"]))
    while len({line.split()[0] for line in Path(log).read_text().splitlines()}) < workers:
        time.sleep(0.01)
    time.sleep(0.002 * len(batch["id"]))
    return batch


def waiting(log: Path, rows: int, workers: int, **options: Any) -> hr.Dataset:
    return hr.range(rows).map_batches(waits, fn_kwargs={"log": str(log), "workers": workers}, **options)


# ------------------------------------------------------------ tried on real runs


@pytest.mark.usefixtures("small")
class TestTried:
    @pytest.mark.parametrize("given", [{}, {"concurrency": 1}])
    def test_more_workers(self, tmp_path: Path, given: dict[str, int]) -> None:
        """Nobody says ``workers=`` where ``concurrency=`` decides; more of them share the rows."""

        def job(name: str, workers: int = 2, **options: Any) -> hr.Dataset:
            rows = waiting(tmp_path / name, 400, workers, batch_size=10, **options)
            return rows.with_options(engine="local", shard_rows=40)

        first = job("1", 1, **given).with_options(workers=1)
        before = run(first, tmp_path / "before", tmp_path / "1", cores=2)
        option = before.option("Use more workers")
        assert option == ("concurrency=2  # of map_batches(waits)" if given else "with_options(workers=2)")
        after = run(as_advised(partial(job, "2"), option), tmp_path / "after", tmp_path / "2")
        assert max(after.rows.values()) < max(before.rows.values()) == 400
        assert "Use more workers" not in after.titles

    def test_more_workers_of_a_stage(self, tmp_path: Path) -> None:
        def job(name: str, workers: int = 2, concurrency: int = 1) -> hr.Dataset:
            rows = waiting(tmp_path / name, 200, workers, batch_size=10, concurrency=concurrency)
            rows = rows.map_batches(kept, num_cpus=1, concurrency=1)
            return rows.with_options(engine="local", shard_rows=20)

        before = run(job("1", 1), tmp_path / "before", tmp_path / "1", cores=8)
        option = before.option("Give stage 1 more workers")
        assert option == "concurrency=2  # of map_batches(waits)"
        after = run(as_advised(partial(job, "2"), option), tmp_path / "after", tmp_path / "2")
        assert max(after.rows.values()) < max(before.rows.values()) == 200

    def test_batches_for_rows(self, tmp_path: Path) -> None:
        rows = hr.range(20_000).with_options(engine="inline")
        before = run(rows.map(double), tmp_path / "before")
        assert before.option("Have map(double) work on batches") == "map_batches(double)"
        after = run(
            rows.map_batches(partial(doubled_batches, log=str(tmp_path / "2"))),
            tmp_path / "after",
            tmp_path / "2",
        )
        assert after.calls["call"] < 20_000 / 100 and after.rows["call"] == 20_000
        assert hr.read_parquet(tmp_path / "after").sum("id") == 2 * sum(range(20_000))

    def test_smaller_batches(self, tmp_path: Path) -> None:
        """Three batches are two for one worker and one for the other."""

        def job(name: str, batch_size: int = 200) -> hr.Dataset:
            rows = waiting(tmp_path / name, 600, 2, batch_size=batch_size)
            return rows.with_options(workers=2, engine="local", shard_rows=200)

        before = run(job("1"), tmp_path / "before", tmp_path / "1")
        option = before.option("Take smaller batches")
        assert option == "batch_size=37  # of map_batches(waits)"
        after = run(as_advised(partial(job, "2"), option), tmp_path / "after", tmp_path / "2")
        assert max(before.rows.values()) == 400 > max(after.rows.values())
        assert "Take smaller batches" not in after.titles

    def test_how_many_rows_fit(self, tmp_path: Path) -> None:
        def job(log: Path, batch_size: Any = "auto") -> hr.Dataset:
            step = partial(hungry, log=str(log))
            return hr.range(2000).map_batches(step, batch_size=batch_size).with_options(engine="inline")

        before = run(job(tmp_path / "1"), tmp_path / "before", tmp_path / "1")
        option = before.option("Say how many rows fit")
        after = run(as_advised(partial(job, tmp_path / "2"), option), tmp_path / "after", tmp_path / "2")
        assert before.calls["tried"] > before.calls["done"]
        assert after.calls["tried"] == after.calls["done"] and after.rows["tried"] == 2000

    def test_fewer_workers_where_memory_is_short(self, tmp_path: Path) -> None:
        def job() -> hr.Dataset:
            rows = hr.range(400).map_batches(
                Heavy, batch_size=20, fn_constructor_args=[str(tmp_path / "log")]
            )
            return rows.with_options(
                shard_rows=40,
                workers=2,
                memory_limit=private_memory(os.getpid()) + (500 << 20),
                engine="local",
            )

        before = run(job(), tmp_path / "before")
        option = before.option("Let fewer workers share the memory")
        assert option == "with_options(workers=1)"
        after = run(as_advised(job, option), tmp_path / "after")
        assert before.history.counts["worker retired"] and not after.history.counts["worker retired"]
        assert before.history.lost > after.history.lost == 0

    def test_rows_are_set_aside_only_where_others_are_left(self, tmp_path: Path) -> None:
        for function, sets_aside in ((broken, False), (broken_at_70, True)):
            job = partial(hr.range(100).map_batches, function, batch_size=50)
            before = run(job(), tmp_path / function.__name__)
            assert ("Or set aside the rows that fail" in before.titles) is sets_aside
        after = run(as_advised(job, before.option("Or set aside")), tmp_path / "after")
        assert (after.facts.status, after.facts.ledger.rejected, after.facts.ledger.written) == (
            *("complete", 1),
            99,
        )
        found = eval(after.option("Look at the rows that failed"), {"hr": hr}).take_all()
        assert [row["id"] for row in found] == [70]

    def test_a_run_goes_on_by_the_same_command(self, tmp_path: Path) -> None:
        """The function is corrected where the advice says, and what was finished is kept."""
        (tmp_path / "job.py").write_text(SCRIPT)
        assert subprocess.run([sys.executable, "job.py"], cwd=tmp_path, capture_output=True).returncode == 1
        before = looked_at(tmp_path / "out")
        first, *_, last = before.advice
        path, line = first.option.rsplit(":", 1)
        assert first.title == "Correct picky()" and Path(path).samefile(tmp_path / "job.py")
        assert SCRIPT.splitlines()[int(line) - 1].strip() == 'raise ValueError("no")'
        assert "on_change='continue'" in last.why
        script = SCRIPT.replace("== 70", "== -1").replace('"out"', '"out", on_change="continue"')
        (tmp_path / "job.py").write_text(script)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        subprocess.run(shlex.split(last.option), cwd=tmp_path, check=True, env={**os.environ, "PATH": path})
        after = looked_at(tmp_path / "out")
        assert after.facts.status == "complete" and after.facts.ledger.written == 100
        assert len(after.history.drivers) == 2 and after.history.rows - before.history.read < 100


SCRIPT = """
import headrace as hr

def picky(batch):
    if (batch["id"] == 70).any():
        raise ValueError("no")
    return batch

if __name__ == "__main__":
    rows = hr.range(100).map_batches(picky, batch_size=10)
    rows.with_options(engine="inline", shard_rows=10, progress=False).write_parquet("out")
"""


def kept(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


def double(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": 2 * row["id"]}


def doubled_batches(batch: dict[str, Any], log: str) -> dict[str, Any]:
    note(log, "call", len(batch["id"]))
    return {"id": 2 * batch["id"]}


def hungry(batch: dict[str, Any], log: str) -> dict[str, Any]:
    """Fit for a hundred rows at most."""
    rows = len(batch["id"])
    note(log, "tried", rows)
    time.sleep(1e-5 * rows)
    if rows > 100:
        raise MemoryError("too many")
    note(log, "done", rows)
    return batch


class Heavy:
    """Takes 300 MiB with its first batch."""

    def __init__(self, log: str) -> None:
        self.log = log
        self.kept = np.zeros(0)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if not self.kept.size:
            self.kept = np.ones(300 << 20, np.uint8)
        time.sleep(0.02)
        return batch


def broken(batch: dict[str, Any]) -> dict[str, Any]:
    raise NameError("scaled is not defined")


def broken_at_70(batch: dict[str, Any]) -> dict[str, Any]:
    if (batch["id"] == 70).any():
        raise ValueError("no")
    return batch


# ------------------------------------------------------------ how much faster it gets


def computes(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "sum": np.array([sum(range(20_000)) for _ in batch["id"]])}


def sleeps(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.02 * len(batch["id"]))
    return batch


def fits(batch: dict[str, Any]) -> dict[str, Any]:
    time.sleep(2e-4 * len(batch["id"]))
    if len(batch["id"]) > 1000:
        raise MemoryError("too many")
    return batch


def of_batches(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": 2 * batch["id"]}


LOCAL = {"engine": "local", "workers": 1}
REAL: dict[str, Job] = {
    "Use more workers": lambda **given: (
        hr.range(20_000).map_batches(computes, batch_size=100, **given).with_options(**LOCAL, shard_rows=1000)
    ),
    "Have map(double) work on batches": lambda **given: hr.range(5_000_000).map(double).with_options(**LOCAL),
    "Take smaller batches": lambda **given: (
        hr.range(600)
        .map_batches(sleeps, **{"batch_size": 200, **given})
        .with_options(engine="local", workers=2, shard_rows=200)
    ),
    "Say how many rows fit": lambda **given: (
        hr.range(15_000).map_batches(fits, **{"batch_size": 8000, **given}).with_options(**LOCAL)
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("title", REAL)
def test_it_saves_a_tenth_of_the_time(tmp_path: Path, title: str) -> None:
    before = run(REAL[title](), tmp_path / "before")
    option = before.option(title)
    rewritten = hr.range(5_000_000).map_batches(of_batches).with_options(**LOCAL)
    job = rewritten if option == "map_batches(double)" else as_advised(REAL[title], option)
    after = run(job, tmp_path / "after")
    took, takes = before.history.seconds, after.history.seconds
    said = next(each.gain for each in before.advice if each.title.startswith(title))
    print(f"{title}: {took:.1f} s, up to {said:.1f} s less; {option}: {takes:.1f} s")
    assert takes < 0.9 * took


# ------------------------------------------------------------ in the words of a command


@pytest.mark.usefixtures("small")
def test_a_command_is_advised_in_flags(place: Path, headrace: Callable[..., Any]) -> None:  # noqa: F811
    """Each flag is taken by the command that the run was started with."""
    typed = ["predict", "fares:picky", "trips/", "-o", "out/", "--inputs", "id,km"]
    typed += ["--engine", "local", "--workers", "1", "--batch-size", "50", "--shard-rows", "50"]
    assert headrace(*typed).code == 1
    before = looked_at(place / "out")
    aside = before.option("Or set aside the rows that fail")
    assert aside == "--on-error reject"
    assert before.option("Then go on with it") == f"headrace resume {place / 'out'}"
    assert headrace(*typed[:3], "-o", "other/", *typed[5:], *shlex.split(aside)).code == 3
    after = looked_at(place / "other", cores=2)
    assert after.option("Use more workers") == "--workers 2"
    look = headrace(*shlex.split(after.option("Look at the rows that failed"))[1:])
    assert look.code == 0 and "4 rejected rows" in look.out
    words = [*typed[:3], "-o", "third/", *typed[5:], *shlex.split(aside), "--workers", "2"]
    assert headrace(*words).code == 3 and "Use more workers" not in looked_at(place / "third").titles


@pytest.mark.usefixtures("small")
def test_what_was_kept_back_is_published(tmp_path: Path, headrace: Callable[..., Any]) -> None:  # noqa: F811
    rows = hr.range(100).require(rows=hr.at_least(1000)).with_options(engine="inline")
    option = run(rows, tmp_path / "out").option("Publish it, or discard it")
    assert headrace(*shlex.split(option.replace("…", "'it is a test'"))[1:]).code == 0
    assert hr.read_parquet(tmp_path / "out").count() == 100


# ------------------------------------------------------------ when it is silent


def line(at: float, event: str, **fields: Any) -> dict[str, Any]:
    return {"at": at, "event": event, **fields}


STARTED = {"shards": 100, "shards_done": 0, "rows_done": 0, "rows": 1000, "workers": 1}


class TestSilence:
    """Only where the numbers say so, and it is worth a change."""

    def worked(self, stage: int, worker: int, start: float, end: float, **timings: float) -> dict[str, Any]:
        told = {"seconds": end - start, "calls": 1, "outcomes": {"done": 1}, "rows": 1, **timings}
        return line(end, "worked", stage=stage, worker=worker, **{"from": start, "to": end}, **told)

    def run(
        self,
        *lines: dict[str, Any],
        stages: tuple[tuple[str, int], ...] = (("f", 1),),
        cores: int = 64,
        end: float = 100.0,
        **more: Any,
    ) -> History:
        known = [{"name": name, "workers": number, **more} for name, number in stages]
        described = line(0.0, "described", cores=cores, stages=known, elapsed=0.0)
        return history([described, line(0.0, "started", **STARTED), *lines, line(end, "finished", error="")])

    def titles(self, found: History, ledger: Ledger = Ledger()) -> list[str]:  # noqa: B008 - frozen
        known = facts(found, output="/out", success={"run": "r"})
        return [each.title for each in advice(found, msgspec.structs.replace(known, ledger=ledger))]

    def test_nothing_stands_out(self) -> None:
        found = self.run(self.worked(0, 0, 1.0, 99.0, steps=97.0, read=1.0), cores=1)
        assert self.titles(found) == []
        known = facts(found, output="/out", success={"run": "r"})
        assert "Nothing in the numbers of this run asks for a change." in page(found, known).decode()

    @pytest.mark.parametrize(
        ("cpu", "more", "advised"),
        [
            (98.0, {}, True),
            (1.0, {}, True),  # it waits for something else
            (98.0 * 3.9, {}, False),  # its model computes in threads
            (98.0, {"gpus": 1.0}, False),  # a core is not what it lacks
        ],
    )
    def test_workers_where_cores_are_free(self, cpu: float, more: dict[str, Any], advised: bool) -> None:
        found = self.run(self.worked(0, 0, 1.0, 99.0, steps=97.0, cpu=cpu), cores=4, **more)
        assert self.titles(found) == ["Use more workers"] * advised

    def test_more_workers_than_the_input_was_planned_for(self) -> None:
        """Parts that came of saving early are no measure: a second worker would have nothing to do."""
        found = history(
            [
                line(0.0, "described", cores=4, stages=[{"name": "f", "workers": 1}], elapsed=0.0),
                line(0.0, "started", **{**STARTED, "shards": 1}),
                line(50.0, "shard divided", shard=0, parts=4, early=True),
                self.worked(0, 0, 1.0, 99.0, steps=97.0, cpu=98.0),
                line(100.0, "finished", error=""),
            ]
        )
        assert self.titles(found) == []

    def test_workers_that_memory_does_not_suffice_for(self) -> None:
        memory = line(50.0, "memory", driver=0, blocks=0, stages=[6 << 30], limit=8 << 30)
        found = self.run(memory, self.worked(0, 0, 1.0, 99.0, steps=97.0), cores=4)
        assert self.titles(found) == ["Use more workers"] * (not found.memory_limit)

    @pytest.mark.parametrize(("end", "busy", "advised"), [(1.9, 1.9, 0), (10.0, 1.9, 0), (10.0, 2.1, 1)])
    def test_what_gains_less_than_a_tenth_or_a_second(self, end: float, busy: float, advised: int) -> None:
        found = self.run(self.worked(0, 0, 0.0, busy, steps=busy), cores=2, end=end)
        assert self.titles(found) == ["Use more workers"] * advised

    def test_a_stage_that_keeps_the_others_waiting(self) -> None:
        both = (("decode", 2), ("predict", 1))
        busy = [self.worked(0, i, 1.0, 99.0, steps=97.0, cpu=97.0) for i in range(2)]
        waiting = self.worked(1, 2, 1.0, 99.0, steps=20.0, wait=78.0, cpu=20.0)
        found = self.run(*busy, waiting, stages=both)
        assert found.bottleneck == 0 and self.titles(found) == ["Give stage 1 more workers"]
        assert self.titles(self.run(*busy, waiting, stages=both, cores=2)) == []

    def test_both_stages_busy_is_no_slowest_stage(self) -> None:
        lines = [self.worked(i, i, 1.0, 99.0, steps=97.0) for i in range(2)]
        assert self.titles(self.run(*lines, stages=(("a", 1), ("b", 1)))) == []

    def test_one_worker_works_on_alone_with_batches_that_nobody_chose(self) -> None:
        """They are small, and who is idle gets a part of them: smaller parts of the input would change nothing."""
        lines = [self.worked(0, i, 1.0, 99.0 if i == 0 else 40.0, steps=39.0) for i in range(4)]
        assert self.titles(self.run(*lines, stages=(("f", 4),), cores=4)) == []

    def test_a_step_that_takes_long_for_each_row(self) -> None:
        found = self.run(self.worked(0, 0, 0.0, 100.0, steps=100.0, each=[100.0]), cores=1, steps=["map(f)"])
        for rows, advised in ((1_000_000, False), (60_000_000, True)):
            known = facts(found, output="/out", success={"run": "r"})
            ledger = Ledger(rows, rows, steps=((rows, rows),))
            known = msgspec.structs.replace(known, ledger=ledger, steps=("map(f)",))
            titles = [each.title for each in advice(found, known)]
            assert titles == ["Have map(f) work on batches"] * advised

    def test_where_to_look(self) -> None:
        lines = [
            line(5.0, "batch shrunk", worker=0, step="predict(Net)", before=512, now=256),
            line(6.0, "worker lost", worker=1, reason="killed"),
        ]
        found = self.run(*lines)
        known = facts(found, output="/out", success={"run": "r"})
        assert self.titles(found, Ledger(100, 95, 5)) == [
            "Find out why workers end",
            "Look at the rows that failed",
        ]
        text = page(found, known).decode()
        assert "What happened on the way" in text and "killed" in text


def test_speeds_of_different_plans_are_not_compared(tmp_path: Path) -> None:
    runs = [
        run(hr.range(100).map_batches(broken_at_70, batch_size=10).limit(50), tmp_path / "a"),
        run(hr.range(100).select_columns(["id"]), tmp_path / "b"),
    ]
    one, two = ((each.history, each.facts) for each in runs)
    assert "did different work (the steps differ)" in sentence(one, two)
    assert "times as fast" not in sentence(one, two)
    described = one[0].described
    assert (
        described is not None
        and one[0].last is not None
        and sentence(one, one).startswith("Both runs were as fast")
    )
    other = looked_at(tmp_path / "a")
    assert other.history.last is not None
    other.history.last.described = msgspec.structs.replace(
        described, models=(("predict(Net)", "another digest"),)
    )
    assert "did different work (the models differ)" in sentence(one, (other.history, other.facts))
