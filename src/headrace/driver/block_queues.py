"""The tasks of the stages before the last, and the blocks that they gave: one queue for each attempt and stage.

Which of the tasks a free worker goes on with, or begins, is decided here, too.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from headrace.core.answered import both
from headrace.core.work import Block, Done, ErrorReport, Failed, Ledger, Shard, Task, Timings, TrailingRejects
from headrace.plan.accounts import cut_short, mismatch, wrong_in
from headrace.plan.partitioning import RowRange, row_ranges

MAX_ITEMS = 128  # blocks that a task is made of, however few rows they have
MAX_CALLS = 2  # that a worker has at a time, and a task: so that the worker need not wait for the next


def _one_per_split(shard: Shard) -> Iterable[RowRange]:
    return row_ranges(shard.splits, 0)


class EarlierStages(msgspec.Struct, frozen=True):
    """The stages before the last, in order.

    ``steps`` has the number of steps of each stage, ``limits`` the indices of those that are ``limit``s. A stage
    whose steps want batches of a fixed size has it in ``units``: the rows of its tasks are multiples of that.
    ``origins`` has, for each step of all stages, the last one too, the step of the plan that it is a part of.
    ``split`` divides a shard into the tasks of the first stage.
    """

    steps: Sequence[int] = ()
    limits: Sequence[Sequence[int]] = ()
    units: Sequence[int] = ()
    origins: Sequence[int] = ()
    split: Callable[[Shard], Iterable[RowRange]] = _one_per_split

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.steps)

    @property
    def limited(self) -> bool:
        """True if one of the steps is a ``limit``."""
        return any(self.limits)

    @property
    def limit_count(self) -> int:
        """The number of ``limit`` steps."""
        return sum(map(len, self.limits))

    def unit(self, stage: int) -> int:
        """Return the rows of which a stage's tasks are multiples; 0: any number."""
        return self.units[stage] if self.units else 0


class QueuedTask(msgspec.Struct, eq=False):
    """A task and the blocks that it gave so far. ``index`` is its position in its stage's queue."""

    stage: int
    index: int
    task: Task
    shared_block: int | None = None  # the block that the next task begins with
    # In the queue of the stage before: tasks, and blocks of the next one.
    source_end: tuple[int, int] = (0, 0)
    worker: int | None = None
    calls: int = 0  # that are not answered
    blocks: list[Block | TrailingRejects] = msgspec.field(default_factory=list)
    passed_on: int = 0  # how many of them were passed to the next stage or the attempt
    ledgers: list[Ledger] = msgspec.field(default_factory=list)  # when each of them was given
    ended: Done | None = None

    def reset(self, number: int) -> None:
        """Begin anew, as task ``number``."""
        self.task = msgspec.structs.replace(self.task, attempt=number)
        self.worker, self.ended = None, None
        self.blocks, self.ledgers = [], []


class StageQueue(msgspec.Struct, eq=False):
    """The tasks of one stage, in order, and the blocks collected for the next one."""

    tasks: list[QueuedTask] = msgspec.field(default_factory=list)
    first: int = 0  # index of the first that may have something to pass on
    complete: bool = False  # no more tasks will come
    waits_for: QueuedTask | None = None  # the task without whose blocks there will be no more tasks
    items: list[Block | TrailingRejects] = msgspec.field(default_factory=list)
    skip: int = 0  # rows of the first item that belong to the task before
    rows: int = 0


class AttemptQueue(msgspec.Struct, eq=False):
    """The tasks whose blocks one attempt at a shard takes; ``limits`` are the rows that may pass each ``limit``."""

    shard: Shard
    attempt: int
    worker: int
    limits: tuple[int, ...]
    decodes: bool = False  # as in ``Task``
    stages: list[StageQueue] = msgspec.field(default_factory=list)
    unread: dict[int, Block] = msgspec.field(
        default_factory=dict
    )  # blocks that no worker was given, by number
    sent: int = 0  # blocks, to the attempt
    held: int = 0  # bytes of its blocks
    needed: QueuedTask | None = None  # the task that has to give the attempt's next block
    complete: bool = False
    waiting: bool = False  # its worker has used up what it was sent
    aborted: bool = False

    @property
    def is_open(self) -> bool:
        """True while blocks are made for it."""
        return not self.complete and not self.aborted

    @property
    def tasks(self) -> Iterator[QueuedTask]:
        """The tasks of all stages."""
        return itertools.chain.from_iterable(stage.tasks for stage in self.stages)


