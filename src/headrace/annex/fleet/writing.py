"""``fleet=True``: work with other machines until the whole output is made, then open it as one run of one machine."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from headrace.annex.fleet.board import PLAN, FleetPlan
from headrace.annex.fleet.machine import LONGEST_LOOK, Fleet, Machine, given, sharing
from headrace.core.events import MachinesWorked, MachineWork
from headrace.core.files import safe_files
from headrace.core.metric_states import STATES, side_files
from headrace.core.process import backoff
from headrace.core.target_ports import Moment
from headrace.core.work import (
    FLEET,
    HOME,
    NOTES,
    SUCCESS,
    CommitRecord,
    Durability,
    Faults,
    Ledger,
    Shard,
    Split,
)
from headrace.driver.policies.shards import ErrorBudget
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    InputChanged,
    JournalDamaged,
    LedgerMismatch,
    NothingMatched,
    PlanChanged,
    PlanError,
    RunLocked,
)
from headrace.observers.record import EVENTS
from headrace.options import RunOptions
from headrace.output import inputs
from headrace.output.commit import ShardCommitter, bind_sink
from headrace.output.job import Job, OpenRequest
from headrace.output.journal import Journal
from headrace.output.layout import Output, open_output, read_plan
from headrace.output.places.place import looked_at, place_at
from headrace.output.publishing import Notes
from headrace.output.recover import peek
from headrace.output.resume import encoded, new_plan, open_job
from headrace.output.runs import SavedRun, current_run, pointer
from headrace.plan import compile as compiler
from headrace.plan.accounts import mismatch
from headrace.plan.identity import code_of, code_of_plan, difference, shape_of, unrecognised
from headrace.plan.logical import Plan
from headrace.plan.partitioning import in_windows
from headrace.plan.steps.base import Step, union_in
from headrace.session import invocation
from headrace.session.invocation import as_interrupts

_LABEL = re.compile(r"(?<=part-)\d+(?:\.\d+)*")
MACHINES = 64
"""Shards are made as if so many workers took them: nobody knows how many machines will come."""
FIRST_LOOK = 0.1
"""Seconds until the second try to open an output that another machine has just completed."""

_ROWS_FIRST = "Write the rows up to the limit with one machine first, and read that with all"

Drive = Callable[[Machine], None]


@contextlib.contextmanager
def fleet_job(plan: Plan, request: OpenRequest, options: RunOptions, drive: Drive) -> Iterator[Job]:
    """Do what this machine gets of the work, wait for the others, and open the output with all of it.

    ``drive`` carries out the run of a machine. In the job, every shard is committed; the first machine to come here
    completes it, and others find it complete.
    """
    _check(plan, options)
    with contextlib.ExitStack() as stack, as_interrupts():  # a machine that is to go saves what it has
        fleet, job = _joined(plan, request, options.max_errors), None
        if fleet is not None:
            _work(fleet, drive)
            job = _gathered(fleet, stack)
        yield job or _opened(plan, _not_again(plan, request), stack, fleet)


def _not_again(plan: Plan, request: OpenRequest) -> OpenRequest:
    """Return the request without ``mode="overwrite"`` where machines that were there before have done just that."""
    assert plan.sink is not None
    with (
        contextlib.suppress(HeadraceError),
        looked_at(plan.sink.root, plan.sink.storage.options) as there,
    ):
        run = current_run(there.root) if request.mode == "overwrite" else None
        if run is not None and run.finished and _is_same(plan, run):
            return msgspec.structs.replace(request, mode="resume")
    return request


def _check(plan: Plan, options: RunOptions) -> None:
    """Refuse what machines cannot do apart from one another."""
    sink = plan.sink
    why = ""
    if options.traits.is_cluster:
        why = "it is for machines without a cluster, and engine= names one. Leave one of them out"
    elif sink is not None and sink.target is not None and sink.target.describe().get("mode") == "add_columns":
        why = "columns are added to a table by one machine. Leave fleet= out"
    elif plan.source.unprepared:
        why = "an input that is made first lies on one machine. Write it with one machine, and read that with all"
    elif before := _before_limits(plan.steps, rejects=options.on_error == "reject"):
        why = f"which rows a limit lets pass depends on what {before} leaves out. {_ROWS_FIRST}"
    elif union_in(plan.steps) is not None:
        why = (
            "a union of datasets with steps of their own gets one schema. Write each by itself, and read all"
        )
    elif refused := _not_shared(plan):
        why = refused
    else:
        asked = {
            "mode": options.mode not in ("resume", "overwrite")
            or (options.mode == "overwrite" and sink is not None and sink.target is not None),
            "incremental": options.incremental,
            "refresh": options.refresh is not None,
            "on_change": options.on_change != "refuse",
        }
        name = next((name for name, found in asked.items() if found), "")
        why = f"{name}={getattr(options, name)!r} goes with one machine. Leave fleet= out" if name else ""
    if why:
        raise ArgumentError(f"fleet=True cannot be used here: {why}.")


def _before_limits(steps: Sequence[Step], *, rejects: bool) -> str:
    """Name the step before a limit that may let other rows pass than come to it; "" if there is none.

    ``rejects``: a row that fails is left out.
    """
    before = ""
    for step in steps:
        if step.row_limit is not None and before:
            return before
        if step.row_limit is None and (not step.one_to_one or (rejects and [*step.functions()])):
            before = before or step.label()
    return ""


def _up_to_limits(plan: Plan, shards: Sequence[Shard]) -> Sequence[Shard]:
    """Return the shards of the rows that limits let pass, of which each is needed."""
    limits = compiler.limits_of(plan.steps)
    if not limits:
        return shards
    if any(shard.rows < 0 for shard in shards):
        raise ArgumentError(
            f"fleet=True cannot be used here: how many rows this input has is known only once it was read, and which "
            f"of them a limit lets pass depends on that. {_ROWS_FIRST}."
        )
    found, left = list[Shard](), min(limits)
    for shard in shards:
        if left <= 0:
            break
        found.append(msgspec.structs.replace(shard, splits=next(in_windows(shard.splits, [left]), ())))
        left -= shard.rows
    return found


def _not_shared(plan: Plan) -> str:
    """Say what machines would spend that they cannot share; "" if nothing."""
    try:
        sharing(plan)
    except PlanError as error:
        return str(error)
    return ""


def _opened(plan: Plan, request: OpenRequest, stack: contextlib.ExitStack, fleet: Fleet | None) -> Job:
    """Open the output as ever; where another machine has just completed it, look at it, or wait for that one."""
    assert plan.sink is not None
    complete = fleet is not None
    for tries in itertools.count(1):
        try:
            job = None
            if fleet is not None:  # it is not held, as all want to have it now
                with contextlib.suppress(NothingMatched, JournalDamaged):  # opening it says so
                    job = look_at_job(plan, fleet.fleet.plan.run, request.durability)
            return stack.enter_context(job or open_job(plan, request))
        except RunLocked:
            if not complete:
                with looked_at(plan.sink.root, plan.sink.storage.options) as there:
                    complete = (there.root / SUCCESS).exists()
            if not complete:
                raise
        time.sleep(backoff(tries, FIRST_LOOK, LONGEST_LOOK))
    raise AssertionError


def look_at_job(plan: Plan, run: str, durability: Durability) -> Job | None:
    """Return a run of the plan that another driver has completed, without holding its output; None if it has not."""
    assert plan.sink is not None
    place = place_at(plan.sink.root, plan.sink.storage.options)
    with contextlib.ExitStack() as opened:
        opened.callback(place.close)
        place.look()
        output = Output(place, held=False)
        if output.current() != run or not output.is_marked(run):
            return None
        saved, state, contents = peek(output, run, read_plan(output.folder(run)))
        if not state.finished:
            return None
        for record in contents.in_force():
            state.add(record)
        sink = bind_sink(plan.sink, output, saved, durability, state.runs)
        journal = Journal(output.folder(run) / "journal", -1, len(contents), durability)
        committer = ShardCommitter(output, saved, sink, journal, state, moment=Moment.COMMIT)
        opened.pop_all()
    committer.empty = False
    job = Job(plan, output, committer, resumed=True)
    job.code = code_of_plan(plan)
    return job


# ---------------------------------------------------------------- joining


def _joined(plan: Plan, request: OpenRequest, max_errors: float | None) -> Fleet | None:
    """Join those who work on the output, or be the first; None where one machine has begun or finished it."""
    assert plan.sink is not None
    place = place_at(plan.sink.root, plan.sink.storage.options)
    notes = place.notes(f"{FLEET}/{NOTES}")
    made, code = _planned(notes, plan.sink.root), code_of(plan.steps)
    if made is None:
        if _is_begun(plan, request):
            return None
        fleet = _first(plan, request, notes, code)
        command = invocation.current()
        if command is not None and not place.copied:  # what is in a store, others may write
            command.record(place.root / HOME / FLEET, place.at())
    else:
        fleet = _checked(plan, made, code)
    return Fleet(plan, request, fleet, notes, max_errors)


def _is_begun(plan: Plan, request: OpenRequest) -> bool:
    """Say whether one machine has begun an output, or it is done; what is to be overwritten does not count."""
    assert plan.sink is not None
    with (
        contextlib.suppress(HeadraceError),
        looked_at(plan.sink.root, plan.sink.storage.options) as there,
    ):
        if pointer(there.root, "next"):
            return True
        if pointer(there.root, "current"):
            run = current_run(there.root)
            return request.mode != "overwrite" or run is None or not run.finished or _is_same(plan, run)
    return False


def _is_same(plan: Plan, run: SavedRun) -> bool:
    """Say whether a run has the plan, the code and the input that are asked for."""
    same = run.plan.shape == encoded(shape_of(plan)) and run.state.code == code_of_plan(plan)
    return same and run.plan.files == inputs.as_they_are(run.plan, plan.source.files())


def _first(plan: Plan, request: OpenRequest, notes: Notes, code: dict[str, str]) -> FleetPlan:
    """Plan the work, unless another machine is faster; return what counts."""
    if unknown := unrecognised(code):
        raise PlanChanged(
            f"fleet=True: it cannot be known whether {unknown[0]} is the same on all machines. Give the step "
            "version='…', or create the value inside the function."
        )
    workers = max(MACHINES, request.partitioning.workers)
    partitioning = msgspec.structs.replace(request.partitioning, workers=workers, merged=False)
    request = msgspec.structs.replace(request, partitioning=partitioning)
    saved = new_plan(plan, request, code)
    made = FleetPlan.of(msgspec.structs.replace(saved, shards=[*_up_to_limits(plan, saved.shards)]))
    assert plan.sink is not None
    other = None if notes.add(PLAN, made.encode()) else _planned(notes, plan.sink.root)
    return made if other is None else _checked(plan, other, code)


def _planned(notes: Notes, where: str) -> FleetPlan | None:
    """Return the plan of the machines that write an output; None if there are none."""
    data = notes.read(PLAN)
    return None if data is None else FleetPlan.decode(data, where)


def _checked(plan: Plan, fleet: FleetPlan, code: dict[str, str]) -> FleetPlan:
    """Return the plan of a fleet, if this machine was given the same program and input."""
    assert plan.sink is not None
    where = plan.sink.root
    saved, shape = fleet.plan, encoded(shape_of(plan))
    if saved.shape != shape:
        lines = difference(msgspec.json.decode(saved.shape), msgspec.json.decode(shape))
        raise PlanChanged(
            f"Other machines write {where} by another plan: {'; '.join(lines)}. Nothing was touched: give all "
            "machines the same program, or write to another place."
        )
    changed = sorted(key for key in {*saved.code, *code} if saved.code.get(key) != code.get(key))
    if changed:
        name = changed[0].partition(": ")[2]
        raise PlanChanged(
            f"{name[0].upper()}{name[1:]} is not the same here as on the machines that write {where}. Nothing was "
            "touched: give all machines the same code and the same model, or give the step version='…' if only the "
            f"code looks different. If all are to begin again with other code, remove {where} first."
        )
    files = inputs.as_they_are(saved, plan.source.files())
    if saved.files != files:
        raise InputChanged(
            f"The input is not the same as when the machines that write {where} began. Nothing was touched: restore "
            "the files, or write to another place."
        )
    # The source has the names of all files already: there may be millions.
    return msgspec.structs.replace(fleet, plan=msgspec.structs.replace(saved, files=files))


# ---------------------------------------------------------------- work


def _work(fleet: Fleet, drive: Drive) -> None:
    """Do what there is to do, until nothing is left by anybody."""
    tries = 0
    while fleet.look() and not fleet.board.complete:
        try:
            with fleet.machine() as machine:
                if machine is not None:
                    drive(machine)
                    machine.end()
                    tries = 0
                    continue
        except RunLocked:  # others have taken over what this machine had, as it was silent for too long
            continue
        tries += 1
        _wait(fleet, tries)


def _wait(fleet: Fleet, tries: int, looks: int = 1) -> None:
    time.sleep(fleet.pause(tries, looks))


def _gathered(fleet: Fleet, stack: contextlib.ExitStack) -> Job | None:
    """Open the output with all that was made; None if another machine has completed it."""
    sink, tries = fleet.plan.sink, 0
    assert sink is not None
    while True:
        tries += 1
        if fleet.completes():
            _wait(fleet, tries, 8)  # nothing is lost
            continue
        if not fleet.look():
            return None
        with contextlib.ExitStack() as opened:
            try:
                output = open_output(sink.root, sink.storage.options)
                try:  # one reads all
                    found = opened.enter_context(gathered(fleet))
                    _check_errors(fleet, found)
                except BaseException:
                    output.close()
                    raise
                shards = given(fleet.request.partitioning, shards_of(found))
                run = fleet.fleet.plan.run
                mode = "resume" if output.current() == run else fleet.request.mode
                request = msgspec.structs.replace(fleet.request, run=run, mode=mode, partitioning=shards)
                job = opened.enter_context(open_job(fleet.plan, request, output))
                job.machines = worked(fleet, found)
                if job.complete:
                    job.output.tidy(job.committer.plan.run)
                else:
                    adopt(job, found)
            except RunLocked:
                _wait(fleet, tries)
                continue
            except (HeadraceError, OSError):
                if fleet.look():
                    raise
                return None  # while this machine looked, another has completed it
            stack.push(opened.pop_all())
            return job


# ---------------------------------------------------------------- gathering


class Gathered(msgspec.Struct, frozen=True):
    """A shard that a machine has committed, in the place that it has among all."""

    machine: str
    run: SavedRun
    shard: Shard
    record: CommitRecord


@contextlib.contextmanager
def gathered(fleet: Fleet) -> Iterator[list[Gathered]]:
    """Return what counts of all that machines have committed, in the order of the input.

    Their outputs are open meanwhile. Raises ``LedgerMismatch`` if that is not what was planned.
    """
    with contextlib.ExitStack() as opened:
        found: list[Gathered] = []
        for machine, ended in fleet.board.ended.items():
            if ended.counted == ():
                continue
            sink = fleet.sink_of(machine)
            there = opened.enter_context(looked_at(sink.root, sink.storage.options))
            run, counted = current_run(there.root), None if ended.counted is None else {*ended.counted}
            if run is not None:
                shards = run.plan.shards
                records = [each for each in run.records if counted is None or each.shard in counted]
                found += [Gathered(machine, run, shards[each.shard], each) for each in records]
        found.sort(key=lambda each: each.shard.place)
        _check_whole(fleet, found)
        yield found


def shards_of(found: Sequence[Gathered]) -> list[Shard]:
    """Return the shards as the output has them: numbered in their order."""
    return [Shard(i, each.shard.splits) for i, each in enumerate(found)]


def worked(fleet: Fleet, found: Sequence[Gathered]) -> MachinesWorked:
    """Return what each machine has done of it, those that did most first."""
    by_machine = dict[str, list[Gathered]]()
    for each in found:
        by_machine.setdefault(each.machine, []).append(each)
    made = [
        MachineWork(
            machine,
            _host_of(theirs[0].run),
            len(theirs),
            ledger.read,
            ledger.written,
            ledger.rejected,
            round(fleet.board.ended[machine].pace.seconds, 3),
        )
        for machine, theirs in by_machine.items()
        for ledger in [sum((each.record.ledger for each in theirs), Ledger())]
    ]
    return MachinesWorked(tuple(sorted(made, key=lambda each: -each.rows)))


def _host_of(run: SavedRun) -> str:
    """Return the host of a machine, from the first line of its record; "" if that says nothing."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        lines = safe_files.content(run.folder / EVENTS).split(b"\n")
        return str(msgspec.json.decode(lines[0], type=dict[str, Any]).get("host", ""))
    return ""


