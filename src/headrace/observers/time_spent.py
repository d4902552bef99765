"""What the workers of a run did with their time: one computation, for terminal, status, report and advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from headrace.core.events import StageUse
from headrace.core.human import percent
from headrace.observers.run_parts import StageState
from headrace.observers.run_state import DIVIDED, RETIRED, RunState

Kind = Literal[
    "starting", "loading", "reading", "decoding", "step", "metrics", "writing", "waiting", "lost", "other", "idle"
]  # fmt: skip

_LEAST = 0.005  # a smaller share of the time is not told
_MOST = 5  # parts in a line


class Part(msgspec.Struct, frozen=True):
    """Something that the workers of a stage did: its kind, its name in words, how long, and which share that is."""

    kind: Kind
    name: str
    seconds: float
    share: float
    stage: int = 0


class StageTime(msgspec.Struct, frozen=True):
    """The time that the workers of a stage had, in seconds summed over all, and its parts, which add up to it."""

    name: str
    workers: int
    seconds: float
    parts: tuple[Part, ...]

    def share(self, *kinds: Kind) -> float:
        """Return the share of the time that went into what is of these kinds."""
        return sum(part.share for part in self.parts if part.kind in kinds)


def stage_times(state: RunState, now: float) -> list[StageTime]:
    """Return what each stage's workers did, over all drivers. ``now``: until when the present one has worked.

    Reading, steps and writing may go on at the same time in a worker; they are scaled to the time that it took.
    """
    found = []
    names = state.stage_names
    for i, (name, workers) in enumerate(zip(names, state.stage_workers, strict=True)):
        under_way = state.under_way(now) if i + 1 == len(names) else []
        stage = state.stages.get(i, StageState() if under_way else None)
        if stage is None:
            continue
        at_work = max(stage.seconds, 1e-9)
        capacity = max(state.capacity(i, now), at_work + stage.starting + stage.loading)
        seconds = [
            (kind, words, took) for kind, words, took in _parts(state, i, stage, len(names)) if took > 0
        ]
        if under_way:
            seconds.append(("other", "work under way", sum(end - since for since, end in under_way)))
        idle = capacity - sum(took for *_, took in seconds)
        seconds.append(("idle", "idle", max(0.0, idle)))
        parts = tuple(Part(kind, words, took, took / capacity, i) for kind, words, took in seconds)
        found.append(StageTime(name, workers, capacity, parts))
    return found


def _parts(state: RunState, number: int, stage: StageState, stages: int) -> list[tuple[Kind, str, float]]:
    first, last = number == 0, number + 1 == stages
    source = (state.described.source.lower() if state.described is not None else "") or "the source"
    source = {"parquet": "Parquet", "csv": "CSV", "json": "JSON", "image": "images"}.get(source, source)
    at_work = max(stage.seconds, 1e-9)
    measured = stage.work + stage.wait
    scale = min(1.0, at_work / measured) if measured > 0 else 0.0
    lost = min(stage.lost, at_work - scale * measured)
    steps = step_names(state, number)
    each = [*stage.each, *[0.0] * (len(steps) - len(stage.each))]
    rest = max(0.0, stage.steps - stage.metrics - sum(stage.each))
    return [
        ("starting", "starting workers", stage.starting),
        ("loading", "loading models", stage.loading),
        ("reading", f"reading {source}" if first else "taking over blocks", scale * stage.read),
        ("decoding", f"decoding {source}", scale * stage.decode),
        *(
            ("step", steps[i] if i < len(steps) else f"step {i + 1}", scale * seconds)
            for i, seconds in enumerate(each)
        ),
        (
            "step",
            "steps" if stage.each else state.stage_names[number],
            scale * rest if rest > 1e-3 * stage.steps else 0.0,
        ),
        ("metrics", "counting metrics", scale * stage.metrics),
        ("writing", "writing" if last else "handing over blocks", scale * stage.write),
        ("waiting", "waiting for the stage before", scale * stage.wait),
        ("lost", "work that was lost", lost),
        ("other", "other", max(0.0, at_work - scale * measured - lost)),
    ]


def step_names(state: RunState, stage: int) -> tuple[str, ...]:
    """Return the steps of a stage in words."""
    stages = state.described.stages if state.described is not None else ()
    return stages[stage].steps if stage < len(stages) else ()


def all_parts(stages: Sequence[StageTime]) -> list[Part]:
    """Return what all workers did: parts of the same name are one, and the longest comes first.

    >>> one = StageTime("f", 1, 4.0, (Part("step", "f", 3.0, 0.75), Part("idle", "idle", 1.0, 0.25)))
    >>> two = StageTime("g", 1, 4.0, (Part("idle", "idle", 4.0, 1.0, 1),))
    >>> [(part.name, part.share) for part in all_parts([one, two])]
    [('idle', 0.625), ('f', 0.375)]
    """
    whole = sum(stage.seconds for stage in stages)
    merged: dict[tuple[str, str], Part] = {}
    for part in (part for stage in stages for part in stage.parts):
        before = merged.get((part.kind, part.name))
        seconds = part.seconds + (before.seconds if before is not None else 0.0)
        first = before.stage if before is not None else part.stage
        merged[part.kind, part.name] = Part(part.kind, part.name, seconds, seconds / max(whole, 1e-9), first)
    return sorted(merged.values(), key=lambda part: -part.seconds)


def findings(state: RunState, seconds: float) -> dict[str, Any]:
    """Return what ``RunFinished`` says beyond the journal, by its names, for a run of so many seconds."""
    end = state.drivers[-1].began + seconds if state.drivers else seconds
    names, spent = state.stage_names, all_parts(stage_times(state, end))
    return {
        "stages": tuple(map(StageUse, names, state.stage_workers, state.busy(end))) if len(names) > 1 else (),
        "ceilings": state.ceilings(),
        "retried": tuple((step, error, calls) for (step, error), calls in state.retried.most_common()),
        "retired": state.counts[RETIRED],
        "divided": state.counts[DIVIDED],
        "batches": state.batch_sizes(),
        "paid": state.models.paid(ended=True) if state.models.known else None,
        "spent": tuple((part.name, round(part.share, 4)) for part in spent),
    }


def told(spent: Sequence[tuple[str, float]]) -> str:
    """Return the biggest parts in a line.

    >>> told([("predict(Net)", 0.63), ("reading Parquet", 0.2), ("idle", 0.17), ("writing", 0.001)])
    '63 % predict(Net), 20 % reading Parquet, 17 % idle'
    """
    return ", ".join(f"{percent(share)} {name}" for name, share in spent[:_MOST] if share >= _LEAST)
