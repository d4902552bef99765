"""How a run is put together, whether it writes or is read: execution plan, engine, scheduler, policies, pools."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.door import completed
from headrace.core.engine_ports import Engine, EngineParts, PoolSpec
from headrace.core.files import safe_files
from headrace.core.process import hold_standard_streams
from headrace.core.terminal import warn
from headrace.engines.inline import DriverFirstEngine
from headrace.engines.local import machine
from headrace.options import RunOptions
from headrace.plan.logical import Plan
from headrace.plan.steps.base import Step, innermost, running_module
from headrace.plan.steps.predict import ahead_in
from headrace.session.engines import open_engine, worker_extras
from headrace.session.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.files.staged import Uploads
    from headrace.core.work import Shard
    from headrace.driver.block_tasks import BlockTasks
    from headrace.driver.loop import Runner
    from headrace.driver.ports import Committer
    from headrace.driver.scheduler import Scheduler
    from headrace.plan.physical import Program, Stage
    from headrace.session.build_runner import Resumed, RunSpec
    from headrace.session.event_bus import EventBus

IMPORTED_AHEAD = {"PIL", "lightgbm", "pandas", "scipy", "sklearn", "torch", "xgboost"}

# Whatever is not needed to start the first worker is imported inside functions, after that has been started: so the
# driver and the worker import at the same time. This goes for all that is imported by what is imported here.


class RunContext(msgspec.Struct):
    """An execution plan, and an engine that may have begun to start workers before their programs are known."""

    execution: ExecutionPlan
    engine: Engine
    sink: str = ""

    @classmethod
    def open(cls, plan: Plan, options: RunOptions, *, sink: str = "") -> RunContext:
        """Lay a plan out, and start the engine's first workers. Use it as a context manager.

        ``sink``: the module of the sink that the plan will have, if workers shall import it meanwhile.
        """
        hold_standard_streams()  # before anything is opened that could get their numbers
        execution = ExecutionPlan(plan, options)
        return cls(execution, _engine(execution, sink), sink)

    def __enter__(self) -> RunContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close(kill=True)

    @property
    def options(self) -> RunOptions:
        """How the run is carried out."""
        return self.execution.options

    def leave_to_workers(self) -> None:
        """Do nothing in this process that workers can do: one like it may have ended over that very work."""
        if self.sink and self.execution.begins_here:  # no pool was started yet
            self.engine = _workers(self.execution, self.sink, warm=0)

    def begin_again(self, steps: tuple[Step, ...] | None = None) -> None:
        """Get ready for another run of the plan; ``steps``: with these."""
        self.engine.close(kill=True)
        plan = self.execution.plan if steps is None else replace(self.execution.plan, steps=steps)
        self.execution = ExecutionPlan(plan, self.options)
        self.engine = _engine(self.execution, self.sink)

    def compose(
        self,
        plan: Plan,
        kind: str,
        shards: Sequence[Shard],
        committer: Committer,
        *,
        resumed: Resumed | None = None,
        events: EventBus | None = None,
        states: str = "",
        folder: str = "",
        uploads: Uploads | None = None,
        want: Callable[[], None] | None = None,
    ) -> Run:
        """Put a run together, which then only has to be driven.

        Parameters
        ----------
        plan
            The plan, with its sink if it writes.
        kind
            What becomes of the rows: ``"write"``, ``"blocks"``, ``"look"`` (the first of them) or ``"count"``.
        shards
            All shards of the plan, those among them that are done.
        committer
            Receives the commit records.
        resumed
            What earlier drivers left; None: nothing.
        events
            Receives the run's events.
        states
            The folder for big states of metrics.
        folder
            The folder for what models keep until the run has ended.
        uploads
            How workers upload what they write, if they do not see where the output is staged.
        want
            Asks for further shards, which a ``MoreShards`` brings; None: these are all.
        """
        from headrace.driver.ports import RunPorts
        from headrace.plan import compile as compiler
        from headrace.session.build_runner import Resumed, build_runner

        execution, resumed = self.execution, resumed or Resumed()
        done = resumed.done
        pending = [shard for shard in shards if not (done and done[shard.index])]
        shared = (
            kind == "write"
            and not compiler.limits_of(plan.steps)
            and self.options.commit_every is not None  # else each shard is one part
            and execution.most > 1
        )
        execution.fit(pending, shared=shared)
        traits = self.options.traits
        small = kind == "write" and execution.begins_here  # threads would take longer than they save
        overlap = not (traits.in_process or traits.is_cluster or small)
        for number, _, _, ahead in ahead_in(plan.steps):
            ahead.check(folder, plan.steps[number + 1 :], elsewhere=traits.is_cluster)
        for stage in execution.stages:
            for step in stage.steps:
                if kind == "write":
                    step.check_output(folder)
                if traits.is_cluster:
                    step.check_cluster(stage.workers, folder)
        programs = execution.programs(plan, kind, pending, overlap=overlap, states=states, folder=folder)
        if (rates := completed(self.engine, EngineParts).rates) is not None:
            held = rates()
            programs = [
                msgspec.structs.replace(each, steps=tuple(step.sharing(held, None) for step in each.steps))
                for each in programs
            ]
        if uploads is not None:
            programs[-1] = msgspec.structs.replace(programs[-1], uploads=uploads)
        spec = self._spec(plan, kind, shards, resumed, keeps=bool(folder), shared=shared)
        spec = msgspec.structs.replace(spec, want=want)
        runner = build_runner(spec, committer, RunPorts(events) if events is not None else None)
        return Run(self, runner.scheduler, runner, programs)

    def _spec(
        self, plan: Plan, kind: str, shards: Sequence[Shard], resumed: Resumed, *, keeps: bool, shared: bool
    ) -> RunSpec:
        from headrace.plan import compile as compiler
        from headrace.plan.accounts import Accounts
        from headrace.session.build_runner import RunSpec
        from headrace.session.combined import datasets_of

        options, execution = self.options, self.execution
        return RunSpec(
            shards=shards,
            limits=compiler.limits_of(plan.steps),
            reading=kind in ("blocks", "look"),
            max_attempts=options.max_attempts,
            ahead=execution.attempts_ahead(shards),
            accounts=Accounts(plan.steps, writes=kind == "write"),
            max_errors=options.max_errors,
            raises=options.on_error == "raise",
            locate=execution.plan.source.locate,
            batch_timeout=options.batch_timeout,
            stall_timeout=options.stall_timeout,
            commit_every=self._commit_every(plan, keeps=keeps) if kind == "write" else 0.0,
            shared=shared,
            memory_limit=options.memory_limit if options.traits.is_cluster else execution.memory_limit,
            driver_memory=partial(machine.private_memory, os.getpid()),
            machine=self.engine.machine,
            bounds=execution.bounds,
            sized=execution.sized if kind == "write" else (),
            blocks=self._blocks(),
            resumed=resumed,
            union=datasets_of(plan, shards) if kind == "write" else (),
        )

    def _commit_every(self, plan: Plan, *, keeps: bool) -> float:
        """Return after how many seconds a shard is committed in parts; 0: never.

        A window of requests runs empty at the end of each part, and where models can keep their answers, what they
        cost is not lost.
        """
        if keeps and any(step.keeps_answers for step in plan.steps):
            return 0.0
        return self.options.commit_every or 0.0

    def _blocks(self) -> BlockTasks | None:
        """Return what decides on the tasks of the stages before the last, if there are any."""
        stages = self.execution.stages
        *earlier, _ = stages
        if not earlier:
            return None
        from headrace.driver.block_queues import EarlierStages
        from headrace.driver.block_tasks import BlockTasks
        from headrace.engines.local.pool import spare_of

        budget = self.execution.block_budget
        described = EarlierStages(
            steps=[len(stage.steps) for stage in earlier],
            limits=[
                [i for i, step in enumerate(stage.steps) if step.row_limit is not None] for stage in earlier
            ],
            units=self.execution.partitioning.units[:-1],
            origins=[origin for stage in stages for origin in stage.origins],
            split=self.execution.partitioning.row_ranges,
        )
        return BlockTasks(
            described,
            budget=budget - spare_of(budget),
            max_attempts=self.options.max_attempts,
            machine=self.engine.machine,
        )


class Run(msgspec.Struct, frozen=True):
    """A run that is put together: what decides, what drives, and the program of each stage's workers."""

    context: RunContext
    scheduler: Scheduler
    runner: Runner
    programs: Sequence[Program]

    def stream(self) -> Iterator[pa.RecordBatch]:
        """Start the pools, drive the plan to its end, and end the pools; yields the rows of a plan that is read."""
        engine, runner = self.context.engine, self.runner
        pools = self._start_pools()
        yield from runner.stream(pools, engine)
        if not self.scheduler.stopped:  # then workers may be amid a batch, and are ended
            engine.close()

    def drive(self) -> None:
        """Start the pools, drive a plan whose output is written to its end, and end the pools."""
        for _ in self.stream():
            pass

    def _start_pools(self) -> list[Any]:
        from headrace.engines.out_of_band_pickle import try_pickling
        from headrace.plan.pickling import explained
        from headrace.worker import hosted_stage

        options, stages = self.context.options, self.context.execution.stages
        programs, sees = _probed(self.programs) if options.traits.is_cluster else (self.programs, "")
        extras = worker_extras(options)
        any_gpus = any(stage.num_gpus for stage in stages)
        pools: list[Any] = []
        for i, (stage, program) in enumerate(zip(stages, programs, strict=True)):
            last = i + 1 == len(stages)
            spec = PoolSpec(
                name=f"stage {i + 1}",
                factory=partial(hosted_stage, program),
                size=stage.least,
                threads=stage.threads,
                num_gpus=stage.num_gpus if any_gpus else None,
                memory=stage.memory,
                stall_timeout=options.stall_timeout,
                most=self.context.execution.bounds[i][1],
                num_cpus=stage.num_cpus,
                least=_least(stage),
                sees=sees if last else "",
                extra={**extras, **stage.remote},
            )
            with explained(program.steps, partial(try_pickling, most=sys.maxsize)):
                pools.append(self.context.engine.start(spec, self.runner.notify))
        return pools


