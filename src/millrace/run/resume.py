"""Opening an output for a plan: a new run, one to go on with, or a refusal that says what to do.

A run is recognised by the *shape* of its plan and the *code* of its functions (see ``plan.identity``), and its
committed shards by the state of the input files that they read.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from millrace.core.batch import schema_from
from millrace.core.warn import warn
from millrace.core.work import Durability, Shard
from millrace.errors import REFUSALS, InputChanged, MillraceError, PlanChanged
from millrace.plan import compile as compiler
from millrace.plan.cuts import Cuts
from millrace.plan.identity import code_of, difference, shape_of, unrecognised
from millrace.plan.logical import Plan
from millrace.plan.physical import SavedPlan
from millrace.run.commit import ShardCommitter, State, begin
from millrace.run.inputs import InputFile, check_apart, reconcile
from millrace.run.journal import Contents
from millrace.run.output import OutputFolder, check_parts, new_run_name, remove_tree
from millrace.run.recover import peek, recover
from millrace.run.schemas import told_difference


@dataclass(frozen=True, slots=True)
class Wish:
    """What the user asked for, as far as opening the output is concerned."""

    mode: str
    on_change: str
    durability: Durability
    cuts: Cuts
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
                with contextlib.suppress(OSError, MillraceError):  # the error that is under way says it all
                    self._save(error)
        finally:
            self.committer.close()
            self.output.close(forget=True)

    def _save(self, error: BaseException) -> None:
        """After an error: keep what was committed, and the record and report of a run that committed nothing.

        A plan that was refused leaves no trace.
        """
        try:
            self.committer.flush()
        finally:
            if self.committer.empty:
                self.committer.close()
                if isinstance(error, REFUSALS):
                    self.output.forget(self.committer.plan.run)
                else:
                    remove_tree(self.committer.folder / "staging")


def open_job(plan: Plan, wish: Wish) -> Job:
    """Take the output's lock and find, or begin, the plan's run in it."""
    assert plan.sink is not None
    files = plan.source.files()
    check_apart(Path(plan.sink.root), plan.source.describe().get("paths", ()), files)
    output = OutputFolder(Path(plan.sink.root))
    try:
        return _Opening(plan, output, files, wish).job()
    except BaseException:
        output.close(forget=True)
        raise


class _Opening:
    """What is known while an output is being opened; ``job`` decides."""

    def __init__(self, plan: Plan, output: OutputFolder, files: list[InputFile], wish: Wish) -> None:
        assert plan.sink is not None
        self._plan = plan
        self._sink = plan.sink
        self._output = output
        self._files = files
        self._wish = wish
        self._shape = msgspec.json.encode(shape_of(plan), order="sorted").decode()
        self._code = code_of(plan.steps)

    def job(self) -> Job:
        swapped = self._finish_swap()
        output = self._output
        hidden, current = output.next(), output.current()
        check_parts(output, {run for run in (hidden, current) if run is not None})
        if self._wish.mode == "overwrite":
            return self._overwrite(hidden, current, swapped)
        keep = current is not None and self._is_same(current)  # refuses before anything is touched
        if hidden is not None:
            output.forget(hidden)  # an overwrite that was given up
        if current is not None and keep:
            return self._resume(current, hidden=False)
        if current is not None:
            output.forget(current)
        return self._begin()

    def _overwrite(self, hidden: str | None, current: str | None, swapped: str | None) -> Job:
        """Go on with an unfinished overwrite by the same plan, else begin one."""
        for run in (hidden, current):
            if run is None:
                continue
            saved, state, contents = peek(self._output, run)
            unfinished = not state.finished or run == swapped
            same = saved.shape == self._shape and state.code == self._code
            same = same and (next(contents.in_force(), None) is not None or self._is_as_planned(saved))
            if unfinished and same and self._is_all_ours(state, contents) and not self._retyped(state):
                with contextlib.suppress(InputChanged):  # then it is made from the input as it is now
                    return self._resume(run, hidden=run == hidden)
            if run == hidden:
                self._output.forget(run)
        return self._begin()

    def _is_same(self, run: str) -> bool:
        """Decide whether a run is this plan's; False means: begin it anew, as the user asked."""
        saved, state, contents = peek(self._output, run)
        changed = sorted(
            key for key in {*state.code, *self._code} if state.code.get(key) != self._code.get(key)
        )
        anew = self._wish.on_change == "restart" and not self._is_all_ours(state, contents)
        retyped = self._retyped(state)
        goes_on = saved.shape == self._shape and (not changed or self._wish.on_change == "continue")
        nothing = not state.finished and next(contents.in_force(), None) is None  # that could get lost
        if goes_on and not anew and not retyped:
            return not nothing or self._is_as_planned(saved)
        if nothing:
            return False
        if saved.shape != self._shape:
            lines = difference(msgspec.json.decode(saved.shape), msgspec.json.decode(self._shape))
            raise PlanChanged(
                f"The output {self._output.root} belongs to a run of another plan: {'; '.join(lines)}. Nothing "
                "was touched: write to another folder, or replace this output with mode='overwrite'."
            )
        if self._wish.on_change == "restart":
            return False
        if retyped and goes_on:
            return self._given_up(state, retyped)
        names = ", ".join(key.partition(": ")[2] for key in changed)
        if unknown := unrecognised(self._code) or unrecognised(state.code):
            raise PlanChanged(
                f"The run in {self._output.root} cannot be recognised: nobody can tell whether {unknown[0]} is what "
                "the run was made with. on_change='continue' keeps the shards that are committed there and does the "
                "others, on_change='restart' does all of them anew. With version='…' the step is recognised by "
                "that text from then on; or make such a thing inside the function."
            )
        raise PlanChanged(
            f"{names[0].upper()}{names[1:]} is not what the run in {self._output.root} was made with. Say what "
            "shall become of the shards that are committed there: on_change='continue' keeps them and does the "
            "others with the new code, on_change='restart' does all of them anew. If it computes the same and "
            "only looks different (a value that it uses, such as a model trained anew, counts as its code), "
            "give the step version='…', by which it is recognised instead."
        )

    def _is_as_planned(self, saved: SavedPlan) -> bool:
        """Say whether a run would be planned now as it was: its files are the same, and its shards."""
        if saved.files != self._files:
            return False
        divided = any(shard.name for shard in saved.shards)  # which it took some time to find out
        return divided or saved.shards == self._wish.cuts.shards(self._plan.source)

    def _is_all_ours(self, state: State, contents: Contents) -> bool:
        """Say whether every committed shard was made by the present code, and none by a version before."""
        return all(state.codes.get(record.revision) == self._code for record in contents.in_force())

    def _retyped(self, state: State) -> str:
        """Say how the output schema that is asked for differs from the one that the run has; "" if it does not."""
        asked = self._plan.output_schema
        if asked is None or state.schema is None:
            return ""
        settled = schema_from(state.schema)
        return "" if settled.equals(asked) else told_difference(settled, asked)

    def _given_up(self, state: State, retyped: str) -> bool:
        """Begin an unfinished run anew whose parts have other types than ``schema=`` asks for; not a finished one."""
        if state.finished:
            raise PlanChanged(
                f"The output {self._output.root} is finished, and `schema=` asks for another schema than it has: "
                f"{retyped}. Nothing was touched: on_change='restart' makes it anew, mode='overwrite' keeps the old "
                "one readable until the new one is complete."
            )
        warn(
            f"`schema=` asks for another schema than the unfinished run in {self._output.root} has: {retyped}. All "
            "parts of an output have one schema, so the shards that were committed are made anew."
        )
        return False

    def _finish_swap(self) -> str | None:
        """An overwrite that was complete when its driver died takes its place first, whatever is asked now."""
        run = self._output.next()
        if run is None or peek(self._output, run)[1].swapping is None:
            return None
        committer = recover(self._output, run, self._sink, durability=self._wish.durability, hidden=True)
        try:
            swapping = committer.state.swapping
            if swapping is None:
                return None
            committer.finish(swapping.seconds, swapping.summary)
        finally:
            committer.close()
        return run

    def _begin(self) -> Job:
        plan, wish = self._plan, self._wish
        compiler.columns_at(plan.steps, plan.source.schema())
        for what in unrecognised(self._code)[:1]:
            warn(f"This run cannot be resumed, as nobody can compare {what}: give the step version='…'.")
        shards = wish.cuts.shards(plan.source)
        saved = SavedPlan(
            new_run_name(), self._shape, self._code, self._files, shards, time.time(), wish.version
        )
        pointer = "current" if self._output.current() is None else "next"
        committer = begin(self._output, saved, self._sink, durability=wish.durability, pointer=pointer)
        return Job(plan, self._output, committer, resumed=False)

    def _resume(self, run: str, *, hidden: bool) -> Job:
        committer = recover(self._output, run, self._sink, durability=self._wish.durability, hidden=hidden)
        state = committer.state
        try:
            cuts = self._wish.cuts if self._wish.on_change == "continue" else None
            plan = reconcile(self._plan, committer, self._files, cuts)
            if state.code != self._code and 0 in state.done and not state.finished:
                committer.revise(self._code)
        except BaseException:
            committer.close()
            raise
        return Job(plan, self._output, committer, resumed=True)
