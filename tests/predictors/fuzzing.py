"""Damage small model files at random, and load them in a child process: the fuzzer behind ``test_fuzzing.py``.

The parent damages, the child loads: first what a driver does (make the predictor, take its identity), then what a
worker does (load, predict). The child is used for many cases, and replaced when one of them ends or stops it.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import random
import re
import resource
import select
import shutil
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
QUICK = (
    "onnx",
    "onnx-weights",
    "skops",
    "safetensors",
)
SLOW = ("pt2", "torchscript", "transformers", "sentence-transformers", "mlflow")

UNCHECKED = ("torchscript", "pt2")
"""Kinds that are programs: they can crash, stop or fill a worker, which the run survives, and says."""

LONGEST = 10.0  # seconds of CPU for one case
PATIENCE = 60.0  # seconds of wall time: the machine may have other work
GROWTH = 1 << 30


@dataclasses.dataclass
class Found:
    """What a round found: how cases ended, and those that ended as none should."""

    ends: Counter[str] = dataclasses.field(default_factory=Counter)
    wrong: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


# ---------------------------------------------------------------- damage

_BIG = (
    b"\xff" * 8,
    b"\xff\xff\xff\xff\x07",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x00\x00\x00\x80\x00\x00\x00\x00",
)
_TEXTS = (
    b"null",
    b"-1",
    b"1e999",
    b"99999999999999",
    b"[]",
    b"{}",
    b'""',
    b"[" * 100_000,
    b'"\\ud800"',
    b"../../x",
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"2",
    b"-3",
    b"7",
    b"200",
    b"65536",
    b"2147483647",
    b"-2147483648",
    b"99999999999",
    b"nan",
)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Return bytes with one to three damages."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(len(made) + 1)
        length = min(dice.choice((1, 2, 4, 8, 64, 1024)), len(made) - at)
        how = dice.choice((0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8))
        if how == 0:
            for _ in range(dice.randint(1, 8)):
                if made:
                    made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
        elif how == 1:
            del made[at:]
        elif how == 2:
            del made[at : at + length]
        elif how == 3:
            made[at:at] = made[at : at + length] * dice.choice((1, 2, 100))
        elif how == 4:
            other = dice.randrange(len(made) + 1)
            made[at : at + length], made[other : other + length] = (
                made[other : other + length],
                made[at : at + length],
            )
        elif how == 5:
            big = dice.choice(_BIG)
            made[at : at + dice.choice((0, len(big)))] = big
        elif how == 6:
            made[at : at + length] = bytes(dice.randrange(256) for _ in range(length))
        elif how == 7:
            made[at : at + length] = dice.choice(_TEXTS)
        else:
            _other_number(made, at, dice)
    return bytes(made)


def _other_number(made: bytearray, at: int, dice: random.Random) -> None:
    """Put another number, of the same file or an odd one, in the place of the next that is written as text."""
    found = _NUMBER.search(made, at)
    if found is None:
        return
    other = _NUMBER.search(made, dice.randrange(len(made)))
    with_ = dice.choice(_NUMBERS) if other is None or dice.random() < 0.5 else other[0]
    made[found.start() : found.end()] = with_


def _inside_zip(data: bytes, dice: random.Random) -> bytes:
    """Damage one member of an archive, whose checksums are right again."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        chosen = dice.choice(old.namelist())
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, damaged(content, dice) if name == chosen else content)
    return out.getvalue()


def damage(seed: Path, target: Path, dice: random.Random) -> None:
    """Copy a file or folder, with one file of it damaged."""
    if target.is_dir():
        shutil.rmtree(target)
    if seed.is_dir():
        shutil.copytree(seed, target)
        file = dice.choice(sorted(path for path in target.rglob("*") if path.is_file()))
    else:
        file = Path(shutil.copyfile(seed, target))
    data = file.read_bytes()
    if data.startswith(b"PK") and dice.random() < 0.6:
        file.write_bytes(_inside_zip(data, dice))
    else:
        file.write_bytes(damaged(data, dice))


# ---------------------------------------------------------------- the parent


class Child:
    """A process that loads what it is told, until it dies."""

    def __init__(self, scratch: Path) -> None:
        for name in ("home", "tmp", "work"):
            (scratch / name).mkdir(parents=True, exist_ok=True)
        own = {"HOME": scratch / "home", "TMPDIR": scratch / "tmp", "XDG_CACHE_HOME": scratch / "home"}
        fixed = {"PYTHONPATH": ROOT, "PYTHONDONTWRITEBYTECODE": 1, "OMP_NUM_THREADS": 1, "HF_HUB_OFFLINE": 1}
        environment = {**os.environ, **{name: str(value) for name, value in {**own, **fixed}.items()}}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.predictors.fuzzing", str(scratch)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # select() knows nothing of what lies in a buffer of ours
            cwd=scratch / "work",
            env=environment,
        )

    def ask(self, **question: str) -> dict[str, Any]:
        """Return the last answer, and ``phase``, where it ended: ``driver``, ``worker`` or ``done``."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        answer: dict[str, Any] = {"phase": "driver"}
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return {**answer, "died": process.wait()}
        until = time.monotonic() + PATIENCE
        while answer["phase"] != "done":
            if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                self.end()
                return {**answer, "hung": True}
            line = process.stdout.readline()
            if not line:
                return {**answer, "died": process.wait()}
            answer |= json.loads(line)
        return answer

    def end(self) -> None:
        """Kill it, and wait for it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def fuzz(name: str, scratch: Path, cases: int, seed: int = 0) -> Found:
    """Load ``cases`` damaged models of the kind ``name``; keep the file of each that ends as none should."""
    found = Found()
    scratch.mkdir(parents=True, exist_ok=True)
    child = Child(scratch)
    try:
        whole = child.ask(make=name)
        assert whole.get("end") == "loaded", whole
        start = time.monotonic()
        for case in range(seed, seed + cases):
            source = Path(whole["path"])
            target = scratch / f"case{source.suffix}"
            damage(source, target, random.Random(f"{name} {case}"))
            answer = child.ask(load=name, path=str(target))
            found.ends[_end_of(answer)] += 1
            if why := _wrong(name, answer):
                kept = scratch / "wrong" / f"{name}-{case}{source.suffix}"
                kept.parent.mkdir(exist_ok=True)
                (shutil.copytree if target.is_dir() else shutil.copyfile)(target, kept)
                found.wrong.append(f"{name}, case {case}: {why}")
            if "died" in answer or "hung" in answer:
                child.end()
                child = Child(scratch)
                child.ask(make=name)
        found.seconds = time.monotonic() - start
    finally:
        child.end()
    return found


