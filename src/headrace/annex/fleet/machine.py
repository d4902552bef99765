"""One machine of a fleet: it has a run of its own, takes slices, and what dead or slow machines have left."""

from __future__ import annotations

import contextlib
import operator
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
    Pace,
    Part,
    claim_name,
    ended_name,
    errors_name,
    left_name,
    weight_of,
)
from headrace.annex.fleet.shares import Shares
from headrace.core import failpoints
from headrace.core.messages import MoreShards, RunInterrupted
from headrace.core.process import backoff
from headrace.core.work import FLEET, HOME, Shard
from headrace.driver.policies.shards import SAMPLE
from headrace.errors import HeadraceError, RunLocked, TooManyErrors
from headrace.output import inputs
from headrace.output.job import Job, OpenRequest
from headrace.output.layout import Output, new_run_name, open_output, read_plan
from headrace.output.places.lease import Watch
from headrace.output.places.place import looked_at, place_at
from headrace.output.publishing import Notes
from headrace.output.recover import recover
from headrace.output.resume import open_job
from headrace.output.runs import current_run
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning

if TYPE_CHECKING:
    from headrace.core.source_ports import Source
    from headrace.sinks.files import FileSink


LONGEST_LOOK, LOOK_SHARE = 2.0, 0.005
"""Seconds between two looks at what others do, and the share of the time since it began; what is more counts."""
WATCH = 120
"""For so many looks' time, a machine at work does not ask whether others took what it has."""
AHEAD = 64
"""A machine takes one of so many slices that are free and as big, so that few ask for the same."""
CLAIMS_READ = 256
"""Claims that a machine without work reads at a time, to see whose they are."""
READ, READERS = 2, 2
"""Who has no work reads so many notes whenever it looks. So many machines read all: those that were done first.

Should they go, others do: so many more with every look's time without a new note.
"""
SELDOM = 2.0
"""The others look less often, by so much."""
QUIET = 5
"""After so many of these, claims are read although they are many."""


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


def parts_of(sink: FileSink, run: str) -> FileSink:
    """Return what makes the parts of a sink, as its table takes them; they become its rows in the end."""
    if sink.target is None:
        return sink
    bound = sink.target.bind(replace(sink, run=run))
    return replace(cast("FileSink", bound), target=None)


def sharing(plan: Plan) -> Plan:
    """Return a plan whose models share what they spend with those of other machines.

    Raises ``PlanError`` where they cannot.
    """
    assert plan.sink is not None
    shares = Shares(plan.sink.root, plan.sink.storage.options)
    steps = tuple(step.sharing(shares, shares) for step in plan.steps)
    return plan if all(map(operator.is_, steps, plan.steps)) else replace(plan, steps=steps)