def _check_errors(fleet: Fleet, found: Sequence[Gathered]) -> None:
    """Raise ``TooManyErrors`` if more rows have failed on all machines than may; nothing is published then."""
    records = [each.record for each in found]
    ledger = sum((record.ledger for record in records), Ledger())
    ErrorBudget(fleet.max_errors, ledger, sum((record.faults for record in records), Faults())).check()


def adopt(job: Job, found: Sequence[Gathered]) -> None:
    """Commit what machines have made, as far as the output does not have it."""
    committer, digits = job.committer, job.committer.plan.digits()
    schemas = (each.run.state.schema for each in found if each.run.state.schema is not None)
    schema = next(schemas, None)  # none, if no machine has written a row
    if committer.state.schema is None and schema is not None:
        committer.settle(schema)
    for i, each in enumerate(found):
        if committer.state.done[i]:
            continue
        label = Shard(i, ()).label(digits)
        place, run = job.output.place, committer.plan.run
        files = tuple(
            place.adopted(run, each.machine, file, _LABEL.sub(label, file.name)) for file in each.record.files
        )
        _copy_states(job, each)
        committer.accept(msgspec.structs.replace(each.record, shard=i, files=files))
    committer.commit_accepted()


def _copy_states(job: Job, each: Gathered) -> None:
    """Bring big states of metrics, which are named by what is in them."""
    folder = job.committer.folder / STATES
    for name in side_files(each.record):
        if not (folder / name).exists():
            safe_files.make_folder(folder, 0o700)
            safe_files.write(folder / name, safe_files.content(each.run.folder / STATES / name))


