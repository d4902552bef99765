"""The worker of a stage, as a pool hosts it: it begins attempts, resumes them, and finishes their files."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec

from headrace.core import failpoints, failures
from headrace.core.engine_ports import WorkerContext
from headrace.core.events import WorkerReady
from headrace.core.messages import AttemptFinishing, EndEarly, LeaveRest, RestLeft, ShrinkBatches
from headrace.core.work import AttemptLost, Block, Done, Outcome, Pause, Task
from headrace.errors import NodeLost
from headrace.plan.physical import Program
from headrace.worker.attempt import Attempt, AttemptGenerator
from headrace.worker.blocks import StageInput
from headrace.worker.early_end import Speed
from headrace.worker.rows import Rows, where
from headrace.worker.staged_output import by_itself
from headrace.worker.steps.base import StepChain


class StageWorker:
    """Hosted in each worker of a stage's pool; ``attempt`` and ``proceed`` answer with an ``Outcome``.

    A worker of the last stage has one attempt at a shard, and is fed the blocks of the stage before as they are made.
    One of an earlier stage may make blocks of several tasks of a shard; each task has the blocks that it needs.
    """

    def __init__(
        self, program: Program, context: WorkerContext, clock: Callable[[], float] = time.monotonic
    ) -> None:
        failpoints.activate(program.failpoints)
        self._uploader, program = by_itself(program)
        self._program = program
        self._context = context
        self._chain = StepChain(
            program.steps,
            self._where,
            own_running=program.own_running,
            eager=program.kind == "look",
            reads=program.reads,
            preparing=context.preparing,
            loaded=lambda seconds: context.notify(WorkerReady(context.worker, seconds)),
            policy=program.policy,
            keys=program.source.row_keys,
            own_keys=program.source.own_keys,
            folder=program.folder,
        )
        self._makes_blocks = program.kind == "make"
        self._is_fed = program.reads_blocks and not self._makes_blocks
        # By shard and number of the attempt:
        self._attempts: dict[tuple[int, int], tuple[Attempt, AttemptGenerator]] = {}
        self._finisher = ThreadPoolExecutor(1, "headrace-finish")
        self._input_queues: dict[tuple[int, int], queue.SimpleQueue[StageInput]] = {}
        self._ended_attempts: deque[tuple[int, int]] = deque(maxlen=64)  # for which input may still arrive
        self._queues_lock = threading.Lock()
        self._clock = clock
        self._speed = Speed()
        self._stopping = False
        self._ending: set[tuple[int, int]] = set()  # attempts that are to end early

    def feed(self, shard: int, attempt: int, item: StageInput | ShrinkBatches | EndEarly | LeaveRest) -> None:
        """Add the next block to the input of an attempt; None after the last one, a reason if its input is lost.

        Called from another thread than the other methods, possibly before the attempt starts.
        """
        if isinstance(item, ShrinkBatches):
            self._chain.shrink_batches()
            return
        if isinstance(item, EndEarly):
            self._stopping = self._stopping or shard < 0
            self._ending.add((shard, attempt))
            return
        if isinstance(item, LeaveRest):
            known = self._attempts.get((shard, attempt))
            for left in known[0].leave(item) if known is not None else ():
                with contextlib.suppress(RuntimeError):  # it is being closed
                    self._finisher.submit(self._report_left, left)  # this thread must not wait for the driver
            return
        with self._queues_lock:
            inputs = None if (shard, attempt) in self._ended_attempts else self._input_queue(shard, attempt)
        if inputs is not None:
            inputs.put(item)
        else:
            self._discard(item)

    def _report_left(self, left: RestLeft) -> None:
        failpoints.hit("attempt.left")
        self._context.notify(left)

    def _discard(self, item: StageInput) -> None:
        """Fetch a block that is not needed any more, so that its memory is released."""
        if isinstance(item, Block):
            with contextlib.suppress(NodeLost):
                self._context.fetch(item.ref)

    def _input_queue(self, shard: int, attempt: int) -> queue.SimpleQueue[StageInput]:
        return self._input_queues.setdefault((shard, attempt), queue.SimpleQueue())

    def _discard_inputs(self, shard: int, attempt: int) -> None:
        """Drop the input that an ended attempt did not consume."""
        with self._queues_lock:
            self._ended_attempts.append((shard, attempt))
            inputs = self._input_queues.pop((shard, attempt), None)
        while inputs is not None and not inputs.empty():
            self._discard(inputs.get())
        self._context.release_unused()

    def attempt(self, task: Task) -> Outcome | Future[Outcome]:
        """Start an attempt; return its outcome, or a message after which it waits for ``proceed``."""
        if self._stopping:
            reason = "the run was interrupted before it began"
            return AttemptLost(task.shard.index, task.attempt, reason, charged=False)
        key = task.shard.index, task.attempt
        if task.on_error not in (None, self._program.policy.on_error):
            policy = msgspec.structs.replace(self._program.policy, on_error=task.on_error)
            self._program = msgspec.structs.replace(self._program, policy=policy)
            self._chain.policy = policy
        inputs = None
        if self._is_fed:
            with self._queues_lock:
                inputs = self._input_queue(*key)
        if not self._makes_blocks:
            for before in [each for each in self._attempts if each[0] == task.shard.index]:
                self.give_up(*before)
        attempt = Attempt(
            self._program,
            self._chain,
            self._context,
            task,
            self._where,
            inputs,
            self._speed,
            self._clock,
            self._uploader,
            lambda: self._stopping or key in self._ending,
        )
        self._attempts[key] = attempt, _carry_out(attempt)
        return self._resume(key, None)

    def proceed(self, shard: int, attempt: int, schema: bytes | None) -> Outcome | Future[Outcome] | None:
        """Continue a waiting attempt with the schema that was settled meanwhile; None if it has ended before."""
        key = shard, attempt
        return self._resume(key, schema) if key in self._attempts else None

    def give_up(self, shard: int, attempt: int) -> None:
        """Drop an attempt that nobody needs any more."""
        _, generator = self._attempts.pop((shard, attempt), (None, None))
        if generator is not None:
            generator.close()

    def close(self) -> None:
        """Close files and models; running attempts are dropped."""
        for key in list(self._attempts):
            self.give_up(*key)
        self._finisher.shutdown()
        if self._uploader is not None:
            self._uploader.close()
        self._chain.close()
        self._program.source.close()

    def _resume(self, key: tuple[int, int], answer: bytes | None) -> Outcome | Future[Outcome]:
        attempt, generator = self._attempts[key]
        try:
            outcome = generator.send(answer)
        except BaseException as error:
            if failures.is_interrupt(error):
                del self._attempts[key]
                raise
            outcome = attempt.failure(error)
        if isinstance(outcome, Pause):
            return outcome
        del self._attempts[key]
        self._ending.discard(key)
        next(generator, None)  # run it to its end; closing it would abort the attempt
        if self._is_fed:
            self._discard_inputs(*key)
        if isinstance(outcome, Done) and attempt.must_finish:
            self._context.notify(AttemptFinishing(outcome.shard, outcome.attempt))
            # Encoding and syncing may take long: the next shard starts meanwhile.
            return self._finisher.submit(attempt.finish, outcome)
        return outcome

    def _where(self, rows: Rows) -> str:
        return where(self._program.source, rows)


def _carry_out(attempt: Attempt) -> AttemptGenerator:
    """Run an attempt; if it does not end normally, its staged files are removed."""
    try:
        yield from attempt.run()
    except BaseException:
        attempt.abort()
        raise
