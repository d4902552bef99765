"""Several machines write one output: each row once, in order, whoever dies and whenever."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pytest
from PIL import Image

import headrace as hr
from annex.fleet import into_table, job
from faults.lives import Nursery
from headrace.annex.cli.fleets import OutputPages
from headrace.annex.fleet.board import Claim, Ended, claim_name, ended_name
from headrace.annex.fleet.writing import look_at_job
from headrace.annex.report.facts import History
from headrace.annex.report.follow import Follower
from headrace.errors import (
    ArgumentError,
    NothingMatched,
    PlanChanged,
    PlanError,
    RequirementNotMet,
    RunLocked,
)
from headrace.output.clean import leftovers, remove
from headrace.output.layout import open_output
from headrace.output.places import lease
from headrace.output.places.place import looked_at, place_at
from headrace.plan.logical import Plan
from headrace.sinks.files import FileSink
from headrace.sinks.parquet import Parquet
from headrace.sources.range import RangeSource
from stores.conftest import _proxy, bucket, environment_of, port, proxy, raw  # noqa: F401 - fixtures

KILLS = int(os.environ.get("HEADRACE_SOAK_KILLS", "300"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0"))
POINTS = [
    *(
        "note.add",
        "note.added",
        "fleet.fenced",
        "plan.written",
        "run.opened",
        "attempt.started",
        "attempt.batch",
    ),
    *(
        "stage.closed",
        "journal.append",
        "journal.synced",
        "publish.rename",
        "publish.renamed",
        "finish.manifest",
    ),
    *("finish.success", "finish.closed", "recover.opened"),
]
TWICE = ("note.add", "note.added", "attempt.batch", "publish.rename")


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("TEST_HURRY", "1")
        found = [Nursery() for _ in range(3)]
    yield found
    for each in found:
        each.close()


def test_machines_share_the_work(tmp_path: Path, nurseries: list[Nursery]) -> None:
    place = tmp_path / "out"
    with ThreadPoolExecutor(3) as threads:
        codes = list(
            threads.map(
                lambda i: nurseries[i].live("annex.fleet.job", [str(place), {}], tmp_path / f"{i}.log"),
                range(3),
            )
        )
    assert codes == [0, 0, 0], [(tmp_path / f"{i}.log").read_text() for i in range(3)]
    job.check(str(place))
    assert {path.name for path in (place / "_headrace").iterdir()} == {"current", "lock", run_in(place)}
    asked = [sys.executable, "-m", "headrace", "status", str(place), "--json"]
    told = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)["machines"]
    assert sum(each["rows"] for each in told) == job.ROWS and all(each["host"] for each in told)
    assert "Machines that worked" in (place / "_headrace" / run_in(place) / "report.html").read_text()


def seen(place: str, *, ended: bool, status: str) -> str:
    """Return the page that `headrace watch` serves of a fleet, which `hr.runs` knows, too."""
    page, is_over = OutputPages(Follower(place, kind=History), place).page()
    assert is_over is ended and "Each machine" in page.decode()
    (row,) = hr.runs(place)
    assert (row.status, row.rows) == (status, None) and "`headrace status` lists them" in row.error
    with pytest.raises(NothingMatched, match="Machines of a fleet work on"):
        Follower(place).poll()
    return page.decode()


def _png(shade: int) -> bytes:
    made = io.BytesIO()
    Image.new("L", (2, 2), shade).save(made, "png")
    return made.getvalue()


def run_in(place: Path) -> str:
    return (place / "_headrace" / "current").read_text().strip()


@pytest.mark.parametrize("point", POINTS)
def test_what_a_dead_machine_leaves_is_done_by_another(
    point: str, tmp_path: Path, nurseries: list[Nursery]
) -> None:
    place, log = tmp_path / "out", tmp_path / "log"
    nurseries[0].live(
        "annex.fleet.job", [str(place), {}], log, faults={point: f"kill@{3 if point in TWICE else 1}"}
    )
    if point == "recover.opened":  # a second one dies as it gathers what the first has made
        nurseries[0].live("annex.fleet.job", [str(place), {}], log, faults={"finish.success": "kill"})
        nurseries[0].live("annex.fleet.job", [str(place), {}], log, faults={point: "kill"})
    assert nurseries[1].live("annex.fleet.job", [str(place), {}], log) == 0, log.read_text()
    job.check(str(place))


def test_machines_share_a_store(
    bucket: Any,  # noqa: F811
    proxy: Any,  # noqa: F811
    tmp_path: Path,
    nurseries: list[Nursery],
) -> None:
    place, environment = f"{bucket.url}/out", environment_of(proxy.url)

    def be(nursery: Nursery, faults: dict[str, str]) -> int:
        log = tmp_path / "log"
        return nursery.live("annex.fleet.job", [place, {}], log, faults=faults, environment=environment)

    with ThreadPoolExecutor(3) as threads:
        codes = list(threads.map(be, nurseries, [{"store.appended": "kill@3"}, {"note.added": "kill@2"}, {}]))
    assert codes[2] == 0, (tmp_path / "log").read_text()
    job.check(place)
    found = obstore.list(bucket.store, f"{bucket.prefix}/out/_headrace/fleet").collect()
    assert not [each["path"] for each in found]


@pytest.mark.parametrize("where", ["folder", "store"])
def test_what_a_slow_machine_has_is_done_by_another(
    where: str, tmp_path: Path, nurseries: list[Nursery], request: pytest.FixtureRequest
) -> None:
    environment, place = dict[str, str](), str(tmp_path / "out")
    if where == "store":
        environment = environment_of(request.getfixturevalue("proxy").url)
        place = f"{request.getfixturevalue('bucket').url}/out"
    gate, log = tmp_path / "gate", tmp_path / "log"
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(
            nurseries[0].live,
            "annex.fleet.job",
            [place, {}],
            log,
            environment={**environment, "TEST_GATE": str(gate)},
        )
        while not (tmp_path / "gate.reached").exists() and not slow.done():
            time.sleep(0.05)
        if where == "folder":
            assert "Under way, by 1 machine" in seen(place, ended=False, status="under way")
        assert nurseries[1].live("annex.fleet.job", [place, {}], log, environment=environment) == 0, (
            log.read_text()
        )
        job.check(place)
        assert not slow.done()
        gate.touch()
        assert slow.result() == 0, log.read_text()  # it finds the output complete
    job.check(place)
    result = f'"rows": {sum(i % job.BAD != 5 for i in range(job.ROWS))}, '
    assert log.read_text().count(result) == 2


@pytest.mark.parametrize("kind", ["Delta", "Iceberg", "Lance", "Sqlite"])
def test_machines_add_rows_to_a_table_once(kind: str, tmp_path: Path, nurseries: list[Nursery]) -> None:
    log, given = tmp_path / "log", [kind, str(tmp_path)]
    for point in (
        "publish.renamed",
        "table.filled",
        "finish.success",
    ):  # one dies at work, two as they complete it
        assert nurseries[0].live("annex.fleet.into_table", given, log, faults={point: "kill"}) == -9, point
    for _ in range(2):  # the second finds that nothing is left to do
        assert nurseries[1].live("annex.fleet.into_table", given, log) == 0, log.read_text()
        into_table.check(*given)


def test_another_program_is_refused(tmp_path: Path, nurseries: list[Nursery]) -> None:
    place = str(tmp_path / "out")
    nurseries[0].live("annex.fleet.job", [place, {}], tmp_path / "log", faults={"attempt.batch": "kill@9"})
    other = job.dataset().rename_columns({"double": "twice"})
    with pytest.raises(PlanChanged, match="another plan"):
        other.write_parquet(place)
    with pytest.raises(PlanChanged, match="fleet=True"):
        job.dataset(fleet=False).write_parquet(place)
    assert nurseries[0].live("annex.fleet.job", [place, {}], tmp_path / "log") == 0
    job.check(place)


def test_cleaning_leaves_what_machines_make(tmp_path: Path, nurseries: list[Nursery]) -> None:
    place = tmp_path / "out"
    nurseries[0].live(
        "annex.fleet.job", [str(place), {}], tmp_path / "log", faults={"attempt.batch": "kill@9"}
    )
    asked = [sys.executable, "-m", "headrace", "status", str(place), "--json"]
    told = json.loads(subprocess.run(asked, capture_output=True, text=True, check=False).stdout)
    assert told["status"] == "not complete" and told["seconds_left"] is None
    assert all(each["state"] == "gone" for each in told["machines"])
    assert "Not complete, and no machine works" in seen(str(place), ended=True, status="stopped")
    assert leftovers(place) == []
    assert [each.path for each in leftovers(place, unfinished=True)] == ["_headrace/fleet"]
    (machine,) = {path.name for path in (place / "_headrace" / "fleet").iterdir()} - {"notes"}
    at_work = place_at(place / "_headrace" / "fleet" / machine)
    at_work.take()
    try:
        with pytest.raises(RunLocked, match="is being written by process"):
            leftovers(place, unfinished=True)
    finally:
        at_work.close()
    assert nurseries[0].live("annex.fleet.job", [str(place), {}], tmp_path / "log") == 0
    job.check(str(place))


def test_cleaning_does_not_go_by_clocks(
    tmp_path: Path,
    nurseries: list[Nursery],
    bucket: Any,  # noqa: F811
    proxy: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine that works is not taken for gone where its clock, or the store's, is an hour behind."""
    place = f"{bucket.url}/out"
    for name, value in environment_of(proxy.url).items():
        monkeypatch.setenv(name, value)
    assert nurseries[0].live(
        "annex.fleet.job",
        [place, {}],
        tmp_path / "log",
        faults={"attempt.batch": "kill@9"},
        environment=environment_of(proxy.url),
    )
    with looked_at(place) as output:
        (machine,) = output.folders("_headrace/fleet") - {"notes"}
    at_work = place_at(f"{place}/_headrace/fleet/{machine}")
    monkeypatch.setattr(lease, "BEAT", 0.1)
    monkeypatch.setattr(lease, "SILENCE", 1.0)
    monkeypatch.setattr(lease, "is_here", lambda holder: None)  # whoever holds one is elsewhere
    shown = leftovers(place, unfinished=True)
    assert [each.path for each in shown] == ["_headrace/fleet"]
    at_work.take()
    try:
        real = time.time
        monkeypatch.setattr(lease.time, "time", lambda: real() + 3600)
        with pytest.raises(RunLocked, match="is being written by"):
            leftovers(place, unfinished=True)
        with pytest.raises(RunLocked, match="is being written by"):
            remove(place, shown, unfinished=True)
    finally:
        at_work.close()
    remove(place, shown, unfinished=True)
    with pytest.raises(NothingMatched):
        leftovers(place)


