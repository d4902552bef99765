"""An output that takes in what is new, run after run: by random histories, and each promise by itself.

A history is files that come and go, runs, runs that are killed at any point, and other functions. After each step the
output is compared with what a few lines of Python say that it has to be.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forked
import headrace as hr
from headrace.core import failpoints
from headrace.errors import ArgumentError, HeadraceError, InputChanged, PlanChanged
from headrace.output import clean

from .invariants import check, manifest, parts, rows_in, rows_of, stamps
from .job import ROWS, Job, make_input, write_input

SEEDS, SOAK_SEEDS = 1, 400
STEPS = 12
MORE = 90  # rows of a later file
POINTS = (
    *(
        "recover.opened",
        "recover.revoked",
        "recover.swept",
        "journal.append",
        "journal.sync",
        "journal.synced",
    ),
    *(
        "attempt.started",
        "stage.closed",
        "swap.recorded",
        "swap.removed",
        "publish.rename",
        "publish.renamed",
    ),
    *("swap.pointed", "finish.manifest", "finish.success", "finish.closed"),
)
NEW = {"incremental": True}
LIFE = """
import json
from faults.job import Job

job, how = json.loads(argv[0])
Job(**job).write(Job(**job).dataset(engine="inline", **how))
"""
AGAIN = {**NEW, "refresh": "changed"}


@dataclass
class History:
    """One output, and what is to be in it: ``kept`` by the runs that ended, ``new`` by the next."""

    job: Job
    dice: random.Random
    kept: list[dict[str, int]] = field(default_factory=list)
    kept_files: list[Path] = field(default_factory=list)
    new: dict[Path, range] = field(default_factory=dict)
    factors: set[int] = field(default_factory=set)  # that rows may have which are made from here on
    refreshing: bool = False  # a run was killed that may have begun to make rows again
    gone: bool = False  # a file whose rows are in the output
    kills: int = 0  # since runs were last taken in
    runs: int = 0
    next_id: int = 0
    came: int = 0  # files

    @property
    def output(self) -> Path:
        return Path(self.job.output)

    def add(self) -> None:
        """A file comes, of up to 150 rows, somewhere among the others by its name; at times without any row."""
        rows = self.dice.choice([0, 1, 40, 100, 150])
        ids = range(self.next_id, self.next_id + rows)
        path = write_input(Path(self.job.source), self.next_id, ids)
        named = path.with_name(f"{self.dice.choice('abcxyz')}-{self.came:03d}.parquet")
        self.came += 1
        path.rename(named)
        self.new[named] = ids
        self.next_id += rows

    def remove(self) -> None:
        """A file whose rows are in the output goes."""
        if len(self.kept_files) > 1 and not self.refreshing:
            self.gone = True
            self.kept_files.pop(self.dice.randrange(len(self.kept_files))).unlink()

    def change(self) -> None:
        """The function becomes another."""
        self.job = replace(self.job, factor=self.dice.randint(2, 9))

    def kill(self) -> None:
        """A run is killed at some point, if it comes so far."""
        passage, how = self.dice.choice([1, 1, 2, 3, 5]), self.dice.choice([NEW, AGAIN])
        self.factors.add(self.job.factor)
        self.refreshing = self.refreshing or how == AGAIN
        self.kills += 1
        forked.killed(f"{self.dice.choice(POINTS)}@{passage}", LIFE, json.dumps([asdict(self.job), how]))
        self.see()

    def see(self) -> None:
        """While a run is not complete, the state before it stays readable; complete is only what says so."""
        if not (self.output / "_SUCCESS").exists():
            if self.kept and not self.refreshing:
                there = [row for name in parts(self.output) for row in rows_in(self.output, name)]
                assert there[: len(self.kept)] == self.kept
            if (self.output / "_headrace" / "current").exists():
                assert hr.verify(self.output).state == "unfinished"
            return
        success = json.loads((self.output / "_SUCCESS").read_text())
        listed = manifest(self.output, success)
        assert sorted(file["name"] for file in listed) == parts(self.output)
        if (
            len(success["runs"]) > self.runs or not self.kept
        ):  # it was killed after the end, or has ended what one before had left
            self.take_in(len(success["runs"]))
        assert rows_of(self.output) == self.kept
        verified = hr.verify(self.output)
        assert verified.good, str(verified)
        assert verified.rows == success["rows"]

    def take_in(self, runs: int) -> None:
        """Further runs have ended: rows from before are as they were, or made again where they stood, and whole new
        files are behind them."""
        found = rows_of(self.output)
        again = 0
        for was, row in zip(self.kept, found, strict=False):
            assert row["id"] == was["id"]
            if row != was:
                again += 1
                assert self.refreshing and row["product"] in {row["id"] * factor for factor in self.factors}
        later = found[len(self.kept) :]
        assert len(found) >= len(self.kept)
        files = {ids.start: path for path, ids in self.new.items() if len(ids)}
        at = 0
        while at < len(later):  # in any order, each row once
            path = files.pop(later[at]["id"])
            ids = self.new.pop(path)
            self.kept_files.append(path)
            rows = later[at : at + len(ids)]
            assert [row["id"] for row in rows] == list(ids)
            assert all(row["product"] in {row["id"] * factor for factor in self.factors} for row in rows)
            at += len(ids)
        if not self.kept:  # one that had no rows is begun anew
            self.runs = min(self.runs, runs - bool(later))
        assert 0 <= runs - self.runs <= self.kills + 1
        assert runs > self.runs or not (later or again)
        assert self.refreshing or (runs > self.runs) == (bool(later) or not self.runs)
        self.kept, self.runs, self.kills = found, runs, 0
        success = json.loads((self.output / "_SUCCESS").read_text())
        assert sum(each["rows"] for each in success["runs"]) == success["rows"] == len(found)

    def run(self) -> None:
        """A run ends in peace, and leaves no row that other functions have made if it was to make them again."""
        how = self.dice.choice([NEW, NEW, AGAIN])
        self.factors.add(self.job.factor)
        self.refreshing = self.refreshing or how == AGAIN
        result = self.job.here(**how)
        self.take_in(len(result.runs))
        older = [row for row in self.kept if row["product"] != row["id"] * self.job.factor]
        named = re.search(r"\(([0-9,]+) rows?\) were made by an older", result.summary)
        assert len(older) <= (int(named[1].replace(",", "")) if named else 0)
        assert how == NEW or self.gone or not older
        assert not any(self.new.values())  # but for files without rows
        self.kept_files += self.new
        self.new, self.factors, self.refreshing = {}, set(), False
        assert result.rows == len(self.kept) == sum(run["rows"] for run in result.runs)
        verified = hr.verify(self.output)
        assert verified.good, str(verified)
        if not self.job.metrics:  # which have big states beside the journal
            check(self.output, self.kept, lambda: self.job.here(**NEW))


def play(folder: Path, seed: int, steps: int = STEPS) -> None:
    """Play one history."""
    dice = random.Random(seed)
    (folder / "in").mkdir(parents=True)
    job = Job(str(folder / "in"), str(folder / "out"), metrics=seed % 4 == 3)
    history = History(job, dice)
    history.add()
    for _ in range(steps):
        step = dice.choice(["add", "add", "add", "remove", "change", "kill", "kill", "kill", "run", "run"])
        getattr(history, step)()
    history.run()
    if job.metrics:
        assert history.job.metrics_of()["rows"] == len(history.kept)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_histories(tmp_path: Path, seed: int) -> None:
    play(tmp_path / "one", seed)


@pytest.mark.soak
def test_many_histories(tmp_path: Path) -> None:
    for seed in range(SEEDS, SEEDS + SOAK_SEEDS):
        print(f"seed {seed}")
        play(tmp_path / "one", seed, steps=40)
        shutil.rmtree(tmp_path / "one")


# ---------------------------------------------------------------- one promise each


@pytest.fixture
def job(tmp_path: Path) -> Job:
    make_input(tmp_path / "in", files=2)
    return Job(str(tmp_path / "in"), str(tmp_path / "out"))


def more(job: Job, number: int, rows: int = MORE) -> None:
    write_input(Path(job.source), number, range(number * 1_000, number * 1_000 + rows))


def made(job: Job, factors: dict[int, int], *numbers: int) -> list[dict[str, int]]:
    """The rows of the first two files and of some later ones, each by a factor: 3 unless ``factors`` says another."""
    files = {0: range(ROWS), 1: range(ROWS, 2 * ROWS)}
    files |= {number: range(number * 1_000, number * 1_000 + MORE) for number in numbers}
    return [{"id": i, "product": i * factors.get(n, 3)} for n, ids in files.items() for i in ids]


def expected(job: Job, *numbers: int, factor: int = 3) -> list[dict[str, int]]:
    return made(job, dict.fromkeys(numbers, factor), *numbers)


def run_folder(job: Job) -> Path:
    home = Path(job.output) / "_headrace"
    return home / (home / "current").read_text().strip()


def test_what_is_said(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.here(**NEW)
    before, told = stamps(Path(job.output)), {"progress": True, **NEW}
    result = job.here(**told)
    assert "nothing is new, nothing to do" in capsys.readouterr().err
    assert result.resumed and stamps(Path(job.output)) == before
    more(job, 5)
    (Path(job.source) / "in-00.parquet").unlink()
    other = replace(job, factor=7)
    result = other.here(**told)
    said = capsys.readouterr().err
    assert "run 2 of this output, of 1 new input file\n" in said
    assert "gone since: 1 input file; the rows stay\n" in said
    assert "rows of 2 files (200 rows) were made by an older map_batches(times)\n" in said
    assert rows_of(Path(job.output)) == expected(job, 5, factor=7)
    assert [(run["run"], run["rows"], run["input_files"]) for run in result.runs] == [
        (result.run, 200, 2),
        (f"{result.run}-2", MORE, 1),
    ]
    assert result.runs[0]["code"] != result.runs[1]["code"]
    older = json.loads((Path(job.output) / "_SUCCESS").read_text())["older"]
    assert older == {"input_files": 2, "rows": 200, "steps": ["map_batches(times)"]}
    check(Path(job.output), expected(job, 5, factor=7), lambda: other.here(**NEW))
    first = (run_folder(job) / "events-1.jsonl").read_text().splitlines()
    assert json.loads(first[-1])["event"] == "finished" and '"number":1' in "".join(first)
    from headrace.annex.report.follow import Follower

    status = Follower(Path(job.output)).poll()
    assert (status.facts.status, status.data()["number"]) == ("complete", 2)


def test_what_is_refused(job: Job) -> None:
    job.here(**NEW)
    more(job, 5)
    before = stamps(Path(job.output))
    with pytest.raises(PlanChanged, match="on_change='continue'"):
        replace(job, factor=7).dataset(**NEW, engine="inline").write_parquet(job.output, on_change="refuse")
    path = write_input(Path(job.source), 1, range(5))
    with pytest.raises(InputChanged, match=r"in-01\.parquet was written again.*mode='overwrite'") as caught:
        job.here(**NEW)
    assert "\n" not in str(caught.value)
    path.unlink()
    pq.write_table(pa.table({"id": ["a"]}), Path(job.source) / "other.parquet")
    with pytest.raises(HeadraceError, match=r"other\.parquet"):
        job.here(**NEW)
    (Path(job.source) / "other.parquet").unlink()
    for mode in ("overwrite", "ignore", "error"):
        with pytest.raises(ArgumentError, match=f"mode='{mode}'"):
            job.here(mode=mode, **NEW)
    data = hr.range(3).with_options(engine="inline", progress=False)
    with pytest.raises(ArgumentError, match="new input is recognised by files"):
        data.write_parquet(f"{job.output}-2", incremental=True)
    assert not Path(f"{job.output}-2").exists()
    with pytest.raises(ArgumentError, match="incremental=3"):
        data.write_parquet(f"{job.output}-2", incremental=3)  # type: ignore[arg-type]
    assert stamps(Path(job.output)) == before


def test_while_a_further_run_is_not_complete(job: Job) -> None:
    """It was killed: what was complete is, for readers and for every command; whoever goes on needs no word."""
    job.here(**NEW)
    before = stamps(Path(job.output))
    more(job, 5)
    more(job, 6)
    with pytest.raises((HeadraceError, OSError)):
        job.here({"attempt.started": "EIO@2"}, **NEW)
    assert stamps(Path(job.output)) == before and rows_of(Path(job.output)) == expected(job)
    verified = hr.verify(job.output)
    assert (verified.state, verified.rows, verified.files) == ("good", 200, 2)
    assert verified.note.startswith("a further run has started and is not complete")
    from headrace.annex.report.follow import Follower

    found = Follower(Path(job.output)).poll()
    assert (found.facts.status, found.data()["number"]) == ("failed", 2)
    for unfinished in (False, True):
        assert not clean.leftovers(Path(job.output), unfinished=unfinished)
    part = Path(job.output) / parts(Path(job.output))[0]
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    assert not hr.verify(job.output).good
    part.unlink()  # it is made again, and hidden until all is there: so nothing is complete until then
    with pytest.raises((HeadraceError, OSError)):
        job.here({"attempt.started": "EIO"})
    assert not (Path(job.output) / "_SUCCESS").exists() and len(parts(Path(job.output))) == 1
    assert hr.verify(job.output).state == "unfinished"
    job.here()
    check(Path(job.output), expected(job, 5, 6), lambda: job.here(**NEW))


def test_killed_between_the_mark_and_the_last_record(job: Job) -> None:
    job.here(**NEW)
    more(job, 5)
    with pytest.raises((HeadraceError, OSError)):
        job.here({"journal.append": "EIO@4"}, **NEW)  # grown, a commit, swapping, finished
    assert len(json.loads((Path(job.output) / "_SUCCESS").read_text())["runs"]) == 2
    verified = hr.verify(job.output)
    assert (verified.good, verified.rows, verified.note) == (True, 2 * ROWS + MORE, "")
    job.here(**NEW)
    check(Path(job.output), expected(job, 5), lambda: job.here(**NEW))


def test_a_first_run_killed_between_the_mark_and_the_last_record(job: Job) -> None:
    with pytest.raises((HeadraceError, OSError)):
        job.here({"finish.success": "EIO"}, **NEW)
    assert hr.verify(job.output).state == "unfinished"
    with pytest.raises((HeadraceError, OSError)):
        job.here({"journal.append": "EIO"}, **NEW)
    verified = hr.verify(job.output)
    assert (verified.state, verified.rows, verified.findings) == ("good", 2 * ROWS, ())
    assert job.here(**NEW).resumed
    check(Path(job.output), expected(job), lambda: job.here(**NEW))


def test_a_file_that_goes_before_it_was_read(job: Job) -> None:
    job.here(**NEW)
    more(job, 5)
    with pytest.raises((HeadraceError, OSError)):
        job.here({"attempt.started": "EIO"}, **NEW)
    (Path(job.source) / "in-05.parquet").unlink()
    with pytest.raises(InputChanged, match=r"in-05\.parquet was removed.*Bring it back"):
        job.here(**NEW)
    more(job, 5)
    job.here(**NEW)
    check(Path(job.output), expected(job, 5), lambda: job.here(**NEW))


def test_a_file_that_is_not_to_be_read_after_all(job: Job) -> None:
    """A requirement was not met because of it: what the message advises lets the output go on without it."""
    job.here(**NEW)
    more(job, 5)
    with pytest.raises((HeadraceError, OSError)):
        job.here({"attempt.started": "EIO"}, **NEW)
    write_input(Path(job.source), 5, range(0))
    job.here(**NEW)
    check(Path(job.output), expected(job), lambda: job.here(**NEW))


def test_restart_and_overwrite_leave_one_run(job: Job) -> None:
    job.here(**NEW)
    more(job, 5)
    job.here(**NEW)
    other = replace(job, factor=7)
    assert len(other.here(on_change="restart", **NEW).runs) == 1
    assert rows_of(Path(job.output)) == [{"id": i["id"], "product": i["id"] * 7} for i in expected(job, 5)]
    more(job, 6)
    with pytest.raises((HeadraceError, OSError)):
        other.here({"swap.recorded": "EIO"}, **NEW)
    result = job.here(mode="overwrite")
    assert len(result.runs) == 1 and "older" not in json.loads((Path(job.output) / "_SUCCESS").read_text())
    check(Path(job.output), expected(job, 5, 6), lambda: job.here(**NEW))


@pytest.mark.parametrize("kind", ["csv", "json", "numpy"])
def test_other_formats_with_rows_that_are_set_aside(job: Job, tmp_path: Path, kind: str) -> None:
    def run(**options: Any) -> hr.Result:
        data = replace(job, bad=50).dataset(engine="inline", **options)
        result: hr.Result = getattr(data, f"write_{kind}")(job.output, incremental=True)
        return result

    assert run().rejected == 4
    more(job, 5)
    with pytest.raises((HeadraceError, OSError)):
        failpoints.activate({"swap.recorded": "EIO"})
        try:
            run()
        finally:
            failpoints.activate({})
    assert hr.read_rejected(job.output).count() == 4
    result = run()
    assert (result.rows, result.rejected, len(result.runs)) == (2 * ROWS + MORE - 6, 6, 2)
    assert result.runs[1]["rejected"] == 2 and hr.verify(job.output).good
    assert hr.read_rejected(job.output).count() == 6
    assert getattr(hr, f"read_{kind}")(job.output).count() == result.rows


# ---------------------------------------------------------------- refresh="changed"


def test_rows_of_other_functions_are_made_again(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    """Where they stood, by a further run, with what is new; the runs say what each still holds."""
    output, other = Path(job.output), replace(job, factor=7)
    job.here(**AGAIN)
    more(job, 5)
    other.here(**NEW)
    before, inodes = stamps(output), {name: stamp[1] for name, stamp in stamps(output).items()}
    assert job.here(**NEW).rows == 290 and stamps(output) == before
    more(job, 6)
    result = other.here(progress=True, **AGAIN)
    said = capsys.readouterr().err
    assert "run 3 of this output, of 1 new input file and 2 input files that were done before\n" in said
    assert "older" not in said
    assert rows_of(output) == made(job, dict.fromkeys((0, 1, 5, 6), 7), 5, 6)
    assert [(run["rows"], run["files"], run["input_files"]) for run in result.runs] == [
        (0, 0, 2),
        (MORE, 1, 1),
        (2 * ROWS + MORE, 3, 1),
    ]
    assert [run.get("input_files_again", 0) for run in result.runs] == [0, 0, 2]
    name = result.run
    from headrace.annex.report.follow import Follower

    told = Follower(output).poll()
    assert [(run["name"], run["input_files"], run["input_files_again"]) for run in told.data()["runs"]] == [
        (name, 2, 0),
        (f"{name}-2", 1, 0),
        (f"{name}-3", 1, 2),
    ]
    assert told.data()["runs"][2]["rows"] == 290
    assert dict(told.lines())["run"] == f"number 3 of this output: `headrace runs {output}` shows all"
    page = (run_folder(job) / "report.html").read_text()
    assert all(f"{name}{suffix}</td>" in page for suffix in ("", "-2", "-3"))
    assert result.runs[2]["code"][0] in page and "not complete" not in page
    assert parts(output) == [
        *(f"part-0000{number}-{name}-3.parquet" for number in (0, 1)),
        f"part-00002-{name}-2.parquet",
        f"part-00005-{name}-3.parquet",
    ]
    assert stamps(output)[f"part-00002-{name}-2.parquet"][1] == inodes[f"part-00002-{name}-2.parquet"]
    check(output, made(job, dict.fromkeys((0, 1, 5, 6), 7), 5, 6), lambda: other.here(**AGAIN))
    assert job.here(**AGAIN).rows == 380 and rows_of(output) == made(job, {}, 5, 6)  # all of them back


def test_while_rows_are_made_again(job: Job) -> None:
    """Readers have the old ones; a failed run is gone on with, by a third function, too."""
    output, other = Path(job.output), replace(job, factor=7)
    job.here(**NEW)
    before = stamps(output)
    with pytest.raises((HeadraceError, OSError)):
        other.here({"attempt.started": "EIO@2"}, **AGAIN)
    assert stamps(output) == before and hr.verify(output).state == "good"
    assert "a further run has started" in hr.verify(output).note
    from headrace.annex.report.follow import Follower

    status = Follower(output).poll()
    assert (status.facts.status, status.data()["number"], status.facts.shards) == ("failed", 2, (1, 2))
    assert [run["rows"] for run in status.data()["runs"]] == [2 * ROWS]
    page = (run_folder(job) / "report.html").read_text()
    assert "Runs of this output" in page and "about is number 2, and not complete" in page
    assert status.facts.ledger.read == ROWS
    assert not clean.leftovers(output, unfinished=True)
    third = replace(job, factor=5)
    with pytest.raises((HeadraceError, OSError)):  # what the second made is not kept
        third.here({"swap.recorded": "EIO"}, **AGAIN)
    assert stamps(output) == before and hr.verify(output).state == "good"
    assert not clean.leftovers(output)
    (Path(job.source) / "in-00.parquet").unlink()  # its rows are made already
    result = third.here(**NEW)
    assert rows_of(output) == made(job, {0: 5, 1: 5}) and len(result.runs) == 2
    fourth = replace(job, factor=4)
    assert fourth.here(**AGAIN).rows == 200  # one file is gone: its rows stay, and are named
    assert rows_of(output) == made(job, {0: 5, 1: 4})
    older = json.loads((output / "_SUCCESS").read_text())["older"]
    assert (older["input_files"], older["rows"]) == (1, ROWS)
    check(output, made(job, {0: 5, 1: 4}), lambda: fourth.here(**AGAIN))


def test_unfinished_first_run(job: Job) -> None:
    """What was committed and is in no complete output is dropped, and made by the function as it is now."""
    with pytest.raises((HeadraceError, OSError)):
        job.here({"attempt.started": "EIO@2"}, **NEW)
    assert len(parts(Path(job.output))) == 1
    other = replace(job, factor=7)
    assert len(other.here(**AGAIN).runs) == 1
    check(Path(job.output), made(job, {0: 7, 1: 7}), lambda: other.here(**AGAIN))


def test_what_refresh_refuses(job: Job) -> None:
    job.here(**NEW)
    before = stamps(Path(job.output))
    with pytest.raises(ArgumentError, match=r"refresh='all'.*on_change='restart'"):
        job.here(incremental=True, refresh="all")
    with pytest.raises(ArgumentError, match="without incremental=True"):
        job.here(refresh="changed")
    with pytest.raises(ArgumentError, match="with on_change='restart'"):
        job.dataset(engine="inline").write_parquet(job.output, on_change="restart", **AGAIN)
    said = pytest.raises(PlanChanged, match=r"cannot tell whether.*version=")
    with Path(__file__).open() as log, said:
        data = hr.read_parquet(job.source).map(lambda row: {"x": log.name}).with_options(engine="inline")
        data.write_parquet(f"{job.output}-2", **AGAIN)
    with pytest.raises(ArgumentError, match=r"limit\(3\).*mode='overwrite'"):
        replace(job, limit=3, output=f"{job.output}-2").here(**AGAIN)
    with pytest.raises(HeadraceError, match="product"):  # other columns than those of the rows that stay
        data = hr.read_parquet(job.source).map_batches(
            lambda batch: {"id": batch["id"], "other": batch["id"]}
        )
        other = Job(job.source, f"{job.output}-3")
        first = hr.read_parquet(job.source).map_batches(
            lambda batch: {"id": batch["id"], "product": batch["id"]}
        )
        for each in (first, data):
            each.with_options(engine="inline", progress=False).write_parquet(other.output, **AGAIN)
    assert rows_of(Path(other.output)) == [{"id": i, "product": i} for i in range(2 * ROWS)]
    assert hr.verify(other.output).state == "good"
    assert stamps(Path(job.output)) == before


def test_rejected_rows_and_metrics_are_made_again(job: Job) -> None:
    """What rows count in, and where they are set aside, goes with those that are replaced."""

    def run(bad: int) -> hr.Result:
        data = replace(job, bad=bad, metrics=True).dataset(engine="inline")
        return data.write_parquet(job.output, **AGAIN)

    first = run(50)
    assert (first.rows, first.rejected, first.metrics["rows"]) == (196, 4, 196)
    second = run(100)
    assert (second.rows, second.rejected, second.metrics["rows"], len(second.runs)) == (198, 2, 198, 2)
    assert second.metrics["product"] == sum(i * 3 for i in range(200) if i % 100 != 7) / 198
    assert hr.read_rejected(job.output).to_arrow().column("id").to_pylist() == [7, 107]
    assert hr.verify(job.output).good and len(list((run_folder(job) / "states").iterdir())) == 2


def test_a_renamed_file_is_not_added_a_second_time(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()

    def run(out: str, **more: Any) -> hr.Result:
        data = hr.read_parquet(str(tmp_path / "in")).with_options(engine="inline", progress=False)
        return data.write_parquet(tmp_path / out, incremental=True, **more)

    def stored(out: str) -> list[int]:
        return sorted(hr.read_parquet(tmp_path / out).to_pandas()["id"])

    old, renamed = tmp_path / "in/a.parquet", tmp_path / "in/renamed.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), old)
    run("plain"), run("keyed", key="id")
    old.rename(renamed)
    pq.write_table(pa.table({"id": [7, 8]}), tmp_path / "in/new.parquet")
    with pytest.raises(
        InputChanged, match=r"a\.parquet.* is gone, and .*renamed\.parquet has the same.*old name.*touch"
    ):
        run("plain")
    assert stored("plain") == [1, 2]
    run("keyed", key="id")
    assert stored("keyed") == [1, 2, 7, 8]
    renamed.rename(old)
    run("plain")
    assert stored("plain") == [1, 2, 7, 8]
    old.unlink()
    run("plain")  # a file that is gone alone
    assert stored("plain") == [1, 2, 7, 8]