class TaskQueues:
    """Divides shards into tasks, and forms the tasks of later stages from the blocks of earlier ones.

    Where a stage has a unit, its tasks end at multiples of that many rows, counted from the start of the shard; the
    rows of a block beyond that belong to the next task. So batches are cut as they would be in a single stage.
    ``on_done`` is called for each task that has nothing more to give.
    """

    def __init__(self, stages: EarlierStages, on_done: Callable[[QueuedTask], None]) -> None:
        self._stages = stages
        self._on_done = on_done
        self._numbers = itertools.count()
        self.tasks: dict[int, QueuedTask] = {}  # by number: those that answers are expected for

    def begin(self, attempt: AttemptQueue) -> None:
        """Queue the tasks of the first stage; those of the others are formed of the blocks that come."""
        attempt.stages = [StageQueue() for _ in range(self._stages.count)]
        for rows in self._stages.split(attempt.shard):
            task = Task(
                msgspec.structs.replace(attempt.shard, splits=rows.splits),
                self.number(),
                skip=rows.skip,
                rows=rows.rows,
                decodes=attempt.decodes,
            )
            self._add(attempt, 0, task)
        attempt.stages[0].complete = True

    def number(self) -> int:
        """Return a number that no task has had."""
        return next(self._numbers)

    def _add(self, attempt: AttemptQueue, stage: int, task: Task) -> QueuedTask:
        queue = attempt.stages[stage].tasks
        queued = self.tasks[task.attempt] = QueuedTask(stage, len(queue), task)
        queue.append(queued)
        return queued

    def next_block(self, attempt: AttemptQueue, stage: int) -> Block | TrailingRejects | QueuedTask | None:
        """Take the next block that a stage gave, or return the task that has to give it; None: there are no more."""
        queue = attempt.stages[stage]
        while queue.first < len(queue.tasks):
            task = queue.tasks[queue.first]
            if task.passed_on < len(task.blocks):
                task.passed_on += 1
                return task.blocks[task.passed_on - 1]
            if task.ended is None:
                return task
            self._on_done(task)
            queue.first += 1
        return None if queue.complete else queue.waits_for

    def form_tasks(self, attempt: AttemptQueue) -> None:
        """Form the tasks of all stages but the first, as far as the blocks for them are there."""
        for stage in range(1, len(attempt.stages)):
            queue = attempt.stages[stage]
            while not queue.complete:
                found = self.next_block(attempt, stage - 1)
                if isinstance(found, QueuedTask):
                    queue.waits_for = found
                    break
                if found is not None:
                    queue.items.append(found)
                if isinstance(found, Block):
                    queue.rows += found.rows
                queue.complete = found is None
                self._form_task(attempt, stage)

    def _form_task(self, attempt: AttemptQueue, stage: int) -> None:
        """Form a task of the collected blocks, once they are enough; rows in excess begin the next one."""
        queue, unit = attempt.stages[stage], self._stages.unit(stage)
        excess = 0
        if not queue.complete and len(queue.items) < MAX_ITEMS:
            if queue.rows < max(unit, 1):
                return
            excess = queue.rows % unit if unit else 0
        if not queue.items:
            return
        task = Task(
            msgspec.structs.replace(attempt.shard, splits=()),
            self.number(),
            blocks=tuple(queue.items),
            skip=queue.skip,
            rows=queue.rows - excess,
        )
        queued = self._add(attempt, stage, task)
        before = attempt.stages[stage - 1]
        blocks = before.tasks[before.first].passed_on if before.first < len(before.tasks) else 0
        queued.source_end = before.first, blocks
        last = queue.items[-1]
        queue.items, queue.skip, queue.rows = [], 0, 0
        if excess:
            assert isinstance(last, Block)
            queue.items, queue.skip, queue.rows = [last], last.rows - excess, excess
            queued.shared_block = last.ref.number


# ---------------------------------------------------------------- which task is next


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
    machine: Callable[[int], str],
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
                if machine(worker) == machine(attempt.worker):
                    nearest = nearest or task
                first = first or task
                break  # tasks are begun in order: no later one is begun
    return (begun or nearest or first) if room else None


def with_limits(task: QueuedTask, attempt: AttemptQueue, stages: EarlierStages) -> Task:
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


# ---------------------------------------------------------------- what was done for the blocks of an attempt


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
