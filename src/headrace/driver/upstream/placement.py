"""Which task a free worker of a stage before the last goes on with, or begins."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headrace.core.work import Task
from headrace.driver.upstream.queues import AttemptQueue, QueuedTask
from headrace.driver.upstream.stages import UpstreamStages

MAX_CALLS = 2  # that a worker has at a time, and a task: so that the worker need not wait for the next


def by_need(attempts: Iterable[AttemptQueue]) -> list[AttemptQueue]:
    """Order open attempts: those at work before those that wait behind them, then those with the fewest bytes."""
    rank: dict[int, int] = {}  # by worker: attempts that it has
    ranked = []
    for attempt in attempts:
        place = rank[attempt.worker] = rank.get(attempt.worker, -1) + 1
        if attempt.is_open:
            ranked.append((place, not attempt.waiting, attempt.held, attempt.shard.index, attempt))
    return [attempt for *_, attempt in sorted(ranked, key=lambda each: each[:4])]


def unfinished(attempt: AttemptQueue, stage: int, *, limited: bool) -> Iterator[QueuedTask]:
    """Yield the tasks of a stage that have more to give, in order.

    ``limited``: the plan has limits. What may pass a limit depends on what passed it before, so there is one task at
    a time, through all stages.
    """
    queue = attempt.stages[stage]
    tasks = (task for task in itertools.islice(queue.tasks, queue.first, None) if task.ended is None)
    if not limited:
        yield from tasks
        return
    task = next(tasks, None)
    later = (each for queue in attempt.stages[stage + 1 :] for each in queue.tasks[queue.first :])
    if task is not None and (task.worker is not None or all(each.ended is not None for each in later)):
        yield task


def choose_task(
    worker: int,
    stage: int,
    attempts: Sequence[AttemptQueue],
    *,
    room: bool,
    limited: bool,
    same_machine: Callable[[int, int], bool],
) -> QueuedTask | None:
    """Return the task of which a worker should give a block; ``attempts`` are in the order of ``by_need``.

    First what an attempt waits for, even if there is no ``room`` in the budget. Then what the worker has begun, since
    no other worker can go on with it. Then an early task of the attempt in most need; one whose worker is near is
    preferred.
    """
    begun = nearest = first = None
    for attempt in attempts:
        for task in unfinished(attempt, stage, limited=limited):
            if task.worker not in (None, worker) or task.calls >= MAX_CALLS:
                continue
            if attempt.waiting and task is attempt.needed and not task.calls:
                return task
            if task.worker is not None:
                begun = begun or task
            else:
                if same_machine(worker, attempt.worker):
                    nearest = nearest or task
                first = first or task
                break  # tasks are begun in order: no later one is begun
    return (begun or nearest or first) if room else None


def with_limits(task: QueuedTask, attempt: AttemptQueue, stages: UpstreamStages) -> Task:
    """Return a task with the rows that its stage's limits still let pass."""
    limits = stages.limits[task.stage]
    if not limits:
        return task.task
    first = sum(map(len, stages.limits[: task.stage]))
    left = list(attempt.limits[first : first + len(limits)])
    for other in attempt.stages[task.stage].tasks:
        if other.ended is not None:
            left = [rows - other.ended.ledger.steps[i][1] for rows, i in zip(left, limits, strict=True)]
    return msgspec.structs.replace(task.task, budgets=tuple(left))