def _end_of(answer: dict[str, Any]) -> str:
    if "hung" in answer:
        return f"hung in the {answer['phase']}"
    return f"died in the {answer['phase']}" if "died" in answer else str(answer["end"])


def _wrong(name: str, answer: dict[str, Any]) -> str:
    """Say what no model file may do; a worker that dies is an error of ours, a driver that dies is not."""
    if "hung" in answer:
        allowed = answer["phase"] == "worker" and name in UNCHECKED
        return "" if allowed else f"it hung in the {answer['phase']}"
    if "died" in answer:
        return f"the driver died of {answer['died']}" if answer["phase"] == "driver" else ""
    if answer["did"]:
        return f"it did what no model may: {answer['did']}"
    if answer["seconds"] > LONGEST and name not in UNCHECKED:
        return f"it took {answer['seconds']:.0f} s of CPU"
    if answer["growth"] > GROWTH and name not in UNCHECKED:
        return f"it took {answer['growth'] >> 20} MiB"
    return (
        ""
        if answer["end"] in ("loaded", "refused", "the model raised", "out of memory")
        else str(answer["end"])
    )


# ---------------------------------------------------------------- the child

_ACTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "socket.connect")
_CHANGES = (
    "os.remove",
    "os.rename",
    "os.mkdir",
    "os.rmdir",
    "os.chmod",
    "os.truncate",
    "os.link",
    "os.symlink",
)


class Watch:
    """Hears what Python does while a case is loaded: processes, connections, and writing outside of ``scratch``."""

    def __init__(self, scratch: str) -> None:
        self.did: list[str] = []
        self.on = False
        self._scratch = os.path.realpath(scratch) + os.sep
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in _ACTS:
            self.did.append(f"{event} {given[:2]!r}"[:200])
        elif event in _CHANGES or (event == "open" and _writes(given)):
            places = [each for each in given[:2] if isinstance(each, str | bytes)][
                : 2 if event != "open" else 1
            ]
            for place in map(os.fsdecode, places):
                if not (os.path.realpath(place) + os.sep).startswith(self._scratch) and place != os.devnull:
                    self.did.append(f"{event} {place}")


def _writes(given: tuple[Any, ...]) -> bool:
    return isinstance(given[0], str | bytes) and bool(
        int(given[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )


def _main(scratch: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    watch = Watch(scratch)

    def answer(**said: Any) -> None:
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    for line in sys.stdin:
        question = json.loads(line)
        if "make" in question:
            from tests.predictors import seeds

            path = seeds.make(question["make"], Path(scratch) / "seeds")
            _loaded(question["make"], path, lambda: None)
            soft = _now("VmSize") + (4 << 30)
            resource.setrlimit(resource.RLIMIT_AS, (soft, resource.RLIM_INFINITY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            answer(phase="done", end="loaded", path=path)
            continue
        watch.did = []
        Path("/proc/self/clear_refs").write_text("5")
        before, start = _now("VmRSS"), time.process_time()
        watch.on = True
        end = _end(question, lambda: answer(phase="worker"))
        watch.on = False
        growth, seconds = _now("VmHWM") - before, time.process_time() - start
        answer(phase="done", end=end, did=watch.did, growth=growth, seconds=seconds)


def _now(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) << 10
    return 0


def _end(question: dict[str, Any], planned: Any) -> str:
    from headrace.errors import HeadraceError

    try:
        _loaded(question["load"], question["path"], planned)
    except HeadraceError:
        return "refused"
    except _Raised:
        return "the model raised"
    except MemoryError:
        return "out of memory"
    except BaseException as error:
        if "alloc" in str(error) or "out of memory" in str(error).lower():
            return "out of memory"
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else ""
        return f"{type(error).__name__}: {str(error)[:200]} ({place})"
    return "loaded"


def _loaded(name: str, path: str, planned: Any) -> None:
    from tests.predictors import seeds

    predictor = seeds.predictor(name, path)
    predictor.identity()
    planned()
    try:
        predictor.load()
        batch = seeds.batch(name, predictor)
        try:
            predictor.predict(batch)
        except (ArithmeticError, IndexError, TypeError, ValueError) as error:
            raise _Raised from error
    finally:
        predictor.close()


class _Raised(Exception):
    """What was loaded is a model, which fails on these rows: a run reports it with the rows."""


if __name__ == "__main__":
    _main(sys.argv[1])
