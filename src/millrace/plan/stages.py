"""Which steps share a pool of workers, and how big the pools are. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from millrace.core.devices import Devices
from millrace.core.ports import Capacity
from millrace.errors import ArgumentError, ResourcesUnavailable
from millrace.plan.logical import (
    Plan,
    Predict,
    Resources,
    Step,
    functions_of,
    of_this_machine,
    resources_of,
    step_label,
)
from millrace.plan.physical import Stage

_UNDECLARED = Resources()
_ENDLESS = 1 << 62


@dataclass(slots=True)
class _Run:
    """Neighbouring steps that need the same; ``needs`` None: nothing in particular."""

    needs: tuple[Resources, ...]
    steps: list[Step] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)  # which step of the plan each is, or is a part of

    def add(self, origin: int, step: Step) -> None:
        """Put a step behind the others; a part of the one before it becomes one with it again."""
        if self.origins[-1:] == [origin]:
            before = self.steps[-1]
            assert isinstance(before, Predict) and isinstance(step, Predict)
            self.steps[-1] = Predict((*before.models, *step.models), step.keep, step.replace)
        else:
            self.steps.append(step)
            self.origins.append(origin)

    def take(self, other: _Run) -> None:
        """Put all steps of another run behind the others."""
        for origin, step in zip(other.origins, other.steps, strict=True):
            self.add(origin, step)

    @property
    def num_gpus(self) -> float:
        return max((each.num_gpus or 0.0 for each in self.needs), default=0.0)

    @property
    def num_cpus(self) -> float:
        return max((each.num_cpus or 0.0 for each in self.needs), default=0.0) or 1.0

    @property
    def cores(self) -> float:
        """What a worker asks of a place that counts cores: one, unless a step says otherwise, be it none."""
        return max((each.num_cpus for each in self.needs if each.num_cpus is not None), default=1.0)

    @property
    def memory(self) -> int:
        return sum(resources.memory or 0 for step in self.steps for resources in resources_of(step))

    @property
    def remote(self) -> dict[str, Any]:
        """What a cluster is told besides; of several steps, all that they say."""
        return {name: value for each in self.needs if each.remote for name, value in each.remote.args.items()}

    @property
    def workers(self) -> tuple[int, int] | None:
        declared = [each.workers for each in self.needs if each.workers is not None]
        return (max(low for low, _ in declared), max(high for _, high in declared)) if declared else None


def stages_of(
    plan: Plan,
    capacity: Capacity,
    *,
    workers: int | None,
    memory_limit: int | None,
    fused: bool = False,
    grows: bool = False,
) -> tuple[Stage, ...]:
    """Cut the plan into stages and size their pools; refuse what can never run, with the numbers.

    Neighbouring steps that need the same share a stage. Steps that say nothing go with those behind them, except
    with those that hold a GPU; after the last that says something, with it. ``fused``: all in one stage. CPUs are
    advice, memory and GPUs are hard; unless the place ``grows``: then what there is says only how much is asked for,
    where the plan does not. What only a cluster is told counts there alone.
    """
    steps = plan.steps if grows else tuple(map(of_this_machine, plan.steps))
    runs = [_fused(steps)] if fused else _runs(steps, decodes=_decodes(plan))
    if grows:
        asked = sum((run.workers or (1, 1))[0] * run.num_gpus for run in runs)
        capacity = replace(capacity, memory=_ENDLESS, gpus=max(capacity.gpus, math.ceil(asked)))
    limit = memory_limit or capacity.memory
    for run in runs:
        _check(run, capacity, limit)
    devices = {} if fused else _devices(runs, capacity.gpus)
    sizes = [devices.get(i) or _size(run, capacity, workers) for i, run in enumerate(runs)]
    sizes = _within_memory(runs, sizes, limit)
    total = sum(high for _, high in sizes)
    threads = max(1, capacity.cpus // total)
    return tuple(
        Stage(
            tuple(run.steps),
            high,
            threads,
            total < capacity.cpus,
            run.num_gpus,
            run.memory or None,
            low,
            tuple(run.origins),
            run.cores,
            run.remote,
        )
        for run, (low, high) in zip(runs, sizes, strict=True)
    )


def _fused(steps: Sequence[Step]) -> _Run:
    needs = tuple(resources for step in steps for resources in resources_of(step))
    return _Run(needs, list(steps), list(range(len(steps))))


def _runs(steps: Sequence[Step], *, decodes: bool) -> list[_Run]:
    runs: list[_Run] = []
    pending = _Run(())
    for origin, step in _separated(steps):
        needs = _needs(step)
        if needs is None:
            pending.add(origin, step)
            continue
        if runs and runs[-1].needs == (needs,):
            runs[-1].take(pending)
        elif needs.num_gpus and (any(map(functions_of, pending.steps)) or (not runs and decodes)):
            runs += [pending, _Run((needs,))]
        else:
            runs.append(_Run((needs,)))
            runs[-1].take(pending)
        runs[-1].add(origin, step)
        pending = _Run(())
    if not runs:
        return [pending]
    runs[-1].take(pending)
    return runs


def _needs(step: Step) -> Resources | None:
    """Return what a step says that it needs, if it says anything."""
    declared = resources_of(step)
    return declared[0] if declared and declared[0] != _UNDECLARED else None


def _decodes(plan: Plan) -> bool:
    """Say whether reading the source is work for a CPU, as decoding images is."""
    return bool(getattr(plan.source, "decodes", False))


def _separated(steps: Sequence[Step]) -> list[tuple[int, Step]]:
    """Make steps of their own of models that need different workers; tell which step of the plan each is of."""
    parted: list[tuple[int, Step]] = []
    for origin, step in enumerate(steps):
        apart = isinstance(step, Predict) and len(set(resources_of(step))) > 1
        parts = _parted(step) if apart and isinstance(step, Predict) else [step]
        parted += [(origin, part) for part in parts]
    return parted


def _parted(step: Predict) -> list[Step]:
    groups: list[list[int]] = []
    for i, model in enumerate(step.models):
        if groups and step.models[groups[-1][0]].resources == model.resources:
            groups[-1].append(i)
        else:
            groups.append([i])
    unnamed = [model for model in step.models[groups[0][-1] + 1 :] if model.inputs is None]
    if unnamed or step.keep is not None or step.replace:
        raise ArgumentError(
            f"{step_label(step)}: models that need different workers are run one after another, so say which "
            "columns each reads (inputs=), and leave keep= and replace= as they are: select_columns and "
            "drop_columns do the same afterwards."
        )
    return [Predict(tuple(step.models[i] for i in group), None, False) for group in groups]


# ---------------------------------------------------------------- sizes


def _check(run: _Run, capacity: Capacity, limit: int) -> None:
    if run.num_gpus > capacity.gpus:
        raise ResourcesUnavailable(
            f"A worker of this plan needs {run.num_gpus:g} GPU{'' if run.num_gpus == 1 else 's'}, and this machine "
            f"has {capacity.gpus}. Nothing was started: lower num_gpus, or run where there are enough."
        )
    if run.memory > limit:
        raise ResourcesUnavailable(
            f"A worker of this plan needs {_gib(run.memory)} of memory, and the limit is {_gib(limit)}. Nothing "
            "was started: lower memory=, raise memory_limit=, or run on a larger machine."
        )


def _devices(runs: Sequence[_Run], gpus: int) -> dict[int, tuple[int, int]]:
    """Share the GPUs out; return how few and how many workers each run that holds any may have.

    Each gets its least; then whoever has the fewest GPUs, and may have more, gets one worker more, until they are
    used up.
    """
    bounds = {i: run.workers or (1, None) for i, run in enumerate(runs) if run.num_gpus}
    counts = {i: low for i, (low, _) in bounds.items()}
    if not _fit(runs, counts, gpus):
        raise ResourcesUnavailable(_too_many(runs, counts, gpus))
    growing = set(counts)
    while growing:
        i = min(growing, key=lambda i: (counts[i] * runs[i].num_gpus, i))
        more = counts | {i: counts[i] + 1}
        if counts[i] != bounds[i][1] and _fit(runs, more, gpus):
            counts = more
        else:
            growing.discard(i)
    return {i: (low if high else counts[i], counts[i]) for i, (low, high) in bounds.items()}


def _fit(runs: Sequence[_Run], counts: Mapping[int, int], gpus: int) -> bool:
    devices = Devices(gpus)
    return all(devices.take(runs[i].num_gpus, count) is not None for i, count in counts.items())


def _too_many(runs: Sequence[_Run], counts: Mapping[int, int], gpus: int) -> str:
    asked = " + ".join(f"{count} × {runs[i].num_gpus:g}" for i, count in counts.items())
    enough = sum(count * runs[i].num_gpus for i, count in counts.items()) <= gpus
    why = "; a worker's part of a device must be free on one of them" if enough else ""
    return (
        f"The workers of this plan need {asked} GPUs at the same time, and this machine has {gpus}"
        f"{why}. Nothing was started: lower num_gpus or "
        "concurrency, or run where there are enough."
    )


def _size(run: _Run, capacity: Capacity, workers: int | None) -> tuple[int, int]:
    if run.workers is not None:
        return run.workers
    wanted = workers or max(1, int(capacity.cpus / run.num_cpus))
    return wanted, wanted


def _within_memory(
    runs: Sequence[_Run], sizes: Sequence[tuple[int, int]], limit: int
) -> list[tuple[int, int]]:
    """Let no more workers be than their declared memory allows; one of each stage is the least."""
    fitted = list(sizes)
    least = sum(run.memory for run in runs)
    if least > limit:
        raise ResourcesUnavailable(
            f"One worker of each of the {len(runs)} stages of this plan needs {_gib(least)} of memory together, and "
            f"the limit is {_gib(limit)}. Nothing was started: lower memory=, raise memory_limit=, or run on a "
            "larger machine."
        )
    left = limit - least
    for i, (run, (low, high)) in enumerate(zip(runs, sizes, strict=True)):
        if run.memory:
            more = min(high - 1, left // run.memory)
            left -= more * run.memory
            fitted[i] = min(low, 1 + more), 1 + more
    return fitted


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
