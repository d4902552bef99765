"""Where a plan is carried out: an engine with workers, a stage for each pool, memory to share among them."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from millrace.core import failpoints, regular
from millrace.core.ports import PoolSpec
from millrace.core.process import hold_standard_streams
from millrace.core.warn import warn
from millrace.engines import machine, memory
from millrace.engines.inline import InlineEngine
from millrace.engines.local import LocalEngine
from millrace.errors import MissingLibrary
from millrace.options import RAY_ADDRESS, RunOptions
from millrace.plan import compile as compiler
from millrace.plan import cuts as cutting
from millrace.plan.logical import Plan
from millrace.plan.physical import Policy, Program, Stage
from millrace.plan.stages import stages_of

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.core.ports import Capacity
    from millrace.core.work import Shard
    from millrace.engines.ray.engine import RayEngine
    from millrace.plan.cuts import Cuts
    from millrace.run.relief import Relief
    from millrace.run.runner import Runner
    from millrace.run.supply import Supply
    from millrace.run.suspicion import Suspicion

BLOCKS_SHARE = 4  # of the memory limit, for blocks between stages: one part in so many
STORE_SHARE = 2  # of a cluster's object stores


@dataclass(slots=True)
class Workplace:
    """An engine that may have begun to start workers before anybody knows what they will do."""

    engine: LocalEngine | InlineEngine | RayEngine
    stages: tuple[Stage, ...]
    cpus: int
    limit: int
    plan: Plan
    options: RunOptions
    _cuts: Cuts | None = None

    @classmethod
    def open(cls, plan: Plan, options: RunOptions) -> Workplace:
        hold_standard_streams()  # before anything is opened that could get their numbers
        capacity = capacity_for(options)
        stages = stages_for(plan, options)
        if options.on_ray:
            from millrace.engines.ray.engine import RayEngine

            limit = budget_on_ray(options, capacity.memory) * BLOCKS_SHARE
            cluster = RayEngine(pool_timeout=options.pool_timeout)
            return cls(cluster, stages, capacity.cpus, limit, plan, options)
        limit = options.memory_limit or capacity.memory
        if options.engine == "inline":
            return cls(InlineEngine(), stages, capacity.cpus, limit, plan, options)
        # One core is left for the driver, which imports and plans meanwhile; the other workers start after that.
        warm = min(stages[0].workers, max(1, capacity.cpus - 1))
        engine = LocalEngine(warm, stages[0].threads, devices=machine.devices(), budget=limit // BLOCKS_SHARE)
        return cls(engine, stages, capacity.cpus, limit, plan, options)

    @property
    def budget(self) -> int:
        """Bytes for blocks in flight."""
        return self.limit // BLOCKS_SHARE

    @property
    def cuts(self) -> Cuts:
        """How the work is cut; may look at the input, so not before workers have been started."""
        if self._cuts is None:
            self._cuts = cutting.cuts_of(self.stages, self.plan.source, self.options.shard_rows)
        return self._cuts

    def relief(self, *, tight: bool = False) -> Relief:
        """Return what keeps the run within its memory; ``tight``: an earlier driver had a shard that did not fit."""
        from millrace.run.pressure import Pressure
        from millrace.run.relief import Relief

        if self.options.on_ray:  # which watches the memory of each machine itself
            return Relief()
        return Relief(Pressure(self.limit, tight=tight), partial(memory.own, os.getpid()))

    @property
    def workers(self) -> int:
        """How many workers there are at most, of all stages."""
        return sum(stage.workers for stage in self.stages)

    def programs(
        self, plan: Plan, kind: str, options: RunOptions, shards: Sequence[Shard], *, states: str = ""
    ) -> list[Program]:
        """Return what the workers of each stage run, for the shards that are to be done.

        ``states``: the folder for big states of metrics, if there is one.
        """
        *earlier, last = cutting.fitted(self.stages, self.cuts, shards)
        busy = sum(stage.workers for stage in (*earlier, last))
        last = replace(last, lanes=last.lanes or (busy < self.cpus and not self.options.on_ray))
        self.stages = (*earlier, last)
        schema = plan.source.schema()
        columns = compiler.columns_to_read(plan.steps, schema, output=kind != "count")
        unread = iter(
            compiler.unread_at([step for stage in self.stages for step in stage.steps], schema, columns)
        )
        lanes = last.lanes and isinstance(self.engine, LocalEngine)
        return [
            Program(
                plan.source,
                stage.steps,
                columns,
                tuple(itertools.islice(unread, len(stage.steps))),
                plan.sink if stage is last else None,
                kind if stage is last else "make",
                lanes and stage is last,
                options.durability,
                failpoints.active(),
                i > 0,
                _policy(options),
                0 if stage is last else self.cuts.units[i + 1],
                0 if i + 2 >= len(self.stages) else cutting.rows_for_all(shards, self.stages[i + 1].workers),
                plan.accumulates if stage is last else (),
                states if stage is last else "",
                cutting.unit_before_changes(plan.steps) if stage is last else 0,
            )
            for i, stage in enumerate(self.stages)
        ]

    def supply(self, options: RunOptions) -> Supply | None:
        """Return what decides for the stages before the last, if there are any."""
        *earlier, _ = self.stages
        if not earlier:
            return None
        from millrace.engines.slots import spare_of
        from millrace.run.supply import Supply

        steps = [len(stage.steps) for stage in earlier]
        limits = [[i for i, step in enumerate(stage.steps) if step.verb == "limit"] for stage in earlier]
        return Supply(
            steps,
            limits,
            budget=self.budget - spare_of(self.budget),
            max_attempts=options.max_attempts,
            origins=[origin for stage in self.stages for origin in stage.origins],
            units=self.cuts.units[:-1],
            pieces=self.cuts.pieces,
            near=self.engine.near,
        )

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """How few and how many workers each stage may have."""
        return [(stage.least, stage.workers) for stage in self.stages]

    def ahead(self, shards: Sequence[Shard]) -> int:
        """Return how many attempts each worker of the last stage has before it, so that those before are busy."""
        *earlier, last = self.stages
        if not earlier or not shards:
            return 2
        pieces = sum(len(self.cuts.pieces(shard)) for shard in shards) / len(shards)
        wanted = 2 * max(stage.workers for stage in earlier) / (pieces * last.workers)
        return min(64, max(2, 1 + math.ceil(wanted)))

    def drive(
        self, runner: Runner, programs: Sequence[Program], options: RunOptions
    ) -> Iterator[pa.RecordBatch]:
        """Start the pools, drive the plan to its end, end the pools; at once if something goes wrong."""
        from millrace.plan.pickling import explained
        from millrace.run.maker import Maker
        from millrace.run.worker import ShardWorker

        pools: list[Any] = []
        probe = _probe(programs[-1]) if options.on_ray else ""
        held = any(stage.num_gpus for stage in self.stages)
        for i, (stage, program) in enumerate(zip(self.stages, programs, strict=True)):
            kind = ShardWorker if i + 1 == len(programs) else Maker
            spec = PoolSpec(
                f"stage {i + 1}",
                partial(kind, program),
                stage.least,
                stage.threads,
                stage.num_gpus if held else None,
                stage.memory,
                options.stall_timeout,
                stage.workers,
                num_cpus=stage.num_cpus,
                least=stage.least if stage.least < stage.workers else 1,
                sees=probe if i + 1 == len(programs) else "",
                extra={**(options.ray_remote_args or {}), **stage.remote},
            )
            with explained(program.steps):
                pools.append(self.engine.start(spec, runner.notify))
        yield from runner.stream(pools[-1], pools[:-1], self.engine.drop, self.engine.keep)
        self.engine.close()

    def suspicion(self) -> Suspicion:
        """Return what narrows down the rows over which workers end."""
        from millrace.run.suspicion import Suspicion

        raises = self.options.on_error == "raise"
        return Suspicion(self.options.batch_timeout, raises=raises, locate=self.plan.source.locate)

    def close(self) -> None:
        """End what is still there."""
        self.engine.close(kill=True)


def _policy(options: RunOptions) -> Policy:
    kinds = options.retry_on if isinstance(options.retry_on, tuple) else (options.retry_on,)
    return Policy(options.on_error, options.show_data, kinds, options.max_retries)


def _probe(program: Program) -> str:
    """Put a file where the output is staged, so that workers elsewhere can tell whether they see it."""
    if program.sink is None:
        return ""
    path = os.path.join(program.sink.staging, f"seen-{os.urandom(8).hex()}.staged")
    os.close(regular.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    return path


def capacity_for(options: RunOptions) -> Capacity:
    """Return what there is where a plan is carried out; connects to the cluster, if that is one."""
    if not options.on_ray:
        return machine.capacity()
    try:
        from millrace.engines.ray import cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingLibrary(
            "engine='ray' needs Ray, which is not installed: pip install 'millrace[ray]'"
        ) from None
    address = options.engine if options.engine.startswith(RAY_ADDRESS) else ""
    cluster.connect(address, allow_unauthenticated=options.allow_unauthenticated)
    return cluster.capacity()


def budget_on_ray(options: RunOptions, stores: int) -> int:
    """Return how many bytes blocks between stages may take of a cluster whose object stores have so many."""
    return options.memory_limit // BLOCKS_SHARE if options.memory_limit else stores // STORE_SHARE


def memory_of_nodes() -> int:
    """Return how much memory the cluster that this process is connected to has for those who declare it."""
    from millrace.engines.ray import cluster

    return cluster.memory_of_nodes()


def stages_for(plan: Plan, options: RunOptions) -> tuple[Stage, ...]:
    """Return the stages of a plan: a single one without lanes, where this process does all."""
    inline = options.engine == "inline"
    stages = stages_of(
        plan,
        capacity_for(options),
        workers=options.workers,
        memory_limit=options.memory_limit,
        fused=inline,
        grows=options.on_ray,
    )
    if options.on_ray:
        return tuple(replace(stage, threads=max(1, int(stage.num_cpus)), lanes=False) for stage in stages)
    return (replace(stages[0], workers=1, least=1, lanes=False),) if inline else stages


def warn_of_inline(options: RunOptions) -> None:
    """Warn of what takes a worker to be ended, where there is none but this process."""
    if options.engine == "inline" and options.batch_timeout is not None:
        warn("batch_timeout= has no effect with engine='inline': a call in this process cannot be ended.")
