"""Drivers that write to each sink, killed at failpoints and at any moment: every row is there once.

Beside some of them, a second driver wants the output: it is refused until the first one is dead, then takes over.

The soak kills ``HEADRACE_SOAK_KILLS`` drivers of each sink (300). For ``HEADRACE_SOAK_SECONDS`` (120) it has two want
one output, each as if on a machine of its own, while a store answers late or never, or does a thing twice. A failure
says its seed, with which ``HEADRACE_SOAK_SEED`` begins: the same kills, though those by the clock meet other moments.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from annex.databases.relay import Relay
from annex.together.sinks import BEGUN, MET, OVER, SINKS, expected, of, read
from faults.lives import Nursery
from servers import server  # noqa: F401 - fixtures of the soak
from stores.conftest import _proxy, bucket, port, proxy, raw  # noqa: F401

KILLS = int(os.environ.get("HEADRACE_SOAK_KILLS", "300"))
BESIDE = 2  # of them while a second driver wants the output
SECONDS = float(os.environ.get("HEADRACE_SOAK_SECONDS", "120"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0"))
POINTS = [
    *("plan.written", "run.opened", "attempt.started", "attempt.batch", "stage.write", "stage.closed"),
    *("journal.append", "journal.sync", "journal.synced", "publish.rename", "publish.renamed"),
    *("finish.manifest", "finish.success", "finish.closed", "recover.opened", "recover.swept"),
]


Nurseries = tuple[Nursery, Nursery]


@pytest.fixture(scope="module")
def nurseries() -> Iterator[Nurseries]:
    found = Nursery(), Nursery()
    yield found
    for each in found:
        each.close()


class Round:
    """One output of a sink, written by drivers that are killed, and by one that is not."""

    def __init__(self, name: str, nurseries: Nurseries, place: Path, environment: dict[str, str]) -> None:
        self.kills, self.beside, self.ends = 0, 0, list[Any]()
        self.name, self._nurseries, self.environment = name, nurseries, {**environment}
        place.mkdir()
        self.place = str(place)
        self._log = place.with_suffix(".log")
        of(name, self.place).prepare()

    def live(
        self, *, survives: bool = False, options: Any = (), waits: str = "", second: bool = False, **end: Any
    ) -> int:
        """Have a driver try, until it is killed or has finished; return its code."""
        self.ends.append([dict(options), waits, end])
        arguments = [self.name, self.place, dict(options), waits]
        nursery = self._nurseries[second]
        code = nursery.live("annex.together.sinks", arguments, self._log, environment=self.environment, **end)
        assert code == 0 or (code == -signal.SIGKILL and not survives), self._log.read_text()
        self.kills += code != 0
        return code

    def live_beside(self, *, options: Any = (), end: Any, second: Any, meets: bool = True) -> None:
        """Have two drivers try at the same time: the second once the first has the output, or is over.

        ``meets``: the first one has it until the second was refused, unless it is killed by the clock before.
        """
        for name in (BEGUN, MET, OVER):
            Path(self.place, name).unlink(missing_ok=True)
        before = self.refusals()
        with ThreadPoolExecutor(1) as thread:
            first = thread.submit(self.live, options=options, waits="meets" if meets else "first", **end)
            first.add_done_callback(lambda _: Path(self.place, OVER).touch())
            while not {BEGUN, OVER} & {*os.listdir(self.place)}:
                time.sleep(0.001)
            try:
                self.live(options=options, waits="second", second=True, **second)
            finally:
                Path(self.place, MET).touch()
            code = first.result()
        self.beside += code != 0 and self.refusals() > before

    def refusals(self) -> int:
        """How often those that waited were refused."""
        return self._log.read_text().splitlines().count("refused") if self._log.exists() else 0

    def check(self) -> None:
        """Have it finish; all rows are there once, and whoever runs it again has nothing to do."""
        self.live(survives=True)
        assert read(self.name, self.place) == expected(self.name), self._log.read_text()
        run = self.told()[1]
        self.live(survives=True)
        assert self.told()[1:] == [run, True] or "overwrite" in self.name
        assert read(self.name, self.place) == expected(self.name)

    def told(self) -> list[Any]:
        """What the last driver said: rows, run, resumed."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("[")]
        said: list[Any] = json.loads(lines[-1])
        return said


@pytest.mark.parametrize("name", ["sqlite"])
def test_killed_again_and_again(rounds: Callable[[], Round]) -> None:
    """Drivers of a folder are killed by tests/faults/test_kill.py, those of every other sink by the soak."""
    played = rounds()
    for fault in ("table.filled@2", "publish.rename@1", "publish.renamed@2"):
        point, _, passage = fault.partition("@")
        played.live(faults={point: f"kill@{passage}"})
    assert played.kills == 3
    played.check()


def test_a_second_driver_takes_over(nurseries: Nurseries, tmp_path: Path) -> None:
    played = Round("parquet", nurseries, tmp_path / "out", {})
    played.live_beside(
        end={"faults": {"stage.closed": "kill@4"}}, second={"faults": {"stage.closed": "kill@2"}}
    )
    assert (played.kills, played.beside) == (2, 1)
    played.check()


@pytest.fixture
def rounds(
    name: str, nurseries: Nurseries, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[[], Round]]:
    """Makes rounds of a sink, and has its server."""
    environment = {}
    if name.startswith("postgresql"):
        environment["HEADRACE_TEST_POSTGRESQL"] = request.getfixturevalue("server")
    elif name == "s3":
        request.getfixturevalue("bucket")
        environment = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        yield lambda: Round(name, nurseries, tmp_path / f"r{uuid.uuid4().hex[:10]}", environment)


def played_until(
    enough: Callable[[int], bool],
    rounds: Callable[[], Round],
    name: str,
    capsys: pytest.CaptureFixture[str],
    play: Callable[[Round, random.Random], None],
) -> None:
    """Play rounds until the kills are enough; say how it goes."""

    def tell(words: str) -> None:
        with capsys.disabled():
            print(f"\n{name}: {words}", flush=True)

    kills = beside = refused = 0
    seed = SEED
    while not enough(kills):
        played = rounds()
        try:
            play(played, random.Random(f"{name} {seed}"))
        except BaseException:
            tell(f"failed after {kills} kills; seed {seed} killed so, again by HEADRACE_SOAK_SEED={seed}:")
            tell("\n    ".join(map(str, played.ends)))
            raise
        before, kills, seed = kills, kills + played.kills, seed + 1
        beside, refused = beside + played.beside, refused + played.refusals()
        if before // 50 < kills // 50:
            tell(f"{kills} kills")
        shutil.rmtree(played.place)
    tell(
        f"{kills} kills, {beside} of them beside a second driver, which were refused {refused} times; "
        f"{seed - SEED} outputs, each row of each once"
    )


@pytest.mark.soak
@pytest.mark.parametrize("name", SINKS)
def test_soak(name: str, rounds: Callable[[], Round], capsys: pytest.CaptureFixture[str]) -> None:
    seconds = {engine: lasts([rounds(), rounds()], options) for engine, options in ENGINES.items()}
    beside = 0

    def play_one(played: Round, dice: random.Random) -> None:
        nonlocal beside
        play(played, dice, seconds, beside=beside < BESIDE)
        beside += played.beside

    played_until(lambda kills: kills >= KILLS and beside >= BESIDE, rounds, name, capsys, play_one)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["parquet", "s3", "postgresql", "sqlite"])
