"""Drivers that write to each sink, killed at failpoints and at any moment: every row is there once.

The soak kills ``HEADRACE_SOAK_KILLS`` drivers of each sink (200). A failure says its seed, with which
``HEADRACE_SOAK_SEED`` begins: the same kills, though those by the clock meet other moments.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from databases.conftest import server  # noqa: F401 - fixtures of the soak
from stores.conftest import _proxy, bucket, port, proxy, raw  # noqa: F401

from .lives import Nursery
from .sinks import SINKS

KILLS = int(os.environ.get("HEADRACE_SOAK_KILLS", "200"))
SEED = int(os.environ.get("HEADRACE_SOAK_SEED", "0"))
POINTS = [
    *("plan.written", "run.opened", "attempt.started", "attempt.batch", "stage.write", "stage.closed"),
    *("journal.append", "journal.sync", "journal.synced", "publish.rename", "publish.renamed"),
    *("finish.manifest", "finish.success", "finish.closed", "recover.opened", "recover.swept"),
]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    found = Nursery()
    yield found
    found.close()


class Round:
    """One output of a sink, written by drivers that are killed, and by one that is not."""

    def __init__(self, name: str, nursery: Nursery, place: Path, environment: dict[str, str]) -> None:
        self.sink, self.kills, self.ends = SINKS[name], 0, list[Any]()
        self._name, self._nursery, self._environment = name, nursery, environment
        place.mkdir()
        self.place = str(place)
        self._log = place.with_suffix(".log")
        self.sink.before(self.place)

    def live(self, *, survives: bool = False, options: Any = (), **end: Any) -> None:
        """Have a driver try, until it is killed or has finished."""
        self.ends.append([dict(options), end])
        arguments = [self._name, self.place, dict(options)]
        code = self._nursery.live("faults.sinks", arguments, self._log, environment=self._environment, **end)
        assert code == 0 or (code == -signal.SIGKILL and not survives), self._log.read_text()
        self.kills += code != 0

    def check(self) -> None:
        """Have it finish; all rows are there once, and whoever runs it again has nothing to do."""
        self.live(survives=True)
        found = sorted(self.sink.read(self.place))
        assert found == list(self.sink.expected), self._log.read_text()
        run = self.told()[1]
        self.live(survives=True)
        assert self.told()[1:] == [run, True] or "overwrite" in self._name
        assert sorted(self.sink.read(self.place)) == list(self.sink.expected)

    def told(self) -> list[Any]:
        """What the last driver said: rows, run, resumed."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("[")]
        said: list[Any] = json.loads(lines[-1])
        return said


@pytest.mark.parametrize("name", ["csv", "json", "numpy", "webdataset", "images"])
def test_killed_twice(name: str, nursery: Nursery, tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    played = Round(name, nursery, tmp_path / "out", {})
    played.live(faults={"publish.renamed": "kill@2"})
    played.live(faults={"stage.closed": "kill@3"})
    assert played.kills == 2
    played.check()


@pytest.mark.soak
@pytest.mark.parametrize("name", SINKS)
def test_soak(
    name: str,
    nursery: Nursery,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    environment = {}
    if SINKS[name].needs == "postgresql":
        environment["HEADRACE_TEST_POSTGRESQL"] = request.getfixturevalue("server")
    elif SINKS[name].needs == "s3":
        request.getfixturevalue("bucket")
        environment = {key: value for key, value in os.environ.items() if key.startswith("AWS_")}

    def round_() -> Round:
        return Round(name, nursery, tmp_path / f"r{uuid.uuid4().hex[:10]}", environment)

    def tell(words: str) -> None:
        with capsys.disabled():
            print(f"\n{name}: {words}", flush=True)

    with pytest.MonkeyPatch.context() as patch:
        for key, value in environment.items():
            patch.setenv(key, value)
        seconds = {engine: lasts([round_(), round_()], options) for engine, options in ENGINES.items()}
        tell(f"a driver lasts {seconds['inline']:.1f} s, with workers {seconds['local']:.1f} s")
        kills, seed = 0, SEED
        while kills < KILLS:
            played = round_()
            try:
                play(played, random.Random(f"{name} {seed}"), seconds)
            except BaseException:
                tell(
                    f"failed after {kills} kills; seed {seed} killed so, again by HEADRACE_SOAK_SEED={seed}:"
                )
                tell("\n    ".join(map(str, played.ends)))
                raise
            before, kills, seed = kills, kills + played.kills, seed + 1
            if before // 50 < kills // 50 < KILLS // 50:
                tell(f"{kills} kills")
            shutil.rmtree(played.place)
    tell(f"{kills} kills, {seed - SEED} outputs, each row of each once")


ENGINES: dict[str, dict[str, Any]] = {"inline": {}, "local": {"engine": "local", "workers": 2}}


def lasts(rounds: list[Round], options: dict[str, Any]) -> float:
    """How long a driver lives that nobody kills, and that is not the first one."""
    for each in rounds:
        began = time.perf_counter()
        each.live(survives=True, options=options)
    return time.perf_counter() - began


def play(played: Round, dice: random.Random, seconds: dict[str, float]) -> None:
    """Have drivers write one output, most of them killed: at a point of the code, or by the clock."""
    points = [*POINTS, *played.sink.points]
    for _ in range(dice.randint(1, 8)):
        engine = "local" if dice.random() < 0.1 else "inline"
        if engine == "inline" and dice.random() < 0.5:  # workers would reach it again and again
            end: dict[str, Any] = {"faults": {dice.choice(points): f"kill@{dice.randint(1, 6)}"}}
        else:
            end = {"seconds": dice.random() * seconds[engine]}
        kills = played.kills
        played.live(options=ENGINES[engine], **end)
        if "seconds" in end:  # a machine gets slower, and faster
            seconds[engine] *= 1.1 if played.kills > kills else 0.9
    played.check()
