"""Opening an output for a plan: a new run, one to go on with, or a refusal that says what to do.

A run is recognised by the *shape* of its plan and the *code* of its functions (see ``plan.identity``), and its
committed shards by the state of the input files that they read.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from millrace.core.work import Durability, Shard
from millrace.errors import ForeignOutput, InputChanged, PlanChanged
from millrace.plan import compile as compiler
from millrace.plan.identity import code_of, difference, shape_of
from millrace.plan.logical import Plan
from millrace.plan.physical import SavedPlan
from millrace.run import commit
from millrace.run.commit import ShardCommitter
from millrace.run.output import OutputFolder, check_parts, new_run_name


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for, as far as opening the output is concerned."""

    mode: str
    on_change: str
    durability: Durability
    workers: int
    shard_rows: int | None
    version: str


class Job:
    """A plan with its output open under our lock. A context manager: leaving it lets go of both."""

    def __init__(self, plan: Plan, output: OutputFolder, committer: ShardCommitter, *, resumed: bool) -> None:
        self.plan = plan
        self.output = output
        self.committer = committer
        self.resumed = resumed

    @property
    def shards(self) -> list[Shard]:
        """The shards, as they were planned when the run began."""
        return self.committer.plan.shards

    @property
    def complete(self) -> bool:
        """True if the run is finished and all of its parts are there."""
        return self.committer.state.finished

    def __enter__(self) -> Job:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            if error is not None:
                self._save()
        finally:
            self.committer.close()
            self.output.close(forget=True)

    def _save(self) -> None:
        """After an error: keep what was committed. A run that committed nothing leaves no trace."""
        with contextlib.suppress(Exception):  # the error that is under way says it all
            self.committer.flush()
        if not self.resumed and not any(self.committer.state.done):
            self.committer.close()
            self.output.forget(self.committer.plan.run)


def open_job(plan: Plan, wish: Wish) -> Job:
    """Take the output's lock and find, or begin, the plan's run in it."""
    assert plan.sink is not None
    files = plan.source.files()
    _check_apart(Path(plan.sink.root), plan.source.describe().get("paths", ()), files)
    output = OutputFolder(Path(plan.sink.root))
    try:
        return _open(plan, output, files, wish)
    except BaseException:
        output.close(forget=True)
        raise


def _open(plan: Plan, output: OutputFolder, files: list[tuple[str, int, int]], wish: Wish) -> Job:
    shape = msgspec.json.encode(shape_of(plan), order="sorted").decode()
    code = code_of(plan.steps)
    assert plan.sink is not None
    _finish_swap(plan, output, wish)
    for pointer in ("next", "current"):
        run = output.next() if pointer == "next" else output.current()
        if run is None:
            continue
        saved = SavedPlan.read(output.folder(run) / "plan")
        state = commit.peek(output, run)
        if wish.mode == "overwrite":
            same = saved.shape == shape and state.code == code and not state.finished
        elif pointer == "next":
            same = False  # an overwrite that was given up
        else:
            same = _is_same(saved, state.code, shape, code, wish, output)
        if same:
            check_parts(output, {name for name in (output.current(), output.next()) if name})
            return _resume(plan, output, run, files, code, wish, hidden=pointer == "next")
        if pointer == "next" or wish.mode != "overwrite":
            output.forget(run)
    return _begin(plan, output, files, shape, code, wish)


def _is_same(
    saved: SavedPlan, old: dict[str, str], shape: str, code: dict[str, str], wish: Wish, output: OutputFolder
) -> bool:
    """Decide whether the run in the output is this plan's; False means: begin it anew, as the user asked."""
    if saved.shape != shape:
        lines = difference(msgspec.json.decode(saved.shape), msgspec.json.decode(shape))
        raise PlanChanged(
            f"The output {output.root} belongs to a run of another plan: {'; '.join(lines)}. Nothing was "
            "touched: write to another folder, or replace this output with mode='overwrite'."
        )
    changed = sorted(key for key in {*old, *code} if old.get(key) != code.get(key))
    if not changed or wish.on_change == "continue":
        return True
    if wish.on_change == "restart":
        return False
    names = ", ".join(key.partition(": ")[2] for key in changed)
    raise PlanChanged(
        f"The code of {names} is not what the run in {output.root} was made with. Say what shall become of "
        "the shards that are committed there: on_change='continue' keeps them and does the others with the new "
        "code, on_change='restart' does all of them anew (or give the function version='…' if it computes the same)."
    )


def _finish_swap(plan: Plan, output: OutputFolder, wish: Wish) -> None:
    """An overwrite that was complete when its driver died takes its place first, whatever is asked now."""
    run = output.next()
    if run is None or not commit.peek(output, run).swapping:
        return
    assert plan.sink is not None
    committer = commit.recover(output, run, plan.sink, durability=wish.durability, hidden=True)
    try:
        if 0 not in committer.state.done:
            committer.finish(0.0, {})
    finally:
        committer.close()


