"""Outputs in every state in which a run may leave them, and what a bad disk or an unkind hand does to their files."""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.output.journal import HEAD, MAGIC
from headrace.session.invocation import COMMAND
from predictors import fuzzing

from .job import Job, make_input

FILES, ROWS = 4, 120  # a multiple of the sizes of batches: four shards
HOME = "_headrace"


@dataclass(frozen=True)
class Left:
    """An output as some run left it; ``job`` goes on with it, and its ``metrics`` should be these."""

    name: str
    job: Job
    metrics: dict[str, Any]

    def copy(self, folder: Path) -> Job:
        """Copy the output into ``folder``; return the job that goes on there."""
        output = folder / "out"
        shutil.copytree(self.job.output, output)
        for command in output.glob(f"{HOME}/*/{COMMAND}"):
            command.write_bytes(
                command.read_bytes().replace(os.fsencode(self.job.output), os.fsencode(output))
            )
        return replace(self.job, output=str(output))


def outputs(folder: Path) -> list[Left]:
    """Make one of each state: complete, stopped before and after commits, while it takes another's place."""
    source = str(make_input(folder / "in", files=FILES, rows=ROWS))
    options = {"shard_rows": ROWS, "durability": "process"}

    def job(name: str, **more: object) -> Job:
        made = Job(source, str(folder / name / "out"), bad=10, metrics=True, options=options)
        return replace(made, **more)  # type: ignore[arg-type]

    def stopped(job: Job, **faults: str) -> None:
        with pytest.raises((HeadraceError, OSError)):
            job.here({point.replace("_", "."): action for point, action in faults.items()})

    complete, committed, staged, revoked, hidden, swapping = (
        job(name) for name in ("complete", "committed", "staged", "revoked", "hidden", "swapping")
    )
    complete.here()
    stopped(committed, attempt_started="EIO@3")
    stopped(staged, publish_rename="EIO@2")
    stopped(revoked, attempt_started="EIO@4")
    next(Path(revoked.output).glob("part-00000*")).unlink()
    stopped(revoked, attempt_started="EIO@1")
    for over, faults in ((hidden, {"attempt_started": "EIO@3"}), (swapping, {"swap_recorded": "EIO"})):
        replace(over, factor=11).here()
        stopped(replace(over, options={**options, "mode": "overwrite"}), **faults)
    left = [
        Left(name, replace(made, options={**options, "mode": mode}), complete.metrics_of())
        for name, made, mode in (
            ("complete", complete, "resume"),
            ("committed", committed, "resume"),
            ("staged", staged, "resume"),
            ("revoked", revoked, "resume"),
            ("hidden", hidden, "overwrite"),
            ("swapping", swapping, "overwrite"),
        )
    ]
    for each in left:
        _keep_command(Path(each.job.output))
    return left


def _keep_command(output: Path) -> None:
    """Put the command beside each plan that ``headrace run`` would have put there."""
    for plan in output.glob(f"{HOME}/*/plan"):
        (plan.parent / COMMAND).write_text(
            f'{{"argv": ["run", "job.py"], "cwd": "{output.parent}", "output": "{output}", "headrace": "0.1.0"}}'
        )


# ---------------------------------------------------------------- frames of a journal


def frames_of(data: bytes) -> list[bytes]:
    """Split a journal into its whole frames."""
    at, found = len(MAGIC), []
    while at + HEAD.size <= len(data):
        end = at + HEAD.size + HEAD.unpack_from(data, at)[0]
        found.append(data[at:end])
        at = end
    return found


def sealed(frame: bytes, synced: int) -> bytes:
    """Return a frame with a checksum that is right, and another note of what was synced."""
    payload = frame[HEAD.size :]
    rest = synced.to_bytes(8, "little") + payload
    return len(payload).to_bytes(4, "little") + zlib.crc32(rest).to_bytes(4, "little") + rest


def joined(frames: Sequence[bytes]) -> bytes:
    """Make a journal of frames; each is sealed anew, as its place is another."""
    return MAGIC + b"".join(sealed(frame, 0) for frame in frames)


def repeat_frame(frames: list[bytes], dice: Random) -> None:
    frames.insert(dice.randint(0, len(frames)), dice.choice(frames))


def swap_frames(frames: list[bytes], dice: Random) -> None:
    a, b = (dice.randrange(len(frames)) for _ in range(2))
    frames[a], frames[b] = frames[b], frames[a]


