"""What is done before a run: rows that its source makes, and what models do for all rows."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.files import safe_files
from headrace.core.files.safe_files import writing
from headrace.core.model_ports import Ahead
from headrace.core.source_ports import Preparation
from headrace.driver.ports import InMemoryCommitter
from headrace.engines.local import machine
from headrace.errors import ArgumentError
from headrace.options import RunOptions
from headrace.output.layout import KEEP, Output
from headrace.output.names import AHEAD
from headrace.plan import compile as compiler
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning
from headrace.plan.steps.base import Step
from headrace.plan.steps.predict import Model, Predict, ahead_in
from headrace.session.build_runner import Resumed
from headrace.session.context import RunContext
from headrace.session.execution_plan import ExecutionPlan
from headrace.session.invocation import Requests

if TYPE_CHECKING:
    from headrace.core.asked import RunAsked
    from headrace.core.events import Event
    from headrace.observers.progress import Progress
    from headrace.output.job import Job
    from headrace.session.event_bus import EventBus


def prepared_in_output(
    context: RunContext, progress: Progress | None, plan: Plan, output: Output
) -> tuple[Plan, Partitioning]:
    """Have the rows made in the output's own folder; return the plan that reads them, and how it is partitioned."""
    options = context.options
    here = isinstance(output.place.at(), Path)
    if options.traits.is_cluster and not here:
        raise ArgumentError(
            f"The input is made first, beside the output, and workers of {options.engine_name} would not see it on "
            f"this machine. Write to a folder that all machines share, and not to {output}."
        )
    with writing(output.queries, "make"):
        safe_files.make_folder(output.queries, 0o700)
        if options.keep_queries:
            safe_files.write(output.queries / KEEP, b"")
    plan = replace(
        plan,
        source=plan.source.prepared(replace(_preparation(output.queries, options, progress), lasting=here)),
    )
    if any(made.rejected for made in plan.source.preparations()):
        safe_files.write(output.queries / KEEP, b"")
    context.execution = ExecutionPlan(replace(context.execution.plan, source=plan.source), options)
    return plan, context.execution.partitioning


def prepared_for_reading(plan: Plan, options: RunOptions) -> tuple[Plan, Callable[[], object]]:
    """Have the rows made in a temporary folder; return the plan that reads them, and what removes it afterwards.

    It goes, too, when nobody has the plan any more.
    """
    if not plan.source.unprepared:
        return plan, lambda: None
    folder = Path(tempfile.mkdtemp(prefix="headrace-made-"))
    try:
        source = plan.source.prepared(_preparation(folder, options))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    remove = weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)
    return replace(plan, source=source), remove


def _preparation(folder: Path, options: RunOptions, progress: Progress | None = None) -> Preparation:
    capacity = machine.capacity()  # the query is answered here, wherever workers are
    left = max(0, (options.memory_limit or capacity.memory) - machine.private_memory(os.getpid()))
    if options.memory_limit:
        left = left * 3 // 4  # an engine does not count all that it takes
    say = progress.prepare if progress is not None else lambda _: None
    workers = 0 if options.traits.is_cluster else options.workers  # those of a cluster are elsewhere
    return Preparation(folder, options, left, workers or capacity.cpus, say)


# ---------------------------------------------------------------- what models do: rows are looked at first

LOOKING_ROWS = 256
TICK = 0.2


def work_ahead(job: Job, options: RunOptions, events: EventBus, folder: str, *, grows: bool) -> None:
    """Have all models do what they do before the run; ``grows``: further shards may come."""
    for number, step, model, ahead in ahead_in(job.plan.steps):
        if not ahead.wanted(folder):
            continue
        if grows or options.traits.is_cluster:
            ahead.check(folder, (), elsewhere=True)
            continue
        if any(each.row_limit is not None for each in job.plan.steps[number + 1 :]):
            continue  # rows would be asked that nobody needs
        work = _Work(ahead, events, job)
        try:
            while work.carried_out():
                events.state.doing = f"{step.label()}: looking at what rows ask"
                events.tick()
                _look(job, options, number, replace(step, models=_looking(step, model, ahead)), folder)
                safe_files.write(Path(folder) / AHEAD, b"")
        finally:
            ahead.close()


class _Work:
    """The work of one model, in a thread; observers have their turn meanwhile."""

    def __init__(self, ahead: Ahead, events: EventBus, job: Job) -> None:
        self._ahead, self._events = ahead, events
        self._said: list[Event] = []
        self._asked: list[RunAsked] = []
        self._stops = threading.Event()
        self._requests = Requests(job.committer.folder, self._asked.append)
        ahead.open(self._said.append, self._alive)

    def carried_out(self) -> bool:
        """Have done what was begun or noted; say whether rows are to be looked at."""
        found: list[bool | BaseException] = []

        def work() -> None:
            try:
                found.append(self._ahead.carry_out())
            except BaseException as error:
                found.append(error)

        thread = threading.Thread(target=work, name="headrace-ahead")
        thread.start()
        try:
            while thread.is_alive():
                thread.join(TICK)
                self._tick()
                if any(each.ends for each in self._asked):
                    raise KeyboardInterrupt
        finally:
            self._stops.set()
            thread.join()
            self._stops.clear()
            self._tick()
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    def _alive(self) -> None:
        if self._stops.is_set():
            raise KeyboardInterrupt

    def _tick(self) -> None:
        while self._said:
            self._events.on_event(self._said.pop(0))
        self._events.state.doing = self._ahead.words
        self._events.tick()
        self._requests.tick()


def _looking(step: Predict, model: Model, ahead: Ahead) -> tuple[Model, ...]:
    """Return the models of a step up to this one, which only looks."""
    place = step.models.index(model)
    looks = replace(model.calling(ahead.looking), batch_size=LOOKING_ROWS, max_in_flight=2)
    return (*step.models[:place], looks)


def _look(job: Job, options: RunOptions, number: int, step: Step, folder: str) -> None:
    """Run the plan up to a step whose last model only looks, for the shards that are not done."""
    steps = (*job.plan.steps[:number], step)
    plan = replace(job.plan, steps=steps, sink=None, output_schema=None, requirements=())
    state = job.committer.state
    resumed = Resumed(done=state.done, passed=state.passed[: len(compiler.limits_of(steps))])
    options = replace(options, progress=False, observers=(), report=False)
    with RunContext.open(plan, options) as context:
        run = context.compose(
            plan, "count", job.shards, InMemoryCommitter(plan.metrics), resumed=resumed, folder=folder
        )
        run.drive()