class Fleet:
    """An output that many machines write, as one of them sees it."""

    def __init__(
        self, plan: Plan, request: OpenRequest, fleet: FleetPlan, notes: Notes, max_errors: float | None
    ) -> None:
        self.plan, self.request, self.fleet, self.notes = plan, request, fleet, notes
        self.max_errors = max_errors
        self.board = Board(fleet, notes.read)
        inputs.note(plan.source, fleet.plan)  # which the runs of machines do not repeat
        self._watches: dict[str, Watch] = {}
        self._names = set[str]()
        self._began = time.monotonic()
        self._changed = self._began  # when there were other notes than at the look before
        self._fresh = False  # nothing was claimed since this machine looked
        self._before = -1  # so many others had ended when this one had nothing to do; -1: it has
        self._parts = parts_of(cast("FileSink", plan.sink), fleet.plan.run)

    def sink_of(self, machine: str) -> FileSink:
        """Return the sink of a machine's own output."""
        return self._parts.in_folder(f"{self._parts.root}/{HOME}/{FLEET}/{machine}")

    def look(self) -> bool:
        """Look at the notes again; False where there are none any more, as the output is complete."""
        names = self.notes.names()
        if not self._names.issuperset(names):
            self._changed = time.monotonic()
        self._names.update(names)
        self._fresh = True
        self.board.look(names, time.monotonic())
        return PLAN in names

    @contextlib.contextmanager
    def machine(self) -> Iterator[Machine | None]:
        """Open a run of this machine that has work; None if there is none just now.

        The run is there before anything is claimed: whoever takes over finds its journal. Where others have taken
        over what it had, it ends, and whatever went wrong there does not count.
        """
        if next(self.board.free(), None) is None and not self._release():
            yield None
            return
        name = new_run_name()
        shared = sharing(self.plan)
        plan = replace(shared, sink=self.sink_of(name), requirements=())
        shards = given(self.request.partitioning, ())
        request = msgspec.structs.replace(
            self.request,
            mode="resume",
            run=self.fleet.plan.run,
            gated=False,
            partitioning=shards,
            lists_input=False,
        )
        machine = None
        try:
            with open_job(plan, request) as job:
                job.committer.agreed = self._agreed
                machine = Machine(self, name, job, shares=shared is not self.plan)
                with contextlib.closing(machine):
                    yield machine if machine.begin() else None
        except KeyboardInterrupt:
            if machine is None or not machine.overtaken:
                raise
        except (HeadraceError, OSError):
            if machine is None or not self.is_over(name):
                raise

    def is_over(self, machine: str) -> bool:
        """Say whether a machine has ended, also if it does not know that; its output may be gone."""
        names = self.notes.names()
        return ended_name(machine) in names or PLAN not in names

    def take(
        self, machine: str, done: Pace, weight: float, seconds: float
    ) -> tuple[Part, tuple[Shard, ...]] | None:
        """Claim a slice, or a piece of what another has left; None if there is none.

        ``done``: what the machine has done until now, and how much it has claimed in how many seconds.
        """
        while self._fresh or self.look():
            self._fresh = False
            free = self.board.alike(AHEAD)
            if not free and not self._release(machine, done):
                return None
            if free:
                part = random.choice(free)
                shards = self.board.shards(part[0])
                pace = Pace(seconds, weight + weight_of(shards))
                first = self.notes.add(claim_name(part), msgspec.msgpack.encode(Claim(machine, pace)))
                self.board.claimed(part, time.monotonic())
                if first:
                    self._before = -1
                    return part, shards
        return None

    def _release(self, machine: str = "", done: Pace | None = None) -> bool:
        """Have others take what a dead or slow machine holds; False if there is no such machine, as far as is known.

        ``machine``: whose asks, and has ``done`` this until now.
        """
        board = self.board
        if self._before < 0:
            self._before = board.machines
        board.read_ended(board.hinted)
        if next(board.free(), None) is None and self._may_read(len(board.unread)):
            board.read_ended()
            if not board.complete and (board.has_few_open or self._quiet >= QUIET):
                self._release_claims(machine, done)
        return next(board.free(), None) is not None

    def _release_claims(self, machine: str, done: Pace | None) -> None:
        known = self.board.read_claims(time.monotonic(), 0)
        if not self._may_read(len(known) + len(self.board.unread_claims)):
            return
        for other, parts in sorted(self.board.read_claims(time.monotonic(), CLAIMS_READ).items()):
            if other == machine or other in self.board.ended:
                continue
            if not self._lives(self.sink_of(other)):
                ended = self._taken_over(other)
            elif self.board.is_slow(other, parts, time.monotonic(), done):
                ended = self._overtaken(other)
            else:
                continue
            if ended is None:
                continue
            if self.notes.add(ended_name(other), msgspec.msgpack.encode(ended)):
                if ended.left:
                    self.notes.add(left_name(other), b"")
                self.board.end(other, ended)
            self.look()
            self.board.read_ended([other])

    @property
    def _quiet(self) -> float:
        return (time.monotonic() - self._changed) / self.longest

    def _may_read(self, notes: int) -> bool:
        """Say whether to read so many notes; not if they are many, and a machine completes the output."""
        if notes <= READ:
            return True
        return self._before < READERS * (1.0 + self._quiet) and not self.completes()

    @property
    def longest(self) -> float:
        """How long to wait until the next look at what others do: the longer all takes, the less is asked."""
        return max(LONGEST_LOOK, self._share)

    @property
    def _share(self) -> float:
        return LOOK_SHARE * (time.monotonic() - self._began)

    def pause(self, tries: int, looks: float = 1.0) -> float:
        """Return how long to wait until the next look, or so many."""
        if self._before < READERS:
            return backoff(tries, looks * self.longest / 8, looks * self.longest, spread=0.0)
        longest = SELDOM * looks * self.longest
        return backoff(tries, max(longest / 8, SELDOM * self._share), longest, spread=0.0)

    def completes(self) -> bool:
        """Say whether another machine completes the output."""
        return self._lives(cast("FileSink", self.plan.sink))

    def check_errors(self, machine: str, errors: int) -> None:
        """Raise ``TooManyErrors`` if more rows have failed than may, on all machines, as far as is known by now.

        A share is one of all rows, if it is known how many there are. What is not seen here is found in the end.
        """
        rows = [shard.rows for shard in self.fleet.plan.shards]
        most = self.max_errors
        if most is not None and most < 1:
            most = most * sum(rows) if min(rows, default=-1) >= 0 and sum(rows) >= SAMPLE else None
        beside = self.board.errors_beside(machine)
        if most is not None and errors + beside > most:
            raise TooManyErrors(
                f"{errors + beside:,} rows have failed, {beside:,} of them on other machines, more than "
                f"max_errors={self.max_errors:g} allows. Finished work is kept: fix the cause, or allow more and run "
                "again."
            )

    def _lives(self, sink: FileSink) -> bool:
        """Say whether who writes there gives signs of life, as far as is known."""
        if sink.root not in self._watches:
            self._watches[sink.root] = Watch(place_at(sink.root, sink.storage.options).sign)
        return self._watches[sink.root].lives() is not False

    def _taken_over(self, machine: str) -> Ended | None:
        """Return what counts of a dead machine's work, once nothing can be committed there any more."""
        sink = self.sink_of(machine)
        with (
            contextlib.suppress(RunLocked),
            contextlib.closing(open_output(sink.root, sink.storage.options)) as output,
        ):
            parts = self.board.read_claims(time.monotonic())[machine]
            shards, committed = self._fenced(output, sink)
            failpoints.hit("fleet.fenced")
            return self.board.handover(parts, shards, committed)
        return None

    def _fenced(self, output: Output, sink: FileSink) -> tuple[list[Shard], set[int]]:
        """Return the shards of a dead machine's run, and which are committed, for good; these get their names."""
        run = output.current()
        if run is None:
            return [], set()
        saved = read_plan(output.folder(run))
        committer = recover(output, run, saved, sink, durability=self.request.durability, hidden=False)
        with contextlib.closing(committer):
            done = committer.state.done
            return committer.plan.shards, {number for number, there in enumerate(done) if there}

    def _overtaken(self, machine: str) -> Ended | None:
        """Return what counts of a slow machine's work, which goes on: shards whose parts have their names."""
        parts, sink = self.board.read_claims(time.monotonic())[machine], self.sink_of(machine)
        with looked_at(sink.root, sink.storage.options) as there:
            run = current_run(there.root)
            if run is None:
                return self.board.handover(parts, [], ())
            committed = {
                record.shard
                for record in run.records
                if record.files and all(there.size_of(file.name) >= 0 for file in record.files)
            }
            return self.board.handover(parts, run.plan.shards, committed)

    def _agreed(self, schema: bytes) -> bytes:
        """Return the schema of the output, which is that of the first who knew it."""
        known = self.notes.read(SCHEMA) if SCHEMA in self._names else None
        if known is None and not self.notes.add(SCHEMA, schema):
            known = self.notes.read(SCHEMA)
        return known or schema