def _begin(
    plan: Plan,
    output: OutputFolder,
    files: list[tuple[str, int, int]],
    shape: str,
    code: dict[str, str],
    wish: Wish,
) -> Job:
    assert plan.sink is not None
    current = output.current()
    check_parts(output, {current} if current else set())
    compiler.columns_at(plan.steps, plan.source.schema())
    shards = compiler.make_shards(plan.source.splits(), wish.workers, wish.shard_rows)
    saved = SavedPlan(new_run_name(), shape, code, files, shards, time.time(), wish.version)
    pointer = "next" if current else "current"
    committer = commit.begin(output, saved, plan.sink, durability=wish.durability, pointer=pointer)
    return Job(plan, output, committer, resumed=False)


def _resume(
    plan: Plan,
    output: OutputFolder,
    run: str,
    files: list[tuple[str, int, int]],
    code: dict[str, str],
    wish: Wish,
    *,
    hidden: bool,
) -> Job:
    assert plan.sink is not None
    committer = commit.recover(output, run, plan.sink, durability=wish.durability, hidden=hidden)
    try:
        plan = _reconcile(plan, committer, files)
        if committer.state.code != code and 0 in committer.state.done:
            committer.revise(code)
    except BaseException:
        committer.close()
        raise
    return Job(plan, output, committer, resumed=True)


def _reconcile(plan: Plan, committer: ShardCommitter, files: list[tuple[str, int, int]]) -> Plan:
    """Hold the input as it is against the input as it was planned."""
    saved = committer.plan
    before = saved.files
    if before == files:
        return plan
    now = {file[0]: file for file in files}
    known = {file[0] for file in before}
    new = [path for path in now if path not in known]
    if new:
        warnings.warn(
            f"{len(new)} input files are new since the run in {committer.output.root} was planned and are left "
            f"out of it: {', '.join(new[:3])}{' …' if len(new) > 3 else ''}. They belong to another output.",
            stacklevel=2,
        )
    changed = {i for i, file in enumerate(before) if now.get(file[0]) != file}
    _refuse_changed(plan, committer, changed)
    gone = [before[i][0] for i in sorted(changed) if before[i][0] not in now]
    if gone:
        raise InputChanged(
            f"The input file {gone[0]} is gone since the run in {committer.output.root} was planned, and a shard "
            "that is still to do reads it. Bring it back, or write to another folder."
        )
    source = plan.source.pinned([file[0] for file in before])
    if changed:
        shards = _planned_anew(source.splits(), committer, changed, source.files_of)
        commit.replan(committer, msgspec.structs.replace(saved, files=source.files(), shards=shards))
    return replace(plan, source=source)


def _refuse_changed(plan: Plan, committer: ShardCommitter, changed: set[int]) -> None:
    if not changed:
        return
    for shard in committer.plan.shards:
        if not committer.state.done[shard.index]:
            continue
        for split in shard.splits:
            for file in plan.source.files_of(split):
                if file in changed:
                    raise InputChanged(
                        f"The input file {committer.plan.files[file][0]} changed, or is gone, since shard "
                        f"{shard.index} of the run in {committer.output.root} was made from it. Nothing was "
                        "touched: bring the old file back, write to another folder, or make the output anew "
                        "with mode='overwrite'."
                    )


def _planned_anew(
    splits: Sequence[Any], committer: ShardCommitter, changed: set[int], files_of: Any
) -> list[Shard]:
    """Put the new splits of changed files where their first old split stood; no committed shard is touched."""
    fresh = {file: [split for split in splits if file in files_of(split)] for file in changed}
    shards = []
    for shard in committer.plan.shards:
        kept: list[Any] = []
        for split in shard.splits:
            touched = [file for file in files_of(split) if file in changed]
            if not touched:
                kept.append(split)
            for file in touched:
                kept += fresh.pop(file, [])
        shards.append(Shard(shard.index, tuple(kept)))
    return shards


def _check_apart(root: Path, arguments: Sequence[str], files: Sequence[tuple[str, int, int]]) -> None:
    """Refuse an output inside its own input, and an input inside its own output."""
    out = os.path.realpath(root)
    for argument in arguments:
        if os.path.isdir(argument) and _inside(out, os.path.realpath(argument)):
            raise ForeignOutput(
                f"The output {root} lies inside its own input {argument}: a later run would read predictions "
                "as input. Write to a folder beside it."
            )
    for path, _, _ in files:
        if _inside(os.path.realpath(path), out):
            raise ForeignOutput(
                f"The input file {path} lies inside the output {root}. Write to a folder of its own."
            )


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)
