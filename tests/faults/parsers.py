"""The parsers of ours that meet files of others, with whole files for each, to be damaged by the hundred thousand.

Each is called with the damaged bytes, in this process: a case takes some microseconds, where a whole command or model
takes many milliseconds. What a parser may raise is an error of ours, or the one that its caller turns into one.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.errors import HeadraceError
from headrace.output.journal import HEAD
from predictors import fuzzing

from . import tampering

LONGEST = 10.0
MOST = 1 << 30
FRAMED = 0.7  # of the cases of a journal have checksums that are right again


@dataclass
class Parser:
    """A parser, whole bytes for it, and what else than an error of ours it may raise."""

    parse: Callable[[bytes], Any]
    whole: list[bytes]
    raises: tuple[type[BaseException], ...] = ()
    share: float = 1.0  # how many of the cases of others it gets: some are slower
    damaged: Callable[[bytes, random.Random], bytes] = fuzzing.damaged


@dataclass
class Tally:
    """What became of a parser's cases."""

    cases: int = 0
    refused: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        each = 1e6 * self.seconds / max(1, self.cases)
        return f"{self.cases:>8,} cases, {self.refused:>7,} refused, {each:7.0f} µs each, {self.longest:.2f} s most"


def play(name: str, parser: Parser, cases: int, seed: int, scratch: Path) -> Tally:
    """Parse damaged bytes; a case is ``(name, number)``, whatever else is played."""
    tally = Tally()
    before = _memory()
    started = time.perf_counter()
    for number in range(seed, seed + cases):
        dice = random.Random(f"{name} {number}")
        data = parser.damaged(dice.choice(parser.whole), dice)
        at = time.perf_counter()
        try:
            parser.parse(data)
        except (HeadraceError, *parser.raises):
            tally.refused += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            tally.wrong.append(f"{name}, case {number}: {type(error).__name__}: {str(error)[:200]}")
        took = time.perf_counter() - at
        tally.longest = max(tally.longest, took)
        if took > LONGEST:
            tally.wrong.append(f"{name}, case {number}: it took {took:.0f} s")
        tally.cases += 1
    tally.seconds = time.perf_counter() - started
    if _memory() - before > MOST:
        tally.wrong.append(f"{name}: the process has grown by {_memory() - before:,} bytes")
    (scratch / "wrong").write_text("\n".join(tally.wrong))
    return tally


def _memory() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


# ---------------------------------------------------------------- the parsers


def parsers(folder: Path) -> dict[str, Parser]:
    """Make outputs, and return the parsers of their files."""
    return {**_of_outputs(folder / "outputs"), **_of_lists(folder)}


def _written(path: Path, then: Callable[[], Any]) -> Callable[[bytes], Any]:
    """Return a parser of bytes for one that reads a file."""

    def parse(data: bytes) -> Any:
        path.write_bytes(data)
        return then()

    return parse


def _of_outputs(folder: Path) -> dict[str, Parser]:
    from headrace.observers import record_reader
    from headrace.observers.run_state import RunState
    from headrace.output import journal, layout, names, runs
    from headrace.session import invocation

    folder.mkdir()
    left = [Path(each.job.output) for each in tampering.outputs(folder)]
    homes = [home for each in left for home in sorted(each.glob(f"{tampering.HOME}/*")) if home.is_dir()]
    scratch = folder / "scratch"
    (scratch / tampering.HOME).mkdir(parents=True)

    def found(name: str) -> list[bytes]:
        data = [(home / name).read_bytes() for home in homes if (home / name).is_file()]
        assert data, f"no run has left a file {name}"
        return data

    def of_journal() -> None:
        contents = journal.read(scratch / "journal")
        list(contents)
        list(contents.in_force())
        list(contents.in_order([(0,), (1,)]))

    def of_record(data: bytes) -> None:
        record_reader.replay(RunState(), record_reader.lines_of(data))

    plans = found("plan")
    run = homes[0].name
    pointers = [
        path.read_bytes() for each in left for path in [each / tampering.HOME / "current"] if path.is_file()
    ]
    successes = [(each / "_SUCCESS").read_bytes() for each in left if (each / "_SUCCESS").is_file()]
    assert successes
    return {
        "journal": Parser(_written(scratch / "journal", of_journal), found("journal"), damaged=_framed),
        "plan": Parser(
            _written(scratch / "plan", lambda: layout.read_plan(scratch)),
            plans,
            share=3.0,
            damaged=_with_its_hash,
        ),
        "pointer": Parser(
            _written(scratch / "current", lambda: names.read_pointer(scratch / "current")),
            pointers or [run.encode()],
        ),
        "_SUCCESS": Parser(_written(scratch / "_SUCCESS", lambda: runs.success_of(scratch, run)), successes),
        "command": Parser(
            _written(scratch / invocation.COMMAND, lambda: invocation.recorded(scratch)),
            found(invocation.COMMAND),
        ),
        "record": Parser(of_record, found("events.jsonl"), share=0.2),
    }


def _framed(data: bytes, dice: random.Random) -> bytes:
    """Damage a journal: as it is, or one record of it, whose checksum is right again."""
    if dice.random() > FRAMED:
        return fuzzing.damaged(data, dice)
    frames = tampering.frames_of(data)
    chosen = dice.randrange(len(frames))
    payload = fuzzing.damaged(frames[chosen][HEAD.size :], dice) or b"\0"
    frames[chosen] = frames[chosen][: HEAD.size] + payload
    return tampering.joined(frames)


def _with_its_hash(data: bytes, dice: random.Random) -> bytes:
    import hashlib

    if dice.random() < 0.1:
        return fuzzing.damaged(data, dice)
    body = fuzzing.damaged(data[32:], dice)
    return hashlib.sha256(body).digest() + body


def _of_lists(folder: Path) -> dict[str, Parser]:
    from headrace.annex.cli.answer import UsageMistake
    from headrace.annex.cli.texts import paths_in

    path = folder / "manifest"
    lines: list[Mapping[str, Any]] = [{"path": "a.csv"}, {"path": "b.csv", "size": 5}]
    whole = [b"a.csv\nb.csv\n", json.dumps(lines).encode(), "\n".join(map(json.dumps, lines)).encode()]
    return {"manifest": Parser(_written(path, lambda: paths_in(path)), whole, (UsageMistake,))}
