"""One machine of a fleet: it has a run of its own, takes slices one by one, and the work of machines that died."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import msgspec

from headrace.annex.fleet.board import (
    PLAN,
    SCHEMA,
    Board,
    Claim,
    Ended,
    FleetPlan,
    Part,
    claim_name,
    ended_name,
    rest_of,
)
from headrace.core import failpoints
from headrace.core.work import FLEET, HOME, MoreShards, Shard
from headrace.errors import HeadraceError, RunLocked
from headrace.output.job import Job, OpenRequest
from headrace.output.layout import Output, new_run_name, open_output
from headrace.output.places import lease
from headrace.output.places.notes import HELD, Notes
from headrace.output.places.place import place_at
from headrace.output.recover import recover
from headrace.output.resume import open_job
from headrace.output.saved_plan import read_plan
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning

if TYPE_CHECKING:
    from headrace.core.ports import Source
    from headrace.sinks.files import FileSink


class Given(Partitioning, frozen=True):
    """These shards, whatever the source has."""

    planned: tuple[Shard, ...] = ()

    def shards(self, source: Source) -> list[Shard]:
        """Return them."""
        return list(self.planned)


def given(partitioning: Partitioning, shards: Sequence[Shard]) -> Given:
    """Return how a plan is divided whose shards are known."""
    fields = {name: getattr(partitioning, name) for name in Partitioning.__struct_fields__}
    return Given(**fields, planned=tuple(shards))


class Fleet:
    """An output that many machines write, as one of them sees it."""

    def __init__(self, plan: Plan, request: OpenRequest, fleet: FleetPlan, notes: Notes) -> None:
        self.plan, self.request, self.fleet, self.notes = plan, request, fleet, notes
        self.board = Board(fleet.slices, notes.read)
        self._next = random.randrange(max(1, fleet.slices))
        self._signs: dict[str, tuple[str, float]] = {}  # of life, and since when there was no other

    def sink_of(self, machine: str) -> FileSink:
        """Return the sink of a machine's own output."""
        sink = cast("FileSink", self.plan.sink)
        return replace(sink, root=f"{sink.root}/{HOME}/{FLEET}/{machine}")

    def look(self) -> bool:
        """Look at the notes again; False where there are none any more, as the output is complete."""
        names = self.notes.names()
        self.board.look(names)
        return PLAN in names

    @contextlib.contextmanager
    def machine(self) -> Iterator[Machine | None]:
        """Open a run of this machine that has work; None if there is none just now.

        The run is there before anything is claimed: whoever takes over finds a journal that nobody adds to any more.
        """
        dead = next(self.board.free(0), None) is None and self._dead()
        if dead is None:
            yield None
            return
        name = new_run_name()
        plan = replace(self.plan, sink=self.sink_of(name), requirements=())
        shards = given(self.request.partitioning, ())
        request = msgspec.structs.replace(
            self.request, run=self.fleet.plan.run, gated=False, partitioning=shards
        )
        with open_job(plan, request) as job:
            job.committer.agreed = self._agreed
            machine = Machine(self, name, job)
            yield machine if machine.begin() else None

    def take(self, machine: str) -> tuple[list[Part], tuple[Shard, ...]]:
        """Claim a slice, or what a dead machine has left; no shards if nobody leaves any."""
        for slice_ in self.board.free(self._next):
            if self._claim((slice_, 0), Claim(machine)):
                self._next = slice_ + 1
                return [(slice_, 0)], tuple(self.fleet.shards(slice_))
        self.look()
        dead = self._dead(but=machine)
        return ([], ()) if dead is None else self._take_over(dead, machine)

    def _claim(self, part: Part, claim: Claim) -> bool:
        first = self.notes.add(claim_name(part), msgspec.msgpack.encode(claim))
        self.board.claimed(part)
        return first

    def _dead(self, *, but: str = "") -> str | None:
        """Return a machine whose work is not done, and which does not hold its output."""
        for machine in sorted({claim.machine for _, claim in self.board.open_parts()} - {but}):
            if self._lives(machine):
                continue
            with contextlib.suppress(RunLocked), self._held(machine):
                return machine
        return None

    def _lives(self, machine: str) -> bool:
        """Say whether a machine gives signs of life, by this machine's clock alone."""
        sink, now = self.sink_of(machine), time.monotonic()
        sign = place_at(sink.root, sink.storage.options).sign()
        known, since = self._signs.setdefault(machine, (sign, now))
        if sign != known:
            self._signs[machine] = sign, now
            since = now
        return sign == HELD or (bool(sign) and now - since < lease.SILENCE)

    @contextlib.contextmanager
    def _held(self, machine: str) -> Iterator[Output]:
        sink = self.sink_of(machine)
        with contextlib.closing(open_output(sink.root, sink.storage.options)) as output:
            yield output

    def _take_over(self, dead: str, machine: str) -> tuple[list[Part], tuple[Shard, ...]]:
        """Claim what a dead machine has not done, once nothing can be committed there any more."""
        parts: list[Part] = []
        taken: list[Shard] = []
        with contextlib.suppress(RunLocked), self._held(dead) as output:
            shards, committed = self._fenced(output, dead)
            failpoints.hit("fleet.fenced")
            self.look()
            done = []
            for (slice_, turn), claim in self.board.open_parts():
                if claim.machine != dead:
                    continue
                claimed = self.fleet.shards(slice_) if claim.shards is None else claim.shards
                rest = rest_of(shards, claimed, committed)
                if not rest:
                    done.append((slice_, turn))
                elif self._claim((slice_, turn + 1), Claim(machine, rest)):
                    parts.append((slice_, turn + 1))
                    taken += rest
            self.end(dead, done)
        return parts, tuple(taken)

    def _fenced(self, output: Output, dead: str) -> tuple[list[Shard], set[int]]:
        """Return the shards of a dead machine's run, and which are committed, for good; these get their names."""
        run = output.current()
        if run is None:
            return [], set()
        saved, sink = read_plan(output, run), self.sink_of(dead)
        committer = recover(output, run, saved, sink, durability=self.request.durability, hidden=False)
        with contextlib.closing(committer):
            done = committer.state.done
            return committer.plan.shards, {number for number, there in enumerate(done) if there}

    def end(self, machine: str, done: Sequence[Part]) -> None:
        """Note what a machine has done that makes nothing more."""
        self.notes.add(ended_name(machine), msgspec.msgpack.encode(Ended(tuple(done))))

    def _agreed(self, schema: bytes) -> bytes:
        """Return the schema of the output, which is that of the first who knew it."""
        return schema if self.notes.add(SCHEMA, schema) else (self.notes.read(SCHEMA) or schema)


