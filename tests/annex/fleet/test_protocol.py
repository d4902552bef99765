"""All histories of three machines and three slices, by a small explorer over the decisions of ``board.py``.

What has to hold in every state that can be reached, whoever dies or is taken for dead at whatever moment:

1. No row of two machines counts, and those that count are in order.
2. Where the notes say that all is done, every row counts.
3. From there on nothing more counts, and nothing less.
4. Nobody is stuck: from every state, machines that live on can complete the output.

A machine that is only slow loses its work to others while it goes on: it commits, claims and ends as if nothing were.
Whoever looks may see all notes but one, the first claims of slices alone, or names that he has not read yet: a
listing takes time, and others write meanwhile. A shard of two rows may be cut, and another may do the second.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from headrace.annex.fleet.board import Board, Claim, Ended, FleetPlan, Part, claim_name, ended_name
from headrace.core.work import Remainder, Shard, Split
from headrace.driver.shards import split_off
from headrace.plan.physical import SavedPlan


class World(NamedTuple):
    """How many of each there are; ``faults``: deaths, and machines that others find slow.

    ``rows`` of each shard; one of more may be cut. ``named``: who takes over from a machine names what counts of its
    work.
    """

    machines: int
    slices: int
    faults: int
    rows: int = 1
    named: bool = True


@functools.cache
def plan_of(world: World) -> FleetPlan:
    shards = [Shard(i, (Split(0, i, i + 1, world.rows),)) for i in range(world.slices)]
    return FleetPlan(SavedPlan("r", "", {}, [], shards, 0.0, ""), [1] * world.slices)


class Run(NamedTuple):
    """A machine's run: its claims, its shards in the order in which they came, and which are committed.

    ``known``: so many shards are in its journal, with the commits that followed. ``held``: its output is held, as far
    as others can tell. ``closed``: nothing can be committed any more.
    """

    claims: tuple[Part, ...] = ()
    shards: tuple[Shard, ...] = ()
    committed: frozenset[int] = frozenset()
    known: int = 0
    held: bool = True
    closed: bool = False


class Takeover(NamedTuple):
    """From which machine, whose claims were these; and the note that will say so."""

    machine: str
    parts: tuple[Part, ...]
    ended: Ended | None = None


class State(NamedTuple):
    """``at``: the run that each machine works on, None for none; ``over``: what it is taking over."""

    notes: frozenset[tuple[str, bytes]] = frozenset()
    runs: tuple[tuple[str, Run], ...] = ()
    at: tuple[str | None, ...] = ()
    over: tuple[Takeover | None, ...] = ()
    faults: int = 0


class Known(NamedTuple):
    """What the notes say. ``free``: what may be claimed next, by anybody, however much of them he has seen.

    ``taken``: whose work somebody may take over who sees nothing free, with the claims of it that he knows.
    """

    complete: bool
    free: tuple[Part, ...]
    taken: frozenset[tuple[str, tuple[Part, ...]]]
    board: Board


@functools.cache
def board_of(notes: frozenset[tuple[str, bytes]], world: World) -> Known:
    known = dict(notes)
    board = Board(plan_of(world), known.get)
    board.look(known)
    by_names = [*board.free()][:1]
    board.read_ended()
    free, taken = dict.fromkeys(by_names), set[tuple[str, tuple[Part, ...]]]()
    first = {claim_name((item, 0)) for item in plan_of(world).slices()} & known.keys()
    for names in (known.keys(), first, *(known.keys() - {name} for name in known)):
        seen = Board(plan_of(world), known.get)
        seen.look(names)
        seen.read_ended()
        assert board.complete or not seen.complete
        machines = seen.read_claims(0.0)
        while (part := next(seen.free(), None)) is not None and claim_name(part) in known:
            seen.claimed(part, 0.0)  # it was not first
            machines = seen.read_claims(0.0)
        if part is not None:
            free[part] = None
        else:
            taken |= {(machine, tuple(parts)) for machine, parts in machines.items()}
    board.read_claims(0.0)
    return Known(board.complete, tuple(free), frozenset(taken), board)


def with_run(state: State, name: str, **changes: object) -> State:
    runs = {**dict(state.runs), name: dict(state.runs).get(name, Run())._replace(**changes)}  # type: ignore[arg-type]
    return state._replace(runs=tuple(sorted(runs.items())))


def put(values: tuple[object, ...], i: int, value: object) -> tuple[Any, ...]:
    return (*values[:i], value, *values[i + 1 :])


def added(state: State, name: str, note: object) -> tuple[State, bool]:
    """Add a note if there is none of its name."""
    data = msgspec.msgpack.encode(note)
    known = dict(state.notes)
    if name in known:
        return state, known[name] == data
    return state._replace(notes=state.notes | {(name, data)}), True


def moves(state: State, world: World) -> Iterator[State]:
    """Yield what may happen next; machines are alike, so who is which does not count."""
    for i in range(world.machines):
        for following in moves_of(state, i, world):
            alike = sorted(zip(following.at, following.over, strict=True), key=str)
            yield following._replace(at=tuple(at for at, _ in alike), over=tuple(over for _, over in alike))


def moves_of(state: State, i: int, world: World) -> Iterator[State]:
    runs, known, name = dict(state.runs), board_of(state.notes, world), state.at[i]
    if name is not None and state.faults < world.faults:
        gone = with_run(state, name, held=False)._replace(faults=state.faults + 1)
        yield gone  # it is taken for dead
        yield gone._replace(
            at=put(state.at, i, None), over=put(state.over, i, None)
        )  # it dies, and comes again
    if state.over[i] is not None:
        yield from taking_over(state, i, world)
        return
    for machine, parts in known.taken:
        slow = runs[machine].held
        if machine != name and (not slow or state.faults < world.faults):
            yield state._replace(
                over=put(state.over, i, Takeover(machine, parts)), faults=state.faults + slow
            )
    if name is None:
        for part in known.free:  # one that begins, and is too late, is as if it had not
            new = f"m{len(runs)}"
            yield claiming(with_run(state, new)._replace(at=put(state.at, i, new)), new, part, known)
        return
    run = runs[name]
    if run.closed or name in known.board.ended:  # it finds out; or goes on
        yield state._replace(at=put(state.at, i, None))
    left = [number for number in range(len(run.shards)) if number not in run.committed]
    if left and not run.closed:
        first = run.shards[left[0]]
        yield committing(state, name, first)
        if first.rows > 1:  # it is cut, and its first row is committed
            family = [each.place for each in run.shards if each.place[0] == first.place[0]]
            row = first.splits[0].low + 1
            parts = split_off(first, Remainder(0, row, first.rows - 1), len(run.shards), family)
            yield committing(state, name, *parts)
    ended = known.board.ended.get(name)
    if known.free and (
        ended is None or ended.done == run.claims
    ):  # one that has ended may claim once before it looks
        for part in known.free:
            yield claiming(state, name, part, known)
    elif not left:
        noted, _ = added(state, ended_name(name), Ended(run.claims))
        yield with_run(noted, name, held=False, closed=True)._replace(at=put(state.at, i, None))


def claiming(state: State, name: str, part: Part, known: Known) -> State:
    """Have a machine claim a part."""
    run = dict(state.runs)[name]
    claimed, first = added(state, claim_name(part), Claim(name))
    assert first
    numbers = itertools.count(len(run.shards))
    came = known.board.shards(part[0])
    shards = (*run.shards, *map(lambda shard, i: msgspec.structs.replace(shard, index=i), came, numbers))
    return with_run(claimed, name, shards=shards, claims=(*run.claims, part))


def committing(state: State, name: str, first: Shard, *rest: Shard) -> State:
    """Have a machine commit a shard; ``rest``: what was cut from it."""
    run = dict(state.runs)[name]
    shards = (*put(run.shards, first.index, first), *rest)
    return with_run(state, name, shards=shards, committed=run.committed | {first.index}, known=len(shards))


def taking_over(state: State, i: int, world: World) -> Iterator[State]:
    """Do the next step of it: read the journal, closed first if that machine is dead; then write what follows."""
    over = state.over[i]
    assert over is not None
    run = dict(state.runs)[over.machine]
    if over.ended is None:
        ended = board_of(state.notes, world).board.handover(
            over.parts, run.shards[: run.known], run.committed
        )
        if not world.named:
            ended = msgspec.structs.replace(ended, counted=None)
        read = with_run(state, over.machine, closed=run.closed or not run.held)
        yield read._replace(over=put(state.over, i, over._replace(ended=ended)))
        return
    noted, _ = added(state, ended_name(over.machine), over.ended)
    yield noted._replace(over=put(state.over, i, None))


def rows_of(state: State, world: World) -> list[tuple[int, int]]:
    """Return the rows that count, each as its shard in the plan and its number there, in the order of the output."""
    runs, found = dict(state.runs), list[Shard]()
    for machine, ended in board_of(state.notes, world).board.ended.items():
        run = runs[machine]
        counted = run.committed if ended.counted is None else ended.counted
        assert run.committed.issuperset(counted)
        found += [run.shards[number] for number in counted]
    splits = [shard.splits[0] for shard in sorted(found, key=lambda shard: shard.place)]
    return [(each.start, each.low + row) for each in splits for row in range(each.length)]


def explored(world: World) -> int:
    """Go through all states; return how many there are."""
    begin = State(at=(None,) * world.machines, over=(None,) * world.machines)
    seen, todo, before = {begin}, [begin], dict[State, list[State]]()
    complete = []
    while todo:
        state = todo.pop()
        rows = rows_of(state, world)
        assert len(rows) == len(set(rows)), f"a row twice: {state}"
        assert rows == sorted(rows), f"not in order: {state}"
        done = board_of(state.notes, world).complete
        if done:
            assert rows == [*itertools.product(range(world.slices), range(world.rows))], (
                f"a row is missing: {state}"
            )
            complete.append(state)
        for following in moves(state, world):
            if done:
                assert rows_of(following, world) == rows, f"others count after the end: {state}"
            before.setdefault(following, []).append(state)
            if following not in seen:
                seen.add(following)
                todo.append(following)
    reached, todo = set(complete), list(complete)
    while todo:
        for state in before.get(todo.pop(), ()):
            if state not in reached:
                reached.add(state)
                todo.append(state)
    assert reached == seen, "from some state the output cannot be completed"
    return len(seen)


@pytest.mark.parametrize("world", [World(3, 2, 1), World(2, 1, 1, rows=2)])
def test_every_history_does_each_row_once(world: World) -> None:
    assert explored(world) > 1_000


@pytest.mark.soak
@pytest.mark.parametrize(
    "world", [World(2, 2, 1, rows=2), World(2, 1, 2, rows=2), World(3, 3, 1), World(2, 2, 2)]
)
def test_every_longer_history_does_each_row_once(world: World) -> None:
    assert explored(world) > 10_000


def test_it_finds_what_counts_twice_if_nobody_says_what_counts() -> None:
    with pytest.raises(AssertionError, match=r"a row twice|others count"):
        explored(World(2, 2, 1, named=False))