def _check_whole(fleet: Fleet, found: Sequence[Gathered]) -> None:
    """Compare what was committed with what was planned, row by row of the input."""
    made = {number: list(shards) for number, shards in groupby(found, key=lambda each: each.shard.place[0])}
    for shard in fleet.fleet.plan.shards:
        theirs = made.pop(shard.index, [])
        whole = list(_windows(split for each in theirs for split in each.shard.splits))
        if whole != list(_windows(shard.splits)):
            who = [f"{each.machine} has {each.shard.name or each.shard.index}" for each in theirs]
            raise LedgerMismatch(
                mismatch(
                    f"part {shard.index} of the input is not done once by one machine: "
                    f"{', '.join(who) or 'none has it'}; {fleet.board.told(shard.index)}"
                )
            )
    if made:
        raise LedgerMismatch(mismatch(f"part {min(made)} of the input was not planned"))
    _check_limits(fleet, sum((each.record.ledger for each in found), Ledger()))


def _check_limits(fleet: Fleet, ledger: Ledger) -> None:
    """Raise ``PlanError`` if rows before a limit have failed: no machine has made those that take their place."""
    rows = sum(shard.rows for shard in fleet.fleet.plan.shards)
    for step, (came, passed) in zip(fleet.plan.steps, ledger.steps, strict=False):
        if step.row_limit is not None and min(came, passed) < min(rows, step.row_limit):
            raise PlanError(
                f"{rows - came:,} rows have failed before {step.label()}, and further rows would take their place, "
                f"which no machine has made. Nothing was published. {_ROWS_FIRST}."
            )


def _windows(splits: Iterable[Split]) -> Iterator[Split]:
    """Yield splits in whose place neighbouring windows of one are again what they were cut from.

    >>> whole = Split(0, 0, 1, 9)
    >>> list(_windows([Split(0, 0, 1, 9, high=4), Split(0, 0, 1, 9, low=4)])) == [whole]
    True
    """
    last: Split | None = None
    for split in splits:
        if split.length == 0:
            continue
        ends = split.high < 0 or 0 <= split.rows <= split.high
        split = msgspec.structs.replace(split, high=-1) if ends else split
        if last is not None and last.high == split.low > 0 and _source(last) == _source(split):
            last = msgspec.structs.replace(last, high=split.high)
            continue
        if last is not None:
            yield last
        last = split
    if last is not None:
        yield last


def _source(split: Split) -> tuple[int, int, int]:
    return split.file, split.start, split.stop
