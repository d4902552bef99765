"""Which block is made next, and by which worker: the stages before the last. No I/O, no thread, no clock.

A shard's attempt is open on one worker of the last stage, which consumes the shard's blocks in order. Blocks are made
by *tasks*: a task is some of the shard's splits, or some neighbouring blocks of the stage before. One worker begins a
task, and gives one block of it per call. So a worker is never blocked by a task: one that is not asked for more
blocks is paused, and its worker can work on a task that is needed sooner.

Backpressure is one number: the bytes of all blocks that exist or are being made, against a budget. What an attempt
needs next while its worker waits is asked for even beyond the budget, one block at a time for each open shard. So the
run always goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from headrace.core.messages import AttemptWaiting, BlocksFreed
from headrace.core.work import (
    AttemptLost,
    Block,
    BlockMade,
    Done,
    ErrorReport,
    Failed,
    Outcome,
    Task,
    TrailingRejects,
)
from headrace.driver.block_queues import (
    MAX_CALLS,
    AttemptQueue,
    EarlierStages,
    QueuedTask,
    TaskQueues,
    by_need,
    choose_task,
    unfinished,
    with_earlier_stages,
    with_limits,
)
from headrace.driver.ports import Begin, DropBlock, Feed, GiveUp, KeepBlock, Order, Proceed

INITIAL_BYTES = 8 << 20  # of a block, before any was seen
MAX_BLOCKS = 256  # at a time: each uses a file descriptor here and in its reader


class BlockTasks:
    """Decides which worker makes which block, and sends attempts their blocks in order: a part of the scheduler.

    In a plan of one stage there is nothing to make, and attempts go as they come.
    ``budget`` is in bytes. A task over which ``max_attempts`` workers die ends the run. ``machine`` says
    which one a worker is on.
    """

    def __init__(
        self,
        stages: EarlierStages = EarlierStages(),  # noqa: B008 - frozen
        *,
        budget: int = 0,
        max_attempts: int = 3,
        machine: Callable[[int], str] = lambda worker: "",
    ) -> None:
        self._stages = stages
        self._max_attempts = max_attempts
        self._machine = machine
        self._attempts: dict[int, AttemptQueue] = {}  # by shard
        self._queues = TaskQueues(stages, self._expect_no_more)
        self._budget = BlockBudget(budget, stages.count)
        self._deaths: dict[tuple[int, int, int], int] = {}  # by shard, stage and index of a task
        self._dead: set[tuple[int, int]] = set()  # stages and workers whose death was counted
        self._orders: list[Order] = []
        self.error: ErrorReport | None = None

    @property
    def stages(self) -> int:
        """The number of stages before the last."""
        return self._stages.count

    @property
    def held(self) -> int:
        """The bytes of all blocks."""
        return self._budget.held

    @property
    def peak(self) -> int:
        """The most bytes that blocks used so far."""
        return self._budget.peak

    # ------------------------------------------------------------ attempts

    def open(self, task: Task, worker: int) -> Task:
        """An attempt begins on ``worker``: have its blocks made. Return the task for its worker.

        A task's budgets are those of all ``limit`` steps of the plan; the earlier stages' come first.
        """
        if not self._stages.count:
            return task
        shard, own = task.shard.index, self._stages.limit_count
        if shard in self._attempts:  # its worker died while it was paused
            self.close(shard, self._attempts[shard].attempt)
        attempt = AttemptQueue(task.shard, task.attempt, worker, task.budgets[:own], task.decodes)
        self._attempts[shard] = attempt
        self._queues.begin(attempt)
        return msgspec.structs.replace(task, budgets=task.budgets[own:])

    def close(self, shard: int, attempt: int) -> None:
        """An attempt has ended, in whichever way: make nothing more for it."""
        queue = self._attempts.get(shard)
        if queue is not None and queue.attempt == attempt:
            del self._attempts[shard]
            self._discard(queue)

    def ended(self, outcome: Outcome) -> Outcome:
        """An attempt has ended: make nothing more for it, and add what the earlier stages did to its outcome."""
        shard, attempt = outcome.shard, outcome.attempt
        if isinstance(outcome, Done) and self.attempt_of(shard) == attempt:
            outcome = with_earlier_stages(outcome, self._attempts[shard], self._stages)
        self.close(shard, attempt)
        return outcome

    def restart(self, shard: int, reason: str) -> None:
        """End the attempt at a shard, which will begin anew."""
        attempt = self._attempts.get(shard)
        if attempt is not None and not attempt.aborted:
            self._abort(attempt, reason)

    def attempt_waits(self, note: AttemptWaiting) -> None:
        """An attempt's worker has used up the blocks that it was sent by then."""
        attempt = self._attempts.get(note.shard)
        if attempt is not None and attempt.attempt == note.attempt:
            attempt.waiting = note.taken == attempt.sent

    def attempt_of(self, shard: int) -> int:
        """Return which attempt at a shard is open; -1 if none is."""
        return self._attempts[shard].attempt if shard in self._attempts else -1

    @property
    def attempts_waiting(self) -> int:
        """The number of attempts whose worker waits for a block."""
        return sum(attempt.waiting for attempt in self._attempts.values())

    # ------------------------------------------------------------ tasks

    def complete(self, number: int, outcome: Outcome | None) -> None:
        """Record the outcome of a call for a task; None: it had ended before."""
        task = self._queues.tasks.get(number)
        if task is not None:
            self._answered(task)
        if isinstance(outcome, BlockMade):
            self._add_block(task, outcome)
        elif task is None:
            return
        elif isinstance(outcome, Done):
            task.ended = outcome
            if outcome.rejects:
                task.blocks.append(TrailingRejects(outcome.rejects))
                task.ledgers.append(outcome.ledger)
        elif isinstance(outcome, AttemptLost):
            self._lose(task, outcome)
        elif isinstance(outcome, Failed):
            self.error = self.error or outcome.error

    def freed(self, note: BlocksFreed) -> None:
        """Nobody reads these blocks any more."""
        for number in note.numbers:
            self._budget.remove(number)

    def expects(self, task: int) -> bool:
        """Say whether a task is still needed."""
        return task in self._queues.tasks

    def rows_read(self, task: int) -> int:
        """Return how many rows a task had read when it gave its last block."""
        found = self._queues.tasks.get(task)
        return found.ledgers[-1].read if found is not None and found.ledgers else 0

    def tasks_waiting(self, stage: int) -> int:
        """Return how many tasks of a stage wait for a worker; none while the budget has no room."""
        if not self._budget.has_room(stage):
            return 0
        limited = self._stages.limited
        attempts = (attempt for attempt in self._attempts.values() if attempt.is_open)
        return sum(
            task.worker is None
            for attempt in attempts
            for task in unfinished(attempt, stage, limited=limited)
        )

    def open_workers(self, stage: int) -> set[int]:
        """Return the workers of a stage that have begun a task and not ended it."""
        return {
            task.worker
            for task in self._queues.tasks.values()
            if task.stage == stage and task.worker is not None and task.ended is None
        }

    # ------------------------------------------------------------ orders

    def ready(self, loads: Sequence[Mapping[int, int]], *, needed_only: bool = False) -> list[Order]:
        """Return the orders to carry out now.

        ``loads`` has, for each earlier stage, the number of unanswered calls of each worker. ``needed_only``: ask
        only for the blocks that attempts wait for.
        """
        self._budget.needed_only = needed_only
        for stage, load in enumerate(loads):
            self._restart_orphans(stage, load)
        for attempt in self._attempts.values():
            if not attempt.aborted:
                self._queues.form_tasks(attempt)
            self._send_blocks(attempt)
        attempts = by_need(self._attempts.values())
        for stage in reversed(range(len(loads))):  # downstream first
            self._give_out(stage, dict(loads[stage]), attempts)
        orders, self._orders = self._orders, []
        return orders

    def _send_blocks(self, attempt: AttemptQueue) -> None:
        while attempt.is_open:
            found = self._queues.next_block(attempt, -1)
            if isinstance(found, QueuedTask):
                attempt.needed = found
                return
            attempt.waiting = False
            attempt.complete = found is None
            attempt.sent += 1
            if isinstance(found, Block):
                del attempt.unread[found.ref.number]
            self._orders.append(Feed(attempt.worker, attempt.shard.index, attempt.attempt, found))
        attempt.needed = None

    def _give_out(self, stage: int, loads: dict[int, int], attempts: Sequence[AttemptQueue]) -> None:
        """Give each worker of a stage up to ``MAX_CALLS`` calls; each gets one before any gets another."""
        for level in range(MAX_CALLS):
            for worker in sorted(loads):
                if loads[worker] != level:
                    continue
                task = choose_task(
                    worker,
                    stage,
                    attempts,
                    room=self._budget.has_room(stage),
                    limited=self._stages.limited,
                    machine=self._machine,
                )
                if task is not None:
                    loads[worker] += 1
                    self._ask(task, worker)

    def _ask(self, task: QueuedTask, worker: int) -> None:
        """Have a worker give the next block of a task; it begins the task if nobody has."""
        task.calls += 1
        self._budget.called(task.stage)
        if task.worker is not None:
            self._orders.append(Proceed(task.stage, worker, task.task.shard.index, task.task.attempt))
            return
        task.worker = worker
        attempt = self._attempts[task.task.shard.index]
        for block in task.task.blocks:
            if isinstance(block, Block) and block.ref.number == task.shared_block:
                self._orders.append(KeepBlock(block.ref))
            elif isinstance(block, Block):  # the worker lets go of it
                del attempt.unread[block.ref.number]
        self._orders.append(Begin(task.stage, worker, with_limits(task, attempt, self._stages)))

    # ------------------------------------------------------------ answers and blocks

    def _add_block(self, task: QueuedTask | None, made: BlockMade) -> None:
        attempt = self._attempts[task.task.shard.index] if task is not None else None
        if task is None or attempt is None or attempt.aborted:
            self._orders.append(DropBlock(made.block.ref))
            return
        task.ledgers.append(made.ledger)
        task.blocks.append(made.block)
        ref = made.block.ref
        attempt.unread[ref.number] = made.block
        self._budget.add(ref.number, ref.size, task.stage, attempt)

    def _answered(self, task: QueuedTask) -> None:
        task.calls -= 1
        self._budget.answered(task.stage)

    def _expect_no_more(self, task: QueuedTask) -> None:
        """Ignore the answers to the calls for a task from now on."""
        if self._queues.tasks.pop(task.task.attempt, None) is not None:
            self._budget.answered(task.stage, task.calls)
            task.calls = 0

    def _cancel(self, task: QueuedTask) -> None:
        self._expect_no_more(task)
        if task.worker is not None and task.ended is None:
            self._orders.append(GiveUp(task.stage, task.worker, task.task.shard.index, task.task.attempt))

    def _discard(self, attempt: AttemptQueue) -> None:
        """Cancel all tasks of an attempt, and drop the blocks that nobody was given."""
        for task in attempt.tasks:
            self._cancel(task)
        for block in list(attempt.unread.values()):
            self._drop(attempt, block)

    def _drop(self, attempt: AttemptQueue, block: Block) -> None:
        del attempt.unread[block.ref.number]
        self._orders.append(DropBlock(block.ref))
        self._budget.remove(block.ref.number)

    # ------------------------------------------------------------ deaths

    def _restart_orphans(self, stage: int, loads: Mapping[int, int]) -> None:
        """Begin the tasks anew whose worker died while they were paused: no call of theirs failed."""
        for task in list(self._queues.tasks.values()):
            paused = task.worker is not None and not task.calls and task.ended is None
            if task.stage != stage or not paused or task.worker in loads:
                continue
            if task.task.attempt in self._queues.tasks:  # not discarded with another task of its attempt
                self._restart(task, "a worker ended before it had given all of a block's rows")

    def _lose(self, task: QueuedTask, gone: AttemptLost) -> None:
        """A worker died that had a call for a task. Its calls fail in order: it was at work on the first."""
        if gone.charged and task.worker is not None and (task.stage, task.worker) not in self._dead:
            self._dead.add((task.stage, task.worker))
            key = task.task.shard.index, task.stage, task.index
            deaths = self._deaths[key] = self._deaths.get(key, 0) + 1
            if deaths >= self._max_attempts:
                what = f"A piece of part {task.task.shard.index} of the input"
                self.error = ends_its_workers(what, deaths, gone.reason)
        if task.ended is None:
            self._restart(task, gone.reason)

    def _restart(self, task: QueuedTask, reason: str) -> None:
        """Begin a task anew, or all tasks of its attempt; or the attempt, if it was sent a block already."""
        attempt = self._attempts[task.task.shard.index]
        if attempt.aborted:
            return
        if not task.task.blocks and not task.passed_on:
            self._cancel(task)
            for block in task.blocks:
                if isinstance(block, Block):
                    self._drop(attempt, block)
            task.reset(self._queues.number())
            self._queues.tasks[task.task.attempt] = task
        elif not attempt.sent:
            self._discard(attempt)
            self._queues.begin(attempt)
        else:
            self._abort(attempt, reason)

    def _abort(self, attempt: AttemptQueue, reason: str) -> None:
        attempt.aborted = True
        self._orders.append(Feed(attempt.worker, attempt.shard.index, attempt.attempt, reason))


