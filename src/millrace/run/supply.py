"""Which block is made next, by whom: the stages before the last. Pure decisions: no I/O, no thread, no clock.

A shard's attempt is open on one worker of the last stage, which takes the shard's blocks in order. Some of its
splits, or some neighbouring blocks of which a stage in between makes new ones, are a *piece*. A piece is a
conversation with one worker, which gives one block per call. So making never blocks a worker: a piece that is not
asked for more rests, and its worker is free for one that is needed sooner.

Where a stage's steps want batches of so many rows (its *unit*), its pieces end at multiples of that, counted from
the start of the shard: what goes beyond in a block is for the piece behind. So batches are cut as in one stage.

Backpressure is one number: the bytes of all blocks that exist or are being made, against a budget. What an attempt
needs next while its worker waits is asked for whatever the budget says, one block after the other for each open
shard. So something can always move.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from millrace.core.work import (
    Block,
    BlockRef,
    Broken,
    Done,
    Ended,
    ErrorReport,
    Failed,
    Freed,
    Gone,
    Ledger,
    Made,
    Piece,
    Progress,
    Shard,
    Tail,
    Task,
    Timings,
    Waiting,
)
from millrace.plan.cuts import Extent, extents
from millrace.run.accounts import cut_short, mismatch, wrong_in

USUAL = 8 << 20  # bytes of a block, before any was seen
MOST = 256  # blocks at a time: each takes a file descriptor here and in its reader
MOST_ITEMS = MOST // 2  # blocks of a piece, however few rows that are
DEPTH = 2  # calls before a worker, so that it need not wait for the next


@dataclass(frozen=True, slots=True)
class Make:
    """Ask a worker of ``stage`` for the first block of a piece."""

    stage: int
    worker: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class More:
    """Ask for the next block of a piece."""

    stage: int
    worker: int
    piece: int


@dataclass(frozen=True, slots=True)
class GiveUp:
    """A piece is not needed any more."""

    stage: int
    worker: int
    piece: int


@dataclass(frozen=True, slots=True)
class Feed:
    """Hand a block to the worker that writes its shard; None: that was all of it."""

    worker: int
    shard: int
    attempt: int
    block: Block | Tail | None


@dataclass(frozen=True, slots=True)
class Abort:
    """An attempt cannot go on: of what it was fed in part, the rest is lost. Its worker gives it up."""

    worker: int
    shard: int
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class Keep:
    """This block will be read by two pieces."""

    ref: BlockRef


@dataclass(frozen=True, slots=True)
class Drop:
    """Nobody will read this block."""

    ref: BlockRef


SupplyOrder = Make | More | GiveUp | Feed | Abort | Keep | Drop


@dataclass(slots=True, eq=False)
class _Node:
    """A piece, and the blocks that it gave so far. ``place``: the how manieth of its stage it is."""

    stage: int
    place: int
    piece: Piece
    shares: int | None = None  # the block that the piece behind it goes on with
    until: tuple[int, int] = (
        0,
        0,
    )  # where in the stage before it ends: at which piece, after how many blocks
    worker: int | None = None
    asked: int = 0  # calls that are not answered
    given: list[Block | Tail] = field(default_factory=list)
    at: int = 0  # the first of them that is not handed on
    ledgers: list[Ledger] = field(default_factory=list)  # when each of them was given
    ended: Ended | None = None


@dataclass(slots=True, eq=False)
class _Line:
    """The pieces of one stage, in order, and what is gathered for the next of them."""

    nodes: list[_Node] = field(default_factory=list)
    at: int = 0  # the first of them that may have something to hand on
    complete: bool = False  # there will be no more
    needs: _Node | None = None  # what has to give something, that there can be more
    items: list[Block | Tail] = field(default_factory=list)
    skip: int = 0  # rows of the first item that went to the piece before
    rows: int = 0


@dataclass(slots=True, eq=False)
class _Flow:
    """What one attempt at a shard is fed with."""

    shard: Shard
    attempt: int
    worker: int
    budgets: tuple[int, ...]
    lines: list[_Line] = field(default_factory=list)
    loose: dict[int, Block] = field(default_factory=dict)  # blocks that will still be handed to somebody
    fed: int = 0  # blocks
    held: int = 0  # bytes of its blocks
    needed: _Node | None = None
    complete: bool = False
    waiting: bool = False
    aborted: bool = False


def _each_split(shard: Shard) -> Iterable[Extent]:
    return extents(shard.splits, 0)


class Supply:
    """Decides who makes which block, and feeds attempts with them in order.

    ``steps`` says how many steps each earlier stage has, ``limits`` which of these are ``limit``s, ``units`` of how
    many rows their pieces are multiples; ``pieces`` cuts a shard for the first of them. ``budget`` is in bytes.
    ``origins`` has, for each step of all stages, the step of the plan that it is a part of. ``peak`` is the most that
    blocks took so far.
    """

    def __init__(
        self,
        steps: Sequence[int],
        limits: Sequence[Sequence[int]],
        *,
        budget: int,
        max_attempts: int = 3,
        origins: Sequence[int] = (),
        units: Sequence[int] = (),
        pieces: Callable[[Shard], Iterable[Extent]] = _each_split,
        near: Callable[[int, int], bool] = lambda worker, other: True,
    ) -> None:
        """``near`` says whether two workers are on one machine."""
        self._near = near
        self._steps = list(steps)
        self._limits = [tuple(each) for each in limits]
        self._limited = any(self._limits)
        self._budget = budget
        self._origins = list(origins)
        self._units = list(units) or [0] * len(self._steps)
        self._pieces = pieces
        self._max_attempts = max_attempts
        self._flows: dict[int, _Flow] = {}
        self._nodes: dict[int, _Node] = {}
        self._blocks: dict[int, tuple[int, _Flow]] = {}  # size and flow of those that exist, by number
        self._numbers = itertools.count()
        self._asked = [0] * len(self._steps)
        self._usual = [USUAL] * len(self._steps)  # bytes of a block of each stage
        self._deaths: dict[tuple[int, int, int], int] = {}
        self._dead: set[tuple[int, int]] = set()
        self._orders: list[SupplyOrder] = []
        self.error: ErrorReport | None = None
        self.tight = False  # nothing is made but what is needed next
        self.held = 0
        self.peak = 0
        self.busy = [0.0] * (len(self._steps) + 1)  # seconds of work of each stage's workers

    # ------------------------------------------------------------ attempts

    def open(self, task: Task, worker: int) -> Task:
        """An attempt is begun on ``worker``: it will want the blocks of its splits. Return what it is told.

        A task's budgets are those of all ``limit`` steps of the plan; the earlier stages' come first.
        """
        shard, own = task.shard.index, sum(map(len, self._limits))
        if shard in self._flows:  # of an attempt whose worker died while it rested
            self.close(shard, self._flows[shard].attempt)
        flow = self._flows[shard] = _Flow(task.shard, task.attempt, worker, task.budgets[:own])
        self._begin(flow)
        return msgspec.structs.replace(task, budgets=task.budgets[own:])

    def close(self, shard: int, attempt: int) -> None:
        """An attempt is over, however it ended: nothing more is made for it."""
        flow = self._flows.get(shard)
        if flow is None or flow.attempt != attempt:
            return
        del self._flows[shard]
        self._discard(flow)

    def completed(self, done: Done) -> Done | Failed:
        """Add to an attempt's outcome what the stages before did for the blocks that it took.

        What they made beyond these, because they work ahead, counts nowhere: else a ``limit`` further on would leave
        other numbers each time. An attempt leaves a rest only if they gave it all rows of the source, each once.
        """
        flow = self._flows[done.shard]
        self.busy[-1] += _worked(done.timings)
        stages = [Ledger() for _ in self._steps]
        timings = done.timings
        for node, ledger in _used(flow.lines, math.inf if done.taken is None else done.taken):
            stages[node.stage] += ledger
            timings += node.ended.timings if node.ended is not None else Timings()
        if done.rest is not None:
            rows = done.rest.rows
            stages = [
                msgspec.structs.replace(_nothing(n), read=rows, steps=((rows, rows),) * n)
                for n in self._steps
            ]
        stages = [each if each.steps else _nothing(n) for each, n in zip(stages, self._steps, strict=True)]
        passed = (stages[stage].steps[i][1] for stage, limits in enumerate(self._limits) for i in limits)
        ledger = self._each_step(stages, done)
        wrong = wrong_in(ledger, [f"part {i + 1} of the plan" for i in range(len(ledger.steps))])
        if wrong:
            wrong = f"in shard {flow.shard.label()}, between stages, {wrong}"
            return Failed(done.shard, done.attempt, ErrorReport("LedgerMismatch", mismatch(wrong)))
        return msgspec.structs.replace(
            done,
            ledger=self._whole(ledger),
            timings=timings,
            passed=(*passed, *done.passed),
        )

    def _each_step(self, stages: Sequence[Ledger], done: Done) -> Ledger:
        """Put the ledgers of all stages behind one another.

        What the attempt or a limit between did not need any more was on its way to it.
        """
        each = [*stages, done.ledger]
        ledger = Ledger(
            stages[0].read,
            done.ledger.written,
            stages[0].rejected + sum(sum(other.rejects) for other in each[1:]),
            tuple(itertools.chain.from_iterable(other.steps for other in each)),
            tuple(itertools.chain.from_iterable(other.rejects for other in each)),
            sum(other.nulled for other in each),
            tuple(itertools.chain.from_iterable(other.dropped for other in each)),
            tuple(itertools.chain.from_iterable(other.added for other in each)),
            tuple(itertools.chain.from_iterable(other.unused for other in each)),
        )
        own = sum(self._steps)
        if done.taken is not None:
            return cut_short(ledger, own if done.ledger.steps else own - 1)
        limits = [sum(self._steps[:stage]) + i for stage, found in enumerate(self._limits) for i in found]
        return cut_short(ledger, max(limits, default=-1))

    def _whole(self, ledger: Ledger) -> Ledger:
        """Count a step that was parted as one."""
        parts: dict[int, list[int]] = {}
        for i, origin in enumerate(self._origins or range(len(ledger.steps))):
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
        )

    def waiting(self, stage: int) -> int:
        """Return how many pieces of a stage wait for a worker to begin them; none while there is no room."""
        if not self._room(stage):
            return 0
        flows = (flow for flow in self._flows.values() if not flow.complete and not flow.aborted)
        return sum(node.worker is None for flow in flows for node in self._makeable(flow, stage))

    # ------------------------------------------------------------ what happened

    def complete(self, outcome: Progress) -> None:
        """Take what came of a call for a piece."""
        node = self._nodes.get(outcome.piece)
        if node is not None:
            self._answered(node)
        if isinstance(outcome, Made):
            flow = self._flows[node.piece.shard] if node is not None else None
            if node is None or flow is None or flow.aborted:
                self._orders.append(Drop(outcome.block.ref))
            else:
                node.ledgers.append(outcome.ledger)
                self._take(flow, node, outcome.block)
        elif node is None:
            return
        elif isinstance(outcome, Ended):
            node.ended = outcome
            if outcome.rejects:
                node.given.append(Tail(outcome.rejects))
                node.ledgers.append(outcome.ledger)
            self.busy[node.stage] += _worked(outcome.timings)
        elif isinstance(outcome, Gone):
            self._lose(node, outcome)
        elif isinstance(outcome, Broken):
            self.error = self.error or outcome.error

    def shard_of(self, piece: int) -> int | None:
        """Return the shard of a piece; None if it is not needed any more."""
        return self._nodes[piece].piece.shard if piece in self._nodes else None

    def attempt_of(self, shard: int) -> int:
        """Return which attempt at a shard is fed; -1 if none is."""
        return self._flows[shard].attempt if shard in self._flows else -1

    def rows_of(self, piece: int) -> int:
        """Return how many rows of a piece were read when it gave its last block."""
        node = self._nodes.get(piece)
        return node.ledgers[-1].read if node is not None and node.ledgers else 0

    def give_up(self, shard: int, reason: str) -> None:
        """End the attempt at a shard: it is to begin anew, in another way."""
        flow = self._flows.get(shard)
        if flow is not None and not flow.aborted:
            flow.aborted = True
            self._orders.append(Abort(flow.worker, flow.shard.index, flow.attempt, reason))

    def idle(self, piece: int) -> None:
        """A call for a piece found that it had ended before."""
        if piece in self._nodes:
            self._answered(self._nodes[piece])

    def freed(self, note: Freed) -> None:
        """Blocks are not looked at any more."""
        for number in note.numbers:
            self._forget(number)

    @property
    def starving(self) -> int:
        """How many attempts wait for a block."""
        return sum(flow.waiting for flow in self._flows.values())

    def wait(self, note: Waiting) -> None:
        """An attempt's worker has used up what it was fed."""
        flow = self._flows.get(note.shard)
        if flow is not None and flow.attempt == note.attempt:
            flow.waiting = note.taken == flow.fed

    # ------------------------------------------------------------ what to do

    def ready(self, loads: Sequence[Mapping[int, int]]) -> list[SupplyOrder]:
        """Return the orders to carry out now; ``loads`` has, for each earlier stage, each worker's calls."""
        for stage, live in enumerate(loads):
            self._bury(stage, live)
        for flow in self._flows.values():
            if not flow.aborted:
                for stage in range(1, len(flow.lines)):
                    self._gather(flow, stage)
            self._feed(flow)
        for stage in reversed(range(len(loads))):  # downstream first
            self._ask(stage, dict(loads[stage]))
        orders, self._orders = self._orders, []
        return orders

    def _feed(self, flow: _Flow) -> None:
        while not flow.complete and not flow.aborted:
            found = self._next(flow)
            if isinstance(found, _Node):
                flow.needed = found
                return
            flow.waiting = False
            flow.complete = found is None
            flow.fed += 1
            if isinstance(found, Block):
                del flow.loose[found.ref.number]
            self._orders.append(Feed(flow.worker, flow.shard.index, flow.attempt, found))
        flow.needed = None

    def _next(self, flow: _Flow, stage: int = -1) -> Block | Tail | _Node | None:
        """Take the next block that a stage (the last of the earlier ones) gave, or return the piece that has to give
        it; None if there is no more."""
        line = flow.lines[stage]
        while line.at < len(line.nodes):
            node = line.nodes[line.at]
            if node.at < len(node.given):
                node.at += 1
                return node.given[node.at - 1]
            if node.ended is None:
                return node
            self._retire(node)
            line.at += 1
        return None if line.complete else line.needs

    def _gather(self, flow: _Flow, stage: int) -> None:
        """Form the pieces of a stage after the first, as far as the one before has given what they are made of."""
        line = flow.lines[stage]
        while not line.complete:
            found = self._next(flow, stage - 1)
            if isinstance(found, _Node):
                line.needs = found
                return
            if found is not None:
                line.items.append(found)
            if isinstance(found, Block):
                line.rows += found.rows
            line.complete = found is None
            self._form(flow, stage)

    def _form(self, flow: _Flow, stage: int) -> None:
        """Make a piece of what was gathered, once that is enough; of rows in excess begins the next."""
        line, unit = flow.lines[stage], self._units[stage]
        left = 0
        if not line.complete and len(line.items) < MOST_ITEMS:
            if line.rows < max(unit, 1):
                return
            left = line.rows % unit if unit else 0
        if not line.items:
            return
        rows = line.rows - left
        piece = Piece(
            flow.shard.index, next(self._numbers), blocks=tuple(line.items), skip=line.skip, rows=rows
        )
        node = self._node(flow, stage, piece)
        before = flow.lines[stage - 1]
        node.until = before.at, before.nodes[before.at].at if before.at < len(before.nodes) else 0
        last = line.items[-1]
        line.items, line.skip, line.rows = [], 0, 0
        if left:
            assert isinstance(last, Block)
            line.items, line.skip, line.rows = [last], last.rows - left, left
            node.shares = last.ref.number

    def _ask(self, stage: int, loads: dict[int, int]) -> None:
        for level in range(DEPTH):
            for worker in sorted(loads):
                node = self._choose(stage, worker) if loads[worker] == level else None
                if node is None:
                    continue
                loads[worker] += 1
                node.asked += 1
                self._asked[stage] += 1
                if node.worker is None:
                    self._make(node, worker)
                else:
                    self._orders.append(More(stage, worker, node.piece.number))

    def _make(self, node: _Node, worker: int) -> None:
        """Have a piece begun; its worker lets go of the blocks that it is made of."""
        node.worker = worker
        flow = self._flows[node.piece.shard]
        for block in node.piece.blocks:
            if isinstance(block, Block) and block.ref.number == node.shares:
                self._orders.append(Keep(block.ref))
            elif isinstance(block, Block):
                del flow.loose[block.ref.number]
        self._orders.append(Make(node.stage, worker, self._budgeted(node)))

    def _choose(self, stage: int, worker: int) -> _Node | None:
        """Return the piece that this worker should give a block of.

        First what an attempt waits for; then what the worker has begun, as nobody else can go on with it; then an
        early piece of the hungriest attempt, of those whose worker is near if there are any.
        """
        room = self._room(stage)
        begun = fresh = far = None
        for flow in self._by_hunger():
            for node in self._makeable(flow, stage):
                if node.worker not in (None, worker) or node.asked >= DEPTH:
                    continue
                if flow.waiting and node is flow.needed and not node.asked:
                    return node
                if node.worker is not None:
                    begun = begun or node
                else:
                    if self._near(worker, flow.worker):
                        fresh = fresh or node
                    far = far or node
                    break  # pieces are begun in order: those behind it are fresh, too
        return (begun or fresh or far) if room else None

    def _room(self, stage: int) -> bool:
        """Say whether one block more of a stage is within the budget."""
        if self.tight:
            return False
        asked = sum(number * size for number, size in zip(self._asked, self._usual, strict=True))
        fits = self.held + asked + self._usual[stage] <= self._budget
        return fits and len(self._blocks) + sum(self._asked) < MOST

    def holders(self, stage: int) -> set[int]:
        """Return the workers of a stage that have begun a piece and not ended it."""
        return {
            node.worker
            for node in self._nodes.values()
            if node.stage == stage and node.worker is not None and node.ended is None
        }

    def _by_hunger(self) -> list[_Flow]:
        """Order attempts: at each worker the one at work before those behind it, then by what they have."""
        place: dict[int, int] = {}
        ranked = []
        for flow in self._flows.values():
            rank = place[flow.worker] = place.get(flow.worker, -1) + 1
            if not flow.complete and not flow.aborted:
                ranked.append((rank, not flow.waiting, flow.held, flow.shard.index, flow))
        return [flow for *_, flow in sorted(ranked, key=lambda each: each[:4])]

    def _makeable(self, flow: _Flow, stage: int) -> Iterator[_Node]:
        """Yield the pieces of a stage that have more to give, in order."""
        line = flow.lines[stage]
        more = (node for node in itertools.islice(line.nodes, line.at, None) if node.ended is None)
        if not self._limited:
            yield from more
            return
        # What may pass a limit depends on what has passed before: one piece after the other, through all stages.
        node = next(more, None)
        later = (each for line in flow.lines[stage + 1 :] for each in line.nodes[line.at :])
        if node is not None and (node.worker is not None or all(each.ended is not None for each in later)):
            yield node

    def _budgeted(self, node: _Node) -> Piece:
        """Return the piece with what its stage's limits still let pass."""
        limits = self._limits[node.stage]
        if not limits:
            return node.piece
        flow = self._flows[node.piece.shard]
        first = sum(map(len, self._limits[: node.stage]))
        left = list(flow.budgets[first : first + len(limits)])
        for other in flow.lines[node.stage].nodes:
            if other.ended is not None:
                left = [most - other.ended.ledger.steps[i][1] for most, i in zip(left, limits, strict=True)]
        return msgspec.structs.replace(node.piece, budgets=tuple(left))

    # ------------------------------------------------------------ pieces and blocks

    def _begin(self, flow: _Flow) -> None:
        """Cut a flow's shard for the first stage; what the others get is not there yet."""
        flow.lines = [_Line() for _ in self._steps]
        index = flow.shard.index
        for extent in self._pieces(flow.shard):
            number = next(self._numbers)
            self._node(flow, 0, Piece(index, number, extent.splits, skip=extent.skip, rows=extent.rows))
        flow.lines[0].complete = True

    def _node(self, flow: _Flow, stage: int, piece: Piece) -> _Node:
        nodes = flow.lines[stage].nodes
        node = self._nodes[piece.number] = _Node(stage, len(nodes), piece)
        nodes.append(node)
        return node

    def _take(self, flow: _Flow, node: _Node, block: Block) -> None:
        size = block.ref.size
        self._blocks[block.ref.number] = size, flow
        self.held += size
        self.peak = max(self.peak, self.held)
        flow.held += size
        flow.loose[block.ref.number] = block
        self._usual[node.stage] = max(size, (3 * self._usual[node.stage] + size) // 4)
        node.given.append(block)

    def _answered(self, node: _Node) -> None:
        node.asked -= 1
        self._asked[node.stage] -= 1

    def _retire(self, node: _Node) -> None:
        """Expect no more answers for a piece."""
        if self._nodes.pop(node.piece.number, None) is not None:
            self._asked[node.stage] -= node.asked
            node.asked = 0

    def _discard(self, flow: _Flow) -> None:
        """Drop all pieces of a flow, and what they gave, as far as it has not been handed on."""
        for node in itertools.chain.from_iterable(line.nodes for line in flow.lines):
            self._give_up(node)
        for block in list(flow.loose.values()):
            self._drop(flow, block)

    def _give_up(self, node: _Node) -> None:
        self._retire(node)
        if node.worker is not None and node.ended is None:
            self._orders.append(GiveUp(node.stage, node.worker, node.piece.number))

    def _drop(self, flow: _Flow, block: Block) -> None:
        del flow.loose[block.ref.number]
        self._orders.append(Drop(block.ref))
        self._forget(block.ref.number)

    def _forget(self, number: int) -> None:
        if number in self._blocks:
            size, flow = self._blocks.pop(number)
            self.held -= size
            flow.held -= size

    # ------------------------------------------------------------ deaths

    def _bury(self, stage: int, live: Mapping[int, int]) -> None:
        """A worker that died while its piece rested had no call that could tell."""
        for node in list(self._nodes.values()):
            rests = node.stage == stage and node.worker is not None and not node.asked and node.ended is None
            if rests and node.worker not in live and node.piece.number in self._nodes:
                self._restart(node, "a worker ended before it had given all of a block's rows")

    def _lose(self, node: _Node, gone: Gone) -> None:
        if (
            gone.blame and (node.stage, gone.worker) not in self._dead
        ):  # calls fail in order: the first was at work
            self._dead.add((node.stage, gone.worker))
            deaths = self._count_death(node)
            if deaths >= self._max_attempts:
                self.error = ErrorReport(
                    "ShardFailed",
                    f"A part of shard {node.piece.shard} ended its worker {deaths} times, the last time so: "
                    f"{gone.reason}. Something in its rows or in the function brings the process down (a crash in "
                    "native code, or too little memory). Committed shards are kept: mend the function or the "
                    "input, then run again.",
                )
        if node.ended is None:
            self._restart(node, gone.reason)

    def _count_death(self, node: _Node) -> int:
        key = node.piece.shard, node.stage, node.place
        self._deaths[key] = self._deaths.get(key, 0) + 1
        return self._deaths[key]

    def _restart(self, node: _Node, reason: str) -> None:
        """Begin a piece anew, or all of its flow; if something has reached the attempt, that has to begin anew."""
        flow = self._flows[node.piece.shard]
        if flow.aborted:
            return
        if not node.piece.blocks and not node.at:
            self._give_up(node)
            for given in node.given:
                if isinstance(given, Block):
                    self._drop(flow, given)
            node.piece = msgspec.structs.replace(node.piece, number=next(self._numbers))
            node.worker, node.ended = None, None
            node.given, node.ledgers = [], []
            self._nodes[node.piece.number] = node
        elif not flow.fed:
            self._discard(flow)
            self._begin(flow)
        else:
            flow.aborted = True
            self._orders.append(Abort(flow.worker, flow.shard.index, flow.attempt, reason))


def _worked(timings: Timings) -> float:
    return timings.read + timings.steps + timings.write


def _nothing(steps: int) -> Ledger:
    none = (0,) * steps
    return Ledger(0, 0, 0, ((0, 0),) * steps, none, 0, none, none, none)


def _used(lines: Sequence[_Line], blocks: float) -> Iterator[tuple[_Node, Ledger]]:
    """Yield pieces as they had counted when the last stage had given ``blocks`` blocks; those of it come first."""
    place, count = _reached(lines[-1].nodes, blocks)
    for stage in reversed(range(len(lines))):
        nodes = lines[stage].nodes
        for node in nodes[:place]:
            assert node.ended is not None
            yield node, node.ended.ledger
        if count:
            yield nodes[place], nodes[place].ledgers[count - 1]
        used = nodes[: place + bool(count)]
        if stage and blocks == math.inf:
            place, count = len(lines[stage - 1].nodes), 0
        else:
            place, count = used[-1].until if used else (0, 0)


def _reached(nodes: Sequence[_Node], blocks: float) -> tuple[int, int]:
    """Return how many pieces gave all of the first ``blocks`` blocks but the last few, and how many these are."""
    for node in nodes:
        if blocks <= len(node.given):
            return node.place, int(blocks)
        blocks -= len(node.given)
    return len(nodes), 0