def drop_frame(frames: list[bytes], dice: Random) -> None:
    del frames[dice.randrange(len(frames))]


def forge_frame(frames: list[bytes], dice: Random) -> None:
    """Change what a frame says; its checksum will be right."""
    at = dice.randrange(len(frames))
    frames[at] = frames[at][: HEAD.size] + (fuzzing.damaged(frames[at][HEAD.size :], dice) or b"\x00")


FRAMES: tuple[Callable[[list[bytes], Random], None], ...] = (
    repeat_frame, swap_frames, drop_frame, forge_frame, forge_frame, forge_frame,
)  # fmt: skip


# ---------------------------------------------------------------- files


@dataclass
class Harm:
    """What was done to an output. ``forged``: its checksums are right, so only its author knows that it is wrong."""

    done: list[str]
    forged: bool = False


def harm(output: Path, others: Sequence[Path], beside: Path, dice: Random) -> Harm:
    """Do one or two things to files of an output. ``others`` are outputs of other runs, ``beside`` a folder that is
    none of ours."""
    done = Harm([])
    for _ in range(dice.choice([1, 1, 1, 2])):
        files = [path for path in sorted(output.rglob("*")) if _is_small(path)]
        if files:
            _one(files, output, others, beside, dice, done)
    return done


def _is_small(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 24


def _one(
    files: Sequence[Path], output: Path, others: Sequence[Path], beside: Path, dice: Random, done: Harm
) -> None:
    path = dice.choice(files)
    kind = dice.choices(["bytes", "frames", "file"], [12, 6, 5])[0]
    if kind == "frames" and (journals := [path for path in files if path.name == "journal"]):
        _harm_journal(dice.choice(journals), others, dice, done)
    elif kind == "file":
        act = dice.choice(FILES_ACTS)
        act(path, output, others, beside, dice)
        done.done.append(f"{act.__name__} {path.relative_to(output)}")
    elif data := path.read_bytes():
        path.write_bytes(fuzzing.damaged(data, dice))
        done.done.append(f"other bytes in {path.relative_to(output)}")


def _harm_journal(path: Path, others: Sequence[Path], dice: Random, done: Harm) -> None:
    frames = frames_of(path.read_bytes())
    if not frames:
        return
    if dice.random() < 0.1:
        stranger = dice.choice(sorted(dice.choice(others).glob(f"{HOME}/*/journal")))
        frames.insert(dice.randint(0, len(frames)), dice.choice(frames_of(stranger.read_bytes())))
        change: Callable[..., None] = forge_frame  # a record that this run never made
    else:
        change = dice.choice(FRAMES)
        change(frames, dice)
    path.write_bytes(joined(frames))
    done.forged |= change in (forge_frame, drop_frame)
    done.done.append(f"{change.__name__} {path.name}")


def take_away(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    path.unlink()


def exchange(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    """Let two files of the output change places."""
    other = dice.choice([each for each in sorted(output.rglob("*")) if _is_small(each)])
    data = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(data)


def of_another(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    """Put the file of another run in its place, of the same name where there is one."""
    other = dice.choice(others)
    files = [each for each in sorted(other.rglob("*")) if each.is_file()]
    same = [each for each in files if each.name == path.name or each.suffix == path.suffix != ""]
    path.write_bytes(dice.choice(same or files).read_bytes())


def double(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    """Copy it to another name beside it."""
    name = path.name.replace("0000", "0009") if path.name.startswith("part-") else f"{path.name}.tmp"
    shutil.copyfile(path, path.with_name(name))


def be_folder(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    path.unlink()
    path.mkdir()


def be_link(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    path.unlink()
    path.symlink_to(dice.choice([beside, beside / "letter", beside / "nothing"]))


def be_pipe(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    path.unlink()
    os.mkfifo(path)


def grow(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    """Let it have a long hole at its end."""
    os.truncate(path, dice.choice([1 << 24, 5 << 28]) + path.stat().st_size)


def be_linked_folder(path: Path, output: Path, others: Sequence[Path], beside: Path, dice: Random) -> None:
    """Put a link to another folder in the place of the folder that it is in."""
    folder = path.parent
    if folder != output:
        shutil.rmtree(folder)
        folder.symlink_to(beside)


FILES_ACTS: tuple[Callable[[Path, Path, Sequence[Path], Path, Random], None], ...] = (
    take_away, take_away, exchange, exchange, of_another, of_another, of_another, double, be_folder, be_link, be_pipe,
    be_linked_folder, grow,
)  # fmt: skip