class BlockBudget:
    """Counts blocks, and the calls that will give one, against ``limit`` bytes.

    ``held`` is what blocks use now, ``peak`` the most that they used so far. With ``needed_only`` there is no room.
    """

    def __init__(self, limit: int, stages: int) -> None:
        self._limit = limit
        # By number: size, and the attempt it is made for.
        self._blocks: dict[int, tuple[int, AttemptQueue]] = {}
        self._calls = [0] * stages  # that are not answered
        self._typical = [INITIAL_BYTES] * stages  # bytes of a block
        self.held = 0
        self.peak = 0
        self.needed_only = False

    def has_room(self, stage: int) -> bool:
        """Say whether one more block of a stage is within the budget."""
        if self.needed_only:
            return False
        expected = sum(calls * size for calls, size in zip(self._calls, self._typical, strict=True))
        fits = self.held + expected + self._typical[stage] <= self._limit
        return fits and len(self._blocks) + sum(self._calls) < MAX_BLOCKS

    def called(self, stage: int) -> None:
        """Count a call that is made."""
        self._calls[stage] += 1

    def answered(self, stage: int, calls: int = 1) -> None:
        """Count calls that are answered, or whose answers do not matter any more."""
        self._calls[stage] -= calls

    def add(self, number: int, size: int, stage: int, attempt: AttemptQueue) -> None:
        """Count a block that a stage has made."""
        self._blocks[number] = size, attempt
        self.held += size
        self.peak = max(self.peak, self.held)
        attempt.held += size
        self._typical[stage] = max(size, (3 * self._typical[stage] + size) // 4)

    def remove(self, number: int) -> None:
        """Stop counting a block that does not exist any more."""
        if number in self._blocks:
            size, attempt = self._blocks.pop(number)
            self.held -= size
            attempt.held -= size


def ends_its_workers(what: str, deaths: int, reason: str) -> ErrorReport:
    """Return the error for ``what``, over which so many workers died."""
    return ErrorReport(
        "ShardFailed",
        f"{what} ended its worker {deaths} times, the last time because: {reason}. Something in its rows or in the "
        "function ends the process (a crash in native code, or too little memory). Finished work is kept: fix the "
        "function or the input, then run again.",
    )