def _engine(execution: ExecutionPlan, sink: str) -> Engine:
    if sink and execution.begins_here:
        return DriverFirstEngine(lambda: _workers(execution, sink, warm=0))
    return _workers(execution, sink)


def _workers(execution: ExecutionPlan, sink: str, *, warm: int | None = None) -> Engine:
    """Open the engine that is asked for, and start its first workers: ``warm``, or as many as help now."""
    # One core is left for the driver, which imports and plans meanwhile; the other workers start after that, or are
    # forked from what the first has imported by then.
    first = execution.stages[0]
    # What makes rows, or looks at all of them before, gets all cores and memory.
    ahead = any(each.may for *_, each in ahead_in(execution.plan.steps))
    if execution.plan.source.unprepared or ahead:
        warm = 0
    if warm is None:
        warm = min(first.workers, max(1, execution.capacity.cpus - 1))
    imports = (*((sink,) if sink else ()), *_imports(execution.plan))
    # A library that is imported may take hold of the GPUs that it sees; each worker is to see its own.
    libraries = () if any(stage.num_gpus for stage in execution.stages) else _libraries(execution.plan)
    return open_engine(execution.options, warm, first.threads, execution.block_budget, imports, libraries)


def _imports(plan: Plan) -> tuple[str, ...]:
    """Return modules of ours that the workers of a plan will need, for its source and its steps."""
    kinds = {type(innermost(step)) for step in plan.steps}
    running = {running_module(kind) for kind in kinds if kind.__module__.startswith("headrace.plan.steps.")}
    return (*plan.source.worker_imports, *sorted(running))