@pytest.mark.parametrize("where", ["folder", "store"])
def test_machines_take_the_place_of_an_output_that_readers_see_until_then(
    where: str,
    tmp_path: Path,
    nurseries: list[Nursery],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment, place, log = dict[str, str](), str(tmp_path / "out"), tmp_path / "log"
    if where == "store":
        environment = environment_of(request.getfixturevalue("proxy").url)
        place = f"{request.getfixturevalue('bucket').url}/out"
    hr.range(7).with_options(engine="inline", progress=False).write_parquet(place)

    def be(number: int, faults: dict[str, str]) -> int:
        options = [place, {"mode": "overwrite"}]
        return nurseries[number].live("annex.fleet.job", options, log, faults=faults, environment=environment)

    assert be(0, {"attempt.batch": "kill@9"}) == -9
    assert hr.read_parquet(place).with_options(engine="inline").count() == 7
    for point in ("finish.manifest", "swap.removed", "swap.pointed", "finish.closed"):
        assert be(1, {point: "kill"}) == -9, point
    with ThreadPoolExecutor(2) as threads:  # the second finds that nothing is left to do
        assert [*threads.map(be, (0, 1), ({}, {}))] == [0, 0], log.read_text()
    job.check(place)
    before = hr.read_parquet(place).input_files()
    assert be(0, {}) == 0 and hr.read_parquet(place).input_files() == before


@pytest.mark.parametrize("where", ["folder", "store"])
def test_a_complete_output_is_looked_at_while_another_holds_it(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """So many machines that were waiting for it return at once, and leave it as it is."""
    out = str(tmp_path / "out") if where == "folder" else f"{request.getfixturevalue('bucket').url}/out"
    source = RangeSource(9, rows_per_split=3)
    data = hr.Dataset.from_source(source).with_options(engine="inline", progress=False)
    run = data.write_parquet(out).run
    plan = Plan(source).into(FileSink(out, Parquet()))
    held = open_output(out)
    try:
        assert look_at_job(plan, "aaaaaaaa", "process") is None
        job = look_at_job(plan, run, "process")
        assert job is not None and job.complete
        with pytest.raises(RequirementNotMet), job:
            job.output.tidy(run)
            assert job.committer.state.ledger.written == 9
            assert sum(record.ledger.written for record in job.committer.committed()) == 9
            raise RequirementNotMet("whatever ends it")
        held.remove_success()
        assert look_at_job(plan, run, "process") is None
    finally:
        held.close()
    assert data.write_parquet(out).rows == 9 and hr.verify(out).good


def test_failed_rows_are_counted_over_all_machines(tmp_path: Path, nurseries: list[Nursery]) -> None:
    place, log, bad = tmp_path / "out", tmp_path / "log", job.FAILING

    def be(nursery: Nursery, most: int) -> int:
        environment = {"TEST_MODEL_SECONDS": "0.1"}  # so that each machine has some of them
        return nursery.live(
            "annex.fleet.job", [str(place), {"max_errors": most}], log, environment=environment
        )

    with ThreadPoolExecutor(3) as threads:
        assert 0 not in threads.map(be, nurseries, [bad - 1] * 3), log.read_text()
    assert "TooManyErrors" in log.read_text() and not list(place.glob("part-*"))
    assert be(nurseries[0], bad) == 0, log.read_text()
    job.check(str(place))


def test_an_output_may_get_no_rows(tmp_path: Path) -> None:
    none = hr.range(9).filter(lambda row: False).with_options(fleet=True, engine="inline", progress=False)
    result = none.write_parquet(tmp_path / "out")
    assert (result.rows, result.ledger.read) == (0, 9)
    assert hr.read_parquet(tmp_path / "out").schema().names == ["id"] and hr.verify(tmp_path / "out").good


@pytest.mark.parametrize("limit", [0, job.LIMIT, 50, 1, job.ROWS + 1])
def test_machines_do_the_rows_up_to_a_limit(limit: int, tmp_path: Path, nurseries: list[Nursery]) -> None:
    place, log = str(tmp_path / "out"), tmp_path / "log"

    def be(number: int) -> int:
        faults = {"attempt.batch": "kill@3"} if number == 0 else {}
        return nurseries[number].live("annex.fleet.job", [place, {"limit": limit}], log, faults=faults)

    with ThreadPoolExecutor(3) as threads:
        assert [*threads.map(be, range(3))][1:] == [0, 0], log.read_text()
    job.check(place, limit)


def test_a_limit_of_rows_that_nobody_has_counted_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("id\n1\n2\n")
    rows = hr.read_csv(tmp_path / "in.csv").with_options(fleet=True, engine="inline", progress=False)
    with pytest.raises(ArgumentError, match=r"known only once it was read.* with one machine first"):
        rows.limit(1).write_parquet(tmp_path / "out")
    assert rows.write_parquet(tmp_path / "out").rows == 2


def test_rows_that_fail_before_a_limit_do_not_make_the_output_shorter(tmp_path: Path) -> None:
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(b"no image" if i == 1 else _png(i))
    asked = hr.read_images(tmp_path / "*.png").limit(3)
    asked = asked.with_options(fleet=True, engine="inline", progress=False, on_error="reject")
    with pytest.raises(PlanError, match=r"1 rows? ha.* failed before limit\(3\)"):
        asked.write_parquet(tmp_path / "out")
    assert not list((tmp_path / "out").glob("part-*")) and not (tmp_path / "out" / "_SUCCESS").exists()


def test_notes_that_say_too_much_publish_nothing_and_are_told(
    tmp_path: Path, nurseries: list[Nursery]
) -> None:
    """As a store would have it that gives a claim to two: what is wrong says who has noted what."""
    place, log = tmp_path / "out", tmp_path / "log"
    nurseries[0].live("annex.fleet.job", [str(place), {}], log, faults={"attempt.batch": "kill@9"})
    notes, parts = place_at(place).notes("fleet/notes"), [(f"{i:05}", 0) for i in range(20)]
    for part in parts:
        notes.add(claim_name(part), msgspec.msgpack.encode(Claim("nobodyxx")))
    notes.add(ended_name("nobodyxx"), msgspec.msgpack.encode(Ended(tuple(parts), ())))
    assert nurseries[1].live("annex.fleet.job", [str(place), {}], log) == 1
    words = r"part 0 of the input is not done once .* none has it; .*nobodyxx did claim-00000-0"
    assert re.search(f"LedgerMismatch.*{words}", log.read_text()), log.read_text()
    assert not list(place.glob("part-*")) and not (place / "_SUCCESS").exists()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            lambda ds: ds.filter(len).limit(9),
            r"pass depends on what filter\(len\) leaves out. Write the rows up to",
        ),
        (lambda ds: ds.map(vars).limit(9).with_options(on_error="reject"), r"on what map\(vars\) leaves out"),
        (lambda ds: ds.with_options(mode="append"), "mode='append' goes with one machine. Leave fleet= out"),
        (lambda ds: ds.with_options(incremental=True), "incremental=True goes with one machine"),
        (lambda ds: ds.sort("id"), "made first lies on one machine. Write it"),
    ],
)
def test_what_machines_cannot_do_apart_is_refused(asked: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=words):
        asked(hr.range(9).with_options(fleet=True, engine="inline")).write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.soak
