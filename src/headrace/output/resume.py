"""Opening an output for a plan: a new run, a resumed one, or an error that says what to do.

A run is recognised by the *shape* of its plan and the *code* of its functions (see ``plan.identity``), and its
committed shards by the state of the input files that they read.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any

import msgspec

from headrace.core.arrow.batch import schema_from
from headrace.core.arrow.output_schema import describe_difference
from headrace.core.files import safe_files
from headrace.core.target_ports import Sink
from headrace.core.terminal import warn
from headrace.core.work import FLEET, HOME, NOTES, SUCCESS
from headrace.errors import NothingMatched
from headrace.output import inputs, refusals
from headrace.output.commit import ShardCommitter
from headrace.output.input_changes import check_incremental, check_refresh, reconcile
from headrace.output.job import Job, OpenRequest
from headrace.output.journal import Contents
from headrace.output.journal_state import JournalState, Revision
from headrace.output.layout import Output, new_run_name, open_output, read_plan
from headrace.output.names import AHEAD
from headrace.output.recover import begin, check_in_table, peek, recover
from headrace.output.seen_keys import check_keys
from headrace.plan import compile as compiler
from headrace.plan.identity import code_of_plan, is_of_input, shape_of, unrecognised
from headrace.plan.logical import Plan
from headrace.plan.physical import SavedPlan


def open_job(plan: Plan, request: OpenRequest, output: Output | None = None) -> Job:
    """Take the output's lock, unless ``output`` has it, and find, or begin, the plan's run in it."""
    assert plan.sink is not None
    check_keys(plan, incremental=request.incremental, refresh=request.refresh)
    described = plan.source.describe()
    if plan.sink.target is not None:
        plan.sink.target.check_source(described)
    files = plan.source.files()
    refusals.check_apart(plan.sink.root, described.get("paths", ()), files)
    if output is None:
        output = open_output(plan.sink.root, plan.sink.storage.options)
    try:
        with output.place.naming():
            opener = _JobOpener(plan, output, files, request)
            job = opener.job()
            job.code = opener.code
            return job
    except BaseException:
        output.close(forget=True)
        raise


class _JobOpener:
    """Opens an output: ``job`` decides between a new run, a resumed one and an error."""

    def __init__(
        self, plan: Plan, output: Output, files: list[inputs.InputFile], request: OpenRequest
    ) -> None:
        sink, given = plan.sink, plan.source
        assert sink is not None
        self._output = output
        self._saved: dict[str, SavedPlan] = {}
        self._peeked: dict[str, tuple[SavedPlan, JournalState, Contents]] = {}
        self._request = request
        self._further = request.incremental  # the input is read as runs of one output do
        plan = self._with_source(plan)
        self._plan = plan
        self._sink: Sink = sink
        self._files = plan.source.files() if plan.source is not given else files
        self.code = code_of_plan(plan)
        if request.refresh:
            check_refresh(plan, self.code, incremental=request.incremental, on_change=request.on_change)
        if request.incremental:
            check_incremental(plan, self._files, request.mode)

    def _prepare(self) -> None:
        """Have the rows of the source made, if they have to be before they can be planned; once it is our run."""
        prepare = self._request.prepare
        if not self._plan.source.unprepared:
            return
        assert prepare is not None
        self._plan, partitioning = prepare(self._plan, self._output)
        self._files = self._plan.source.files()
        self._request = msgspec.structs.replace(self._request, partitioning=partitioning)

    def _with_source(self, plan: Plan) -> Plan:
        """Return the plan with its source as the output asks for it; sets the shape to recognise a run by."""
        described, saved = {}, None
        current = self._first() if self._request.mode != "overwrite" else None
        if current is not None:
            saved = self._saved_plan(current)
            described = saved.described["source"]
            if saved.input is not None and not self._further:
                several = len(self._peek(current)[1].versions) > 1
                self._further = several or not set(saved.input.position).intersection(described)
        if self._further:
            plan = inputs.for_further_runs(plan)
        elif saved is not None:
            source = plan.source.as_planned(described)
            plan = plan if source is plan.source else replace(plan, source=source)
        shape = shape_of(plan)
        if self._further and saved is not None and saved.input is not None:
            beyond = {name: each for name, each in described.items() if name not in saved.input.position}
            if beyond == plan.source.describe():
                shape["source"] = described  # of the version that it was begun from
        self._shape = encoded(shape)
        return plan

    def _saved_plan(self, run: str) -> SavedPlan:
        """Return a run's plan as it was saved, which is read once: it may be big."""
        if run not in self._saved:
            self._saved[run] = read_plan(self._output.folder(run))
        return self._saved[run]

    def _peek(self, run: str) -> tuple[SavedPlan, JournalState, Contents]:
        """Read a run's journal, unless this was done since a run was opened here: nobody else writes it."""
        if run not in self._peeked:
            self._peeked[run] = peek(self._output, run, self._saved_plan(run))
        return self._peeked[run]

    def _first(self) -> str | None:
        """Return the run whose parts are in the output; or, before any are, the one whose parts are to be."""
        return self._output.current() or self._output.next()

    def _recover(self, run: str, *, hidden: bool) -> ShardCommitter:
        request = self._request
        seen = self._peeked.pop(run)[2] if run in self._peeked else None
        committer = recover(
            self._output,
            run,
            self._saved_plan(run),
            self._sink,
            durability=request.durability,
            hidden=hidden,
            go_on=request.on_change == "continue",
            seen=seen,
        )
        committer.gated = request.gated
        return committer

    def job(self) -> Job:
        self._check_no_fleet()
        swapped = self._finish_swap()
        output = self._output
        hidden, current = output.next(), output.current()
        output.check_parts({run for run in (hidden, current) if run is not None})
        if self._request.mode == "overwrite":
            return self._overwrite(hidden, current, swapped)
        if current is not None and self._request.mode in ("ignore", "error", "append"):
            found = self._finished_job(current)
            if found is not None:
                return found
        first = self._first()
        # Both refuse before anything is touched.
        keep = first is not None and self._is_same(first) and self._is_unseen(first)
        if hidden is not None and hidden != first:
            if self._peek(hidden)[1].withheld is not None:  # it waits for somebody to decide about it
                raise refusals.withheld(output)
            output.forget(hidden)  # an overwrite that was abandoned
        if first is not None and keep:
            return self._resume(first, hidden=first == hidden)
        if self._request.retries:
            raise NothingMatched(
                f"refresh='rejected': there is no run of this plan in {output}, so there are no rejected rows. Run "
                "the program without it first."
            )
        if first is not None:
            self._check_not_in_table(first)
            output.forget(first)
        return self._begin()

    def _check_no_fleet(self) -> None:
        """Refuse to work alone where machines have begun together; remove what is left of those that are done."""
        place = self._output.place
        if self._request.run or FLEET not in place.folders(HOME):
            return
        if place.size_of(f"{HOME}/{FLEET}/{NOTES}/plan") >= 0:
            raise refusals.of_a_fleet(self._output)
        place.remove_below(f"{HOME}/{FLEET}")

    def _is_unseen(self, run: str) -> bool:
        """Say whether a run can go on so that nothing more is revealed before its end, if that is asked for.

        One that has begun to reveal its parts is refused; False for one that has none yet, which is begun again.
        """
        if not self._request.gated or run != self._output.current():
            return True
        _, state, contents = self._peek(run)
        if state.finished or state.hidden:
            return True
        if next(contents.in_force(), None) is None:
            return False
        raise refusals.seen_too_early(self._output)

    def _check_not_in_table(self, run: str) -> None:
        """Refuse to remove parts that are rows of a table."""
        target = self._sink.target
        if target is None:
            return
        names = [entry.name(run) for entry in self._peek(run)[1].runs]
        why = next(filter(None, map(target.kept_rows, names)), "")
        if why:
            raise refusals.in_a_table(self._output, why)

    def _overwrite(self, hidden: str | None, current: str | None, swapped: str | None) -> Job:
        """Resume an unfinished run of the same plan, code and input; else begin one, over what is there."""
        self._prepare()
        for run in (hidden, current):
            if run is None:
                continue
            saved, state, contents = self._peek(run)
            unfinished = (not state.finished or run == swapped) and not state.hidden
            same = saved.shape == self._shape and state.code == self.code
            same = same and saved.files == inputs.as_they_are(saved, self._files)
            same = same and (next(contents.in_force(), None) is not None or self._is_as_planned(saved))
            if (
                unfinished
                and same
                and (run == hidden or not self._request.gated)  # readers see what it has done
                and self._is_same_code(state, contents)
                and not self._schema_difference(state)
            ):
                return self._resume(run, hidden=run == hidden)
            self._check_not_in_table(run)
            if run == hidden:
                self._output.forget(run)
        return self._begin()

    def _finished_job(self, run: str) -> Job | None:
        """Return a finished run as it is, whatever its plan, or refuse it; None for one that is not finished."""
        _, state, _ = self._peek(run)
        if not state.finished:
            return None
        target = self._sink.target
        if self._request.mode == "error" and target is not None:
            with contextlib.closing(self._recover(run, hidden=False)) as committer:
                check_in_table(committer, incremental=False)
        if self._request.mode in ("append", "error"):
            raise refusals.finished(self._output, self._request.mode, in_table=target is not None)
        committer = self._recover(run, hidden=False)
        if committer.state.finished:
            recorded = msgspec.json.decode(
                safe_files.content(self._output.root / SUCCESS), type=dict[str, Any]
            )
            return Job(self._plan, self._output, committer, resumed=True, recorded=recorded)
        committer.close()  # a part is gone
        return None

    def _is_same(self, run: str) -> bool:
        """Return whether to resume a run; False: begin again, as the user asked."""
        saved, state, contents = self._peek(run)
        changed = sorted(
            key for key in {*state.code, *self.code} if state.code.get(key) != self.code.get(key)
        )
        restart = self._request.on_change == "restart" and not self._is_same_code(state, contents)
        schema_change = self._schema_difference(state)
        before = [key.partition(": ")[2] for key in changed if is_of_input(key)]
        goes_on = self._request.on_change == "continue" and not before
        can_resume = saved.shape == self._shape and (not changed or goes_on)
        begun = (self._output.folder(run) / safe_files.KEPT / AHEAD).exists()
        nothing = not (state.finished or begun) and next(contents.in_force(), None) is None  # could get lost
        if can_resume and not restart and not schema_change:
            return not nothing or self._is_as_planned(saved)
        if nothing:
            return False
        if saved.shape != self._shape:
            in_table = self._sink.target is not None
            raise refusals.another_plan(self._output, saved.shape, self._shape, in_table=in_table)
        if self._request.on_change == "restart":
            return False
        if schema_change and can_resume:
            return self._restart_for_schema(state, schema_change)
        if before and self._request.on_change == "continue":
            raise refusals.changed_before_a_query(self._output, before[0])
        if unknown := unrecognised(self.code) or unrecognised(state.code):
            raise refusals.unrecognised(self._output, unknown[0])
        raise refusals.other_code(self._output, [key.partition(": ")[2] for key in changed])

    def _is_as_planned(self, saved: SavedPlan) -> bool:
        """Say whether a run would be planned now as it was: its files are the same, and its shards."""
        self._prepare()
        if saved.files != inputs.as_they_are(saved, self._files):
            return False
        divided = any(shard.name for shard in saved.shards)  # which took time to find out
        return divided or saved.shards == self._request.partitioning.shards(self._plan.source)

    def _is_same_code(self, state: JournalState, contents: Contents) -> bool:
        """Say whether every committed shard was made by the present code, and none by an earlier revision."""
        return all(state.codes.get(record.revision) == self.code for record in contents.lasting())

    def _schema_difference(self, state: JournalState) -> str:
        """Say how the output schema that is asked for differs from the one that the run has; "" if it does not."""
        asked = self._plan.output_schema
        if asked is None or state.schema is None:
            return ""
        settled = schema_from(state.schema)
        return "" if settled.equals(asked) else describe_difference(settled, asked)

    def _restart_for_schema(self, state: JournalState, schema_change: str) -> bool:
        """Begin an unfinished run again if its types are not those of ``schema=``; refuse a finished one."""
        if state.finished:
            raise refusals.other_schema(self._output, schema_change)
        warn(
            f"`schema=` asks for another schema than the unfinished run in {self._output} has: {schema_change}. All "
            "parts of an output have one schema, so finished work is done again."
        )
        return False

    def _finish_swap(self) -> str | None:
        """A run that was about to be published when its driver died is so first, whatever is asked now.

        Return the one that takes the place of another; None if there is none, or if it is a further run.
        """
        swapped = None
        for run in filter(None, (self._output.current(), self._output.next())):
            state = self._peek(run)[1]
            if state.swapping is None or state.finished:
                continue
            with contextlib.closing(self._recover(run, hidden=True)) as committer:
                swapping = committer.state.swapping
                if swapping is not None:  # some of it may be gone meanwhile
                    committer.finish(swapping.seconds, swapping.summary)
                    swapped = None if state.hidden else run
        return swapped

    def _begin(self) -> Job:
        self._prepare()
        plan, request = self._plan, self._request
        compiler.columns_at(plan.steps, plan.source.schema())
        for what in unrecognised(self.code)[:1]:
            warn(f"This run cannot be resumed, as {what} cannot be compared: give the step version='…'.")
        saved = new_plan(plan, request, self.code)
        inputs.note(plan.source, saved)
        pointer = "next" if request.gated or self._output.current() is not None else "current"
        committer = begin(self._output, saved, self._sink, durability=request.durability, pointer=pointer)
        return Job(plan, self._output, committer, resumed=False)

    def _resume(self, run: str, *, hidden: bool) -> Job:
        committer = self._recover(run, hidden=hidden)
        state = committer.state
        interrupted = not state.finished
        try:
            request = self._request
            if state.finished and not hidden:
                further = request.incremental or (request.retries and self._further)
                check_in_table(committer, incremental=further)
            if request.retries and all(state.done):  # the input is not read
                if state.code != self.code:
                    committer.note(Revision(state.revision + 1, self.code))
                return Job(self._plan, self._output, committer, resumed=True, interrupted=interrupted)
            if state.finished and self._plan.source.unprepared:  # its input is part of its shape
                return Job(self._plan, self._output, committer, resumed=True)
            self._prepare()
            request = self._request
            grows = request.incremental or (request.on_change == "continue" and not request.retries)
            partitioning = request.partitioning if grows else None
            plan, files = self._plan, self._files
            if self._further and plan.source.position():
                to_read = inputs.files_to_read(plan.source, committer)
                incremental, refresh = request.incremental, request.refresh
                plan = inputs.since(
                    plan, committer, to_read, partitioning, incremental=incremental, refresh=refresh
                )
                files = plan.source.files()
            planned = committer.plan
            files = inputs.as_they_are(planned, files, warns=True)
            plan = reconcile(
                plan,
                committer,
                files,
                partitioning,
                incremental=request.incremental,
                refresh=self.code if request.refresh else None,
            )
            if request.gated and not (state.finished or committer.revealing.aside):  # some parts were gone
                raise refusals.seen_too_early(self._output)
            inputs.mark(plan.source, committer, planned, files)
            inputs.note(plan.source, committer.plan)
            if self._further:
                inputs.reach(committer, plan)
            if state.code != self.code and 0 in state.done and not state.finished:
                committer.note(Revision(state.revision + 1, self.code))
        except BaseException:
            committer.close()
            raise
        return Job(plan, self._output, committer, resumed=True, interrupted=interrupted)


def new_plan(plan: Plan, request: OpenRequest, code: dict[str, str]) -> SavedPlan:
    """Return the plan of a run that begins, as it is to be saved: with the files that its shards were made of."""
    shards = request.partitioning.shards(plan.source)
    files = plan.source.files() if request.lists_input else []
    target = None if plan.sink is None else plan.sink.target
    return SavedPlan(
        request.run or new_run_name(),
        encoded(shape_of(plan)),
        code,
        files,
        shards,
        time.time(),
        request.version,
        inputs.version_of(plan.source),
        "" if target is None else target.table_there(),
        inputs.marks_of(files),
    )


def encoded(shape: dict[str, Any]) -> str:
    """Return a plan's shape as saved plans have it."""
    return msgspec.json.encode(shape, order="sorted").decode()
