"""The ledger of a whole attempt: what each stage did for the blocks that the attempt consumed."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import msgspec

from headrace.core.answered import both
from headrace.core.work import Done, ErrorReport, Failed, Ledger, Timings
from headrace.driver.block_queues import AttemptQueue, EarlierStages, QueuedTask, StageQueue
from headrace.plan.accounts import cut_short, mismatch, wrong_in


def with_earlier_stages(done: Done, attempt: AttemptQueue, stages: EarlierStages) -> Done | Failed:
    """Add to an attempt's outcome what the stages before did for the blocks that it consumed.

    What they made beyond these, because they work ahead, does not count: with a ``limit``, the counts would differ
    from run to run. An attempt leaves a rest only if it consumed all rows of the source, each once.
    """
    ledgers = [Ledger() for _ in range(stages.count)]
    timings = done.timings
    for task, ledger in _used(attempt.stages, math.inf if done.taken is None else done.taken):
        ledgers[task.stage] += ledger
        timings += task.ended.timings if task.ended is not None else Timings()
    if done.rest is not None:
        rows = done.rest.rows
        ledgers = [
            _one_for_each(rows, ledger, steps) for ledger, steps in zip(ledgers, stages.steps, strict=True)
        ]
    ledgers = [
        each if each.steps else _empty_ledger(steps)
        for each, steps in zip(ledgers, stages.steps, strict=True)
    ]
    passed = (ledgers[stage].steps[i][1] for stage, limits in enumerate(stages.limits) for i in limits)
    ledger = _joined(ledgers, done, stages)
    labels = [f"part {i + 1} of the plan" for i in range(len(ledger.steps))]
    per_step = _per_plan_step(ledger, stages.origins)
    wrong = wrong_in(ledger, labels)
    if wrong and not wrong_in(per_step, labels):  # else whoever knows the steps says it better
        wrong = f"in part {attempt.shard.label()} of the input, between stages, {wrong}"
        return Failed(done.shard, done.attempt, ErrorReport("LedgerMismatch", mismatch(wrong)))
    return msgspec.structs.replace(
        done,
        ledger=per_step,
        timings=timings,
        passed=(*passed, *done.passed),
    )


def _joined(ledgers: Sequence[Ledger], done: Done, stages: EarlierStages) -> Ledger:
    """Join the ledgers of all stages; rows on their way to where no more were needed count as unused."""
    each = [*ledgers, done.ledger]
    ledger = Ledger(
        ledgers[0].read,
        done.ledger.written,
        ledgers[0].rejected + sum(sum(other.rejects) for other in each[1:]),
        tuple(itertools.chain.from_iterable(other.steps for other in each)),
        tuple(itertools.chain.from_iterable(other.rejects for other in each)),
        sum(other.nulled for other in each),
        tuple(itertools.chain.from_iterable(other.dropped for other in each)),
        tuple(itertools.chain.from_iterable(other.added for other in each)),
        tuple(itertools.chain.from_iterable(other.unused for other in each)),
        tuple(itertools.chain.from_iterable(other.past or (0,) * len(other.steps) for other in each))
        if any(other.past for other in each)
        else (),
        functools.reduce(both, (other.answered for other in each)),
    )
    own = sum(stages.steps)
    if done.taken is not None:
        return cut_short(ledger, own if done.ledger.steps else own - 1)
    limits = [sum(stages.steps[:stage]) + i for stage, found in enumerate(stages.limits) for i in found]
    return cut_short(ledger, max(limits, default=-1))


def _per_plan_step(ledger: Ledger, origins: Sequence[int]) -> Ledger:
    """Count the parts of a divided step as one; ``origins`` has the step of the plan that each is a part of."""
    parts: dict[int, list[int]] = {}
    for i, origin in enumerate(origins or range(len(ledger.steps))):
        parts.setdefault(origin, []).append(i)

    def summed(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sum(numbers[i] for i in each) for each in parts.values())

    return msgspec.structs.replace(
        ledger,
        steps=tuple((ledger.steps[each[0]][0], ledger.steps[each[-1]][1]) for each in parts.values()),
        rejects=summed(ledger.rejects),
        dropped=summed(ledger.dropped),
        added=summed(ledger.added),
        unused=summed(ledger.unused),
        past=tuple(ledger.past[each[0]] for each in parts.values()) if ledger.past else (),
    )


def _one_for_each(rows: int, ledger: Ledger, steps: int) -> Ledger:
    """Count so many rows, of which each step gave each back, or which went past it as other rows have."""
    past = tuple(bool(each) for each in ledger.past) or (False,) * steps
    return msgspec.structs.replace(
        _empty_ledger(steps),
        read=rows,
        steps=tuple((0, 0) if each else (rows, rows) for each in past),
        past=tuple(rows * each for each in past) if any(past) else (),
    )


def _empty_ledger(steps: int) -> Ledger:
    none = (0,) * steps
    return Ledger(0, 0, 0, ((0, 0),) * steps, none, 0, none, none, none)


def _used(queues: Sequence[StageQueue], blocks: float) -> Iterator[tuple[QueuedTask, Ledger]]:
    """Yield the tasks behind the last stage's first ``blocks`` blocks, with their ledgers when they had given those.

    The tasks of the last stage come first.
    """
    index, count = _position(queues[-1].tasks, blocks)
    for stage in reversed(range(len(queues))):
        tasks = queues[stage].tasks
        for task in tasks[:index]:
            assert task.ended is not None
            yield task, task.ended.ledger
        if count:
            yield tasks[index], tasks[index].ledgers[count - 1]
        used = tasks[: index + bool(count)]
        if stage and blocks == math.inf:
            index, count = len(queues[stage - 1].tasks), 0
        else:
            index, count = used[-1].source_end if used else (0, 0)


def _position(tasks: Sequence[QueuedTask], blocks: float) -> tuple[int, int]:
    """Return how many tasks gave all but the last few of the first ``blocks`` blocks, and how many these few are."""
    for task in tasks:
        if blocks <= len(task.blocks):
            return task.index, int(blocks)
        blocks -= len(task.blocks)
    return len(tasks), 0