@pytest.mark.parametrize("where", ["folder", "store"])
def test_random_histories(
    where: str,
    tmp_path: Path,
    nurseries: list[Nursery],
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Machines come and go, die at any point or time, or are stopped for longer than their lease lasts.

    A store answers some requests late, twice, not at all, or with an error. Some outputs are there and are to be
    overwritten, and in some fewer rows may fail than do. Each is then finished by a machine that is left alone.
    """
    kills, number, environment = 0, 0, dict[str, str]()
    if where == "store":
        server, faults = request.getfixturevalue("proxy"), random.Random(SEED)
        environment = environment_of(server.url)
        server.fault = lambda asked: (
            faults.choice([503, "lost", "late", "twice"]) if faults.random() < 0.05 else None
        )
        base = f"{request.getfixturevalue('bucket').url}/out"
    else:
        base = str(tmp_path / "out")
    while kills < KILLS:
        place, log = f"{base}{number}", tmp_path / f"{number}.log"
        dice = random.Random(f"{SEED} {number}")
        asked: dict[str, Any] = {"apart": where == "store"}
        if dice.random() < 0.3:
            hr.range(7).with_options(engine="inline", progress=False).write_parquet(place)
            asked["mode"] = "overwrite"
        most = dice.choice([None, None, job.FAILING, job.FAILING - 1])
        limit = asked["limit"] = job.LIMIT if most is None and dice.random() < 0.4 else None
        begin = partial(lives, place, log, environment, {**asked, "max_errors": most})
        with ThreadPoolExecutor(3) as threads:
            kills += sum(threads.map(begin, nurseries, [dice.random() for _ in nurseries]))
        if most is not None and most < job.FAILING:
            with contextlib.suppress(NothingMatched), warnings.catch_warnings(action="ignore"):
                assert hr.read_parquet(place).with_options(engine="inline").count() == 7, f"history {number}"
            most = None
        left_alone = [place, {**asked, "max_errors": most}]
        code = nurseries[0].live("annex.fleet.job", left_alone, log, environment=environment)
        assert code == 0, f"history {number}: {log.read_text()}"
        job.check(place, limit)
        number += 1
        with capsys.disabled():
            print(f"\r{where}: {number} histories, {kills} deaths", end="", flush=True)


def lives(
    place: str, log: Path, environment: dict[str, str], asked: dict[str, Any], nursery: Nursery, seed: float
) -> int:
    """Be a machine up to three times; return how often it died."""
    dice, died = random.Random(seed), 0
    for _ in range(dice.randint(1, 3)):
        options: dict[str, Any] = {"engine": "local", "workers": 2} if dice.random() < 0.2 else {}
        faults, seconds, sleeps = dict[str, str](), None, None
        options |= asked
        if dice.random() < 0.5:
            faults = {dice.choice(POINTS): f"kill@{dice.randint(1, 6)}"}
        elif dice.random() < 0.7:
            seconds = 2 * dice.random()
        if dice.random() < 0.3:  # in a folder, it is slow for the others; in a store, dead
            begins = dice.random()
            sleeps = begins, begins + dice.choice([0.2, 2.5 if environment else 6.0])
        code = nursery.live(
            "annex.fleet.job",
            [place, options],
            log,
            faults=faults,
            seconds=seconds,
            sleeps=sleeps,
            environment=environment,
        )
        died += code != 0
    return died
