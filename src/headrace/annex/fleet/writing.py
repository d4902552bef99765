"""``fleet=True``: work with other machines until the whole output is made, then open it as one run of one machine."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from headrace.annex.fleet.board import PLAN, FleetPlan
from headrace.annex.fleet.gathering import ROWS_FIRST, adopt, check_errors, gathered, shards_of, worked
from headrace.annex.fleet.machine import LONGEST_LOOK, Fleet, Machine, given, sharing
from headrace.core.process import backoff
from headrace.core.target_ports import Moment
from headrace.core.work import (
    FLEET,
    HOME,
    NOTES,
    SUCCESS,
    Durability,
    Shard,
)
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    InputChanged,
    JournalDamaged,
    NothingMatched,
    PlanChanged,
    PlanError,
    RunLocked,
)
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
from headrace.plan.identity import code_of, code_of_plan, difference, shape_of, unrecognised
from headrace.plan.logical import Plan
from headrace.plan.partitioning import in_windows
from headrace.plan.steps.base import Step, union_in
from headrace.session import invocation
from headrace.session.invocation import as_interrupts

MACHINES = 64
"""Shards are made as if so many workers took them: nobody knows how many machines will come."""
FIRST_LOOK = 0.1
"""Seconds until the second try to open an output that another machine has just completed."""

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
        why = f"which rows a limit lets pass depends on what {before} leaves out. {ROWS_FIRST}"
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
            f"of them a limit lets pass depends on that. {ROWS_FIRST}."
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
        lines = difference(saved.described, msgspec.json.decode(shape))
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
                    check_errors(fleet, found)
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
