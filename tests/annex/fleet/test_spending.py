"""Many machines have one budget: what the server bills is never more, whoever dies with a share of it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from annex.fleet import spending
from annex.llm.test_budget import Hostile, check_rate
from faults.lives import Nursery
from headrace.errors import ArgumentError
from stores.conftest import _proxy, bucket, environment_of, port, proxy, raw  # noqa: F401 - fixtures

HISTORIES = int(os.environ.get("HEADRACE_SOAK_HISTORIES", "30"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0"))
TOLD = {"apart": False, "in_flight": 4, "retries": 3, "timeout": 20, "hedge": False, "engine": "inline"}


@pytest.fixture(scope="module")
def nurseries() -> Iterator[list[Nursery]]:
    found = [Nursery() for _ in range(3)]
    yield found
    for each in found:
        each.close()


def rows_in(place: str) -> int:
    table = hr.read_parquet(place).with_options(engine="inline").to_arrow()
    rejected = hr.read_rejected(place).with_options(engine="inline").to_arrow()
    found = sorted(table["i"].to_pylist() + rejected["i"].to_pylist())
    assert found == sorted(f"{i} b c" for i in range(spending.ROWS))
    return int(table.num_rows)


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_machines_have_one_budget(engine: str, tmp_path: Path, nurseries: list[Nursery]) -> None:
    """A cap for some rows ends all of them; what they gave back is there for one that goes on with a higher cap."""
    place, log = str(tmp_path / "out"), tmp_path / "log"

    def be(nursery: Nursery, cap: float | None) -> int:
        told = [place, server.url, {**TOLD, "engine": engine, "cap": cap}]
        return nursery.live("annex.fleet.spending", told, log)

    with Hostile(random.Random(7), {"answer": 1.0}) as server:
        with ThreadPoolExecutor(3) as threads:
            assert 0 not in threads.map(be, nurseries, [6.0] * 3)
        assert "has reached Budget(run=6): all machines together have taken it" in log.read_text()
        assert 300 <= server.cents <= 600
        first = server.cents
        assert be(nurseries[0], 100.0) == 0, log.read_text()
        assert first < server.cents <= 10_000 and rows_in(place) == spending.ROWS


@pytest.mark.parametrize("dies", [False, True])
def test_machines_have_one_rate(dies: bool, tmp_path: Path, nurseries: list[Nursery]) -> None:
    """Each has a limiter of its own, by which it might send all of the rate."""
    place, log, sent = str(tmp_path / "out"), tmp_path / "log", list[float]()
    told = {**TOLD, "cap": None, "rate": 600}

    def be(nursery: Nursery, own: str) -> int:
        folder = tmp_path / own
        folder.mkdir(mode=0o700)
        faults = {"journal.append": "kill@2"} if dies and own == "0" else {}  # when nobody else is there
        return nursery.live(
            "annex.fleet.spending", [place, server.url, told], log, faults=faults,
            environment={"XDG_RUNTIME_DIR": str(folder)},
        )  # fmt: skip

    with Hostile(random.Random(7), {"answer": 1.0}) as server:
        server.on_request = lambda: sent.append(time.monotonic())
        assert not dies or be(nurseries[0], "0") == -9
        with ThreadPoolExecutor(3) as threads:
            assert not any(threads.map(be, nurseries, "123")), log.read_text()
    assert rows_in(place) == spending.ROWS <= len(sent)
    assert not any((tmp_path / "out").rglob("rates"))
    ahead = spending.TURN + spending.LATE + spending.GRACE + 0.5  # a busy server notes some late
    check_rate(sent, 10, ahead)


def test_a_machine_that_dies_has_spent_its_share(tmp_path: Path, nurseries: list[Nursery]) -> None:
    place, log = str(tmp_path / "out"), tmp_path / "log"

    def be(nursery: Nursery, **faults: str) -> int:
        told = [place, server.url, {**TOLD, "cap": 6.0}]
        return nursery.live("annex.fleet.spending", told, log, faults=faults)

    with Hostile(random.Random(7), {"answer": 1.0}) as server:
        assert be(nurseries[0], **{"journal.append": "kill@2"}) == -9
        assert be(nurseries[1]) == 1 and "SpendingCapReached" in log.read_text()
        assert be(nurseries[2]) == 1 and server.cents <= 600


@pytest.mark.parametrize("name", ["output", "day", "day_tokens"])
def test_what_machines_cannot_share_is_refused(name: str, tmp_path: Path) -> None:
    model = hr.llm.Endpoint("http://localhost:1/v1", "m", prices={"input": 1, "output": 1})
    model = model.with_options(sampling={"max_tokens": 1}, budget=hr.llm.Budget(**{"run": 1, name: 2}))
    asked = hr.range(9).prompt("{id}", model).with_options(fleet=True, engine="inline", progress=False)
    with pytest.raises(ArgumentError, match=r"prompt\(m\) has Budget\(.* Give run= or run_tokens="):
        asked.write_parquet(tmp_path / "out")


@pytest.mark.soak
@pytest.mark.parametrize("where", ["folder", "store"])
def test_random_histories(
    where: str,
    tmp_path: Path,
    nurseries: list[Nursery],
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Machines come, die at any time and stop for a while; server and store fail as they like."""
    environment, base, most = dict[str, str](), str(tmp_path / "out"), 0.0
    if where == "store":
        proxied, faults = request.getfixturevalue("proxy"), random.Random(SEED)
        environment = environment_of(proxied.url)
        for key, value in environment.items():
            monkeypatch.setenv(key, value)
        proxied.fault = lambda asked: (
            faults.choice([503, "lost", "late", "twice"]) if faults.random() < 0.05 else None
        )
        base = f"{request.getfixturevalue('bucket').url}/out"
    deaths = 0
    for number in range(HISTORIES):
        dice, place, log = random.Random(f"{SEED} {number}"), f"{base}{number}", tmp_path / f"{number}.log"
        few = dice.sample(Hostile.KINDS[1:], dice.randint(0, 3))
        kinds = {"answer": 1.0, **{kind: dice.choice((0.05, 0.2)) for kind in few}}
        told: dict[str, Any] = {
            "apart": where == "store", "in_flight": dice.choice((1, 4, 16)), "retries": dice.randint(1, 3),
            "timeout": 0.4,
            "hedge": dice.random() < 0.2, "engine": dice.choice(("inline", "inline", "local")),
            "cap": dice.choice((4.0, 12.0, 30.0)),
        }  # fmt: skip

        def lives(nursery: Nursery, seed: float, asked: list[Any], log: Path = log) -> int:
            dice, died = random.Random(seed), 0
            for _ in range(dice.randint(1, 3)):
                begins = dice.random()
                code = nursery.live(
                    "annex.fleet.spending",
                    asked,
                    log,
                    seconds=2 * dice.random() if dice.random() < 0.6 else None,
                    sleeps=(begins, begins + dice.choice([0.3, 2.5])) if dice.random() < 0.3 else None,
                    environment=environment,
                )
                died += code == -9
            return died

        with Hostile(random.Random(f"{SEED} {number}"), kinds) as server:
            asked = [[place, server.url, told]] * 3
            with ThreadPoolExecutor(3) as threads:
                deaths += sum(threads.map(lives, nurseries, [dice.random() for _ in range(3)], asked))
            assert server.cents <= 100 * told["cap"], f"history {number}: {told}, {server.cents}"
            most = max(most, server.cents / told["cap"] / 100)
        with Hostile(random.Random(0), {"answer": 1.0}) as server:
            asked = [place, server.url, {**told, "cap": 10_000.0}]
            code = nurseries[0].live("annex.fleet.spending", asked, log, environment=environment)
            assert code == 0, f"history {number}: {log.read_text()}"
        rows_in(place)
        with capsys.disabled():
            print(
                f"\r{where}: {number + 1} histories, {deaths} deaths, at most {most:.0%} spent",
                end="",
                flush=True,
            )