def _libraries(plan: Plan) -> tuple[str, ...]:
    """Return modules of other libraries that the functions and models of a plan use, and this process has imported.

    Only of libraries that start no thread and open nothing when they are imported: then workers can be forked from
    what has imported them, and none imports them again.
    """
    calls = [each.function.call for step in plan.steps for each in step.functions()]
    if not calls or IMPORTED_AHEAD.isdisjoint(sys.modules):
        return ()
    from headrace.plan.reached import is_users, modules_named

    names = {name for call in calls for name in modules_named(call)}
    known = [
        name for name in sorted(names) if name.partition(".")[0] in IMPORTED_AHEAD and name in sys.modules
    ]
    return tuple(name for name in known if not is_users(name))


def _least(stage: Stage) -> int:
    """Return how many workers a pool needs before it can work: the lower bound, if there are two."""
    return stage.least if stage.least < stage.workers else 1


def _probed(programs: Sequence[Program]) -> tuple[Sequence[Program], str]:
    """Return the programs, and the file that each worker has to see; "" if those that do not upload by themselves."""
    *earlier, last = programs
    probe = _probe(last)
    if last.uploads is None:
        return programs, probe
    uploads = msgspec.structs.replace(last.uploads, sees=probe)
    return [*earlier, msgspec.structs.replace(last, uploads=uploads)], ""


def _probe(program: Program) -> str:
    """Create a file where the output is staged, by which workers on other machines check that they see the folder."""
    if program.sink is None:
        return ""
    path = os.path.join(program.sink.staging, f"seen-{os.urandom(8).hex()}.staged")
    os.close(safe_files.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    return path


def warn_of_inline(execution: ExecutionPlan) -> None:
    """Warn of what this process does without, where it does the work: a timeout, GPUs that are not there."""
    if execution.missing_gpus:
        warn(execution.missing_gpus)
    if execution.inline and execution.options.batch_timeout is not None:
        warn("batch_timeout= has no effect with engine='inline': a call in this process cannot be ended.")