class Machine:
    """The run of this machine; its shards come while it is at work, as a thread claims them.

    A failure to claim ends the run, once what is under way is done, and is raised by ``end``. ``overtaken``: others
    have taken what it had, and the run was told to end. ``shares``: its steps are not those of the program, as their
    models share what they spend.
    """

    answer: Callable[[MoreShards | RunInterrupted], None]

    def __init__(self, fleet: Fleet, name: str, job: Job, *, shares: bool) -> None:
        self.name, self.job, self.overtaken, self.shares = name, job, False, shares
        self._fleet = fleet
        self._began = time.monotonic()
        self._parts: list[Part] = []
        self._weight = 0.0
        self._errors = 0
        self._wanted = threading.Semaphore(0)
        self._closed = threading.Event()
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
        errors = self.job.committer.state.faults.total
        if errors >= max(1, 2 * self._errors):
            self._fleet.notes.add(errors_name(self.name, errors), b"")
            self._errors = errors
        self._fleet.check_errors(self.name, errors)
        seconds, done = time.monotonic() - self._began, self.job.committer.state.done
        so_far = Pace(seconds, self._weight * sum(done) / max(1, len(done)))
        taken = self._fleet.take(self.name, so_far, self._weight, seconds)
        if taken is None:
            return ()
        self._parts.append(taken[0])
        self._weight += weight_of(taken[1])
        return taken[1]

    def _supply(self) -> None:
        """Claim shards when some are wanted, and look now and then whether all of it is still this machine's."""
        while True:
            wanted = self._wanted.acquire(timeout=WATCH * self._fleet.longest)
            if self._closed.is_set():
                return
            try:
                if wanted:
                    self.answer(MoreShards(self._take()))
                elif self._fleet.is_over(self.name):
                    self.overtaken = True
                    self.answer(RunInterrupted())
                    return
            except Exception as error:  # the run ends, and raises it
                if wanted:
                    self._failed = error
                    self.answer(MoreShards(()))

    def end(self) -> None:
        """All that was claimed is committed; if others have taken it over before, that does not count."""
        if self._failed is not None:
            raise self._failed
        self.job.committer.commit_accepted()
        pace = Pace(time.monotonic() - self._began, self._weight)
        ended = Ended(tuple(self._parts), pace=pace)
        if self._fleet.notes.add(ended_name(self.name), msgspec.msgpack.encode(ended)):
            self._fleet.board.end(self.name, ended)

    def close(self) -> None:
        """Claim nothing more."""
        self._closed.set()
        self._wanted.release()