class Machine:
    """The run of this machine; its shards come while it is at work, as a thread claims them.

    A failure to claim ends the run, once what is under way is done, and is raised by ``end``.
    """

    answer: Callable[[MoreShards], None]

    def __init__(self, fleet: Fleet, name: str, job: Job) -> None:
        self.name, self.job = name, job
        self._fleet = fleet
        self._parts: list[Part] = []
        self._wanted = threading.Semaphore(0)
        self._failed: BaseException | None = None

    def begin(self) -> bool:
        """Take the first shards; False if there are none."""
        shards = self._take()
        numbered = [msgspec.structs.replace(shard, index=i) for i, shard in enumerate(shards)]
        if numbered:
            self.job.committer.extend(numbered)
            threading.Thread(target=self._supply, name="headrace-fleet", daemon=True).start()
        return bool(numbered)

    def want(self) -> None:
        """Have more shards claimed."""
        self._wanted.release()

    def _take(self) -> tuple[Shard, ...]:
        parts, shards = self._fleet.take(self.name)
        self._parts += parts
        return shards

    def _supply(self) -> None:
        shards: Sequence[Shard] = (Shard(0, ()),)
        while shards:
            self._wanted.acquire()
            try:
                shards = self._take()
            except (HeadraceError, OSError) as error:
                self._failed, shards = error, ()
            self.answer(MoreShards(tuple(shards)))

    def end(self) -> None:
        """All that was claimed is committed."""
        if self._failed is not None:
            raise self._failed
        self.job.committer.commit_accepted()
        self._fleet.end(self.name, self._parts)