def test_two_want_it(
    name: str, rounds: Callable[[], Round], capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    """Each may be stopped for longer than the other waits for a sign of life, and goes on then."""
    apart, faults = {"apart": True}, random.Random(f"faults {SEED}")
    life = lasts([rounds(), rounds()], {})
    relay = Relay(request.getfixturevalue("server"), faults) if name == "postgresql" else None
    if name == "s3":
        request.getfixturevalue("proxy").fault = lambda asked: (
            faults.choice([503, "lost", "late", "twice"]) if faults.random() < 0.1 else None
        )
    until = time.monotonic() + SECONDS

    def play_one(played: Round, dice: random.Random) -> None:
        if relay is not None:
            played.environment["HEADRACE_TEST_POSTGRESQL"] = relay.uri
            relay.faults = 1.0
        for _ in range(dice.randint(1, 3)):
            ends: list[dict[str, Any]] = [{}, {}]
            for end in ends:
                if dice.random() < 0.5:
                    begins = life * dice.random()
                    end["sleeps"] = begins, begins + dice.choice([0.2, 2.5])
                if dice.random() < 0.5:
                    end["seconds"] = 2 * life * dice.random()
            meets = dice.random() < 0.5
            played.live_beside(options=apart, end=ends[0], second=ends[1], meets=meets)
        if relay is not None:
            relay.faults = 0.0
        played.check()

    played_until(lambda kills: time.monotonic() > until, rounds, name, capsys, play_one)
    if relay is not None:
        relay.close()


ENGINES: dict[str, dict[str, Any]] = {"inline": {}, "local": {"engine": "local", "workers": 2}}


def lasts(rounds: list[Round], options: dict[str, Any]) -> float:
    """How long a driver lives that nobody kills, and that is not the first one."""
    for each in rounds:
        began = time.perf_counter()
        each.live(survives=True, options=options)
    return time.perf_counter() - began


def play(played: Round, dice: random.Random, seconds: dict[str, float], *, beside: bool) -> None:
    """Have drivers write one output, most of them killed: at a point of the code, or by the clock.

    ``beside``: a second one waits beside the first, and may be killed once it has taken over.
    """
    points = [*POINTS, *of(played.name, played.place).points]
    points += ["swap.recorded", "swap.removed", "swap.pointed"] * (played.name == "parquet, overwrite")
    for _ in range(dice.randint(1, 8)):
        engine = "local" if dice.random() < 0.1 else "inline"
        if engine == "inline" and dice.random() < 0.5:  # workers would reach it again and again
            end: dict[str, Any] = {"faults": {dice.choice(points): f"kill@{dice.randint(1, 6)}"}}
        else:
            end = {"seconds": dice.random() * seconds[engine]}
        kills = played.kills
        if beside and not played.beside:
            dies = engine == "inline" and dice.random() < 0.5
            second = {"faults": {dice.choice(points): "kill@1"}} if dies else {}
            played.live_beside(options=ENGINES[engine], end=end, second=second)
            continue
        played.live(options=ENGINES[engine], **end)
        if "seconds" in end:  # a machine gets slower, and faster
            seconds[engine] *= 1.1 if played.kills > kills else 0.9
    played.check()
