"""All histories of three machines and three slices, by a small explorer over the decisions of ``board.py``.

What has to hold in every state that can be reached, whoever dies or is taken for dead at whatever moment:

1. No row is committed by two machines.
2. Where the notes say that all is done, every row is committed.
3. From there on nothing more is committed.
4. Nobody is stuck: from every state, machines that live on can complete the output.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import pytest

from headrace.annex.fleet.board import Board, Claim, Ended, FleetPlan, claim_name, ended_name, rest_of
from headrace.core.work import Shard
from headrace.plan.physical import SavedPlan


class World(NamedTuple):
    """How many of each there are; ``fences``: who takes over closes the journal first."""

    machines: int
    slices: int
    deaths: int
    fences: bool = True


@functools.cache
def plan_of(slices: int) -> FleetPlan:
    return FleetPlan(SavedPlan("r", "", {}, [], [Shard(i, ()) for i in range(slices)], 0.0, ""), 1)


class Run(NamedTuple):
    """A machine's run: its shards' names in the order in which they came, and which are committed.

    ``held``: its output is held, as far as others can tell. ``closed``: nothing can be committed any more.
    """

    shards: tuple[str, ...] = ()
    committed: frozenset[str] = frozenset()
    held: bool = True
    closed: bool = False


class State(NamedTuple):
    """``at``: the run that each machine works on, None for none; ``over``: what it is taking over from, and has."""

    notes: frozenset[tuple[str, bytes]] = frozenset()
    runs: tuple[tuple[str, Run], ...] = ()
    at: tuple[str | None, ...] = ()
    over: tuple[str | None, ...] = ()
    deaths: int = 0


class Known(NamedTuple):
    """What the notes say."""

    complete: bool
    free: tuple[int, ...]
    open_parts: tuple[tuple[tuple[int, int], Claim], ...]


@functools.cache
def board_of(notes: frozenset[tuple[str, bytes]], slices: int) -> Known:
    known = dict(notes)
    board = Board(slices, known.get)
    board.look(known)
    return Known(board.complete, tuple(board.free(0)), tuple(board.open_parts()))


def with_run(state: State, name: str, **changes: object) -> State:
    runs = {**dict(state.runs), name: dict(state.runs).get(name, Run())._replace(**changes)}  # type: ignore[arg-type]
    return state._replace(runs=tuple(sorted(runs.items())))


def put(values: tuple[str | None, ...], i: int, value: str | None) -> tuple[str | None, ...]:
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
    runs, board, name = dict(state.runs), board_of(state.notes, world.slices), state.at[i]
    dead = [claim.machine for _, claim in board.open_parts if not runs[claim.machine].held]
    if name is None:
        if not board.complete and (board.free or dead):
            new = f"m{len(runs)}"
            yield with_run(state, new)._replace(at=put(state.at, i, new))
        return
    run = runs[name]
    if state.deaths < world.deaths:
        gone = with_run(state, name, held=False)._replace(deaths=state.deaths + 1)
        if state.over[i] is not None:  # it does not hold that one's output any more, either
            gone = with_run(gone, state.over[i] or "", held=False)
        yield gone  # it is slow, and taken for dead
        yield gone._replace(
            at=put(state.at, i, None), over=put(state.over, i, None)
        )  # it dies, and comes again
    if state.over[i] is not None:
        yield taking_over(state, i, state.over[i] or "", world)
        return
    if run.closed:  # it finds out by its journal
        yield state._replace(at=put(state.at, i, None))
        return
    left = [shard for shard in run.shards if shard not in run.committed]
    if left:
        yield with_run(state, name, committed=run.committed | {left[0]})
    if board.free:
        slice_ = board.free[0]
        claimed, first = added(state, claim_name((slice_, 0)), Claim(name))
        assert first
        names = tuple(shard.name for shard in plan_of(world.slices).shards(slice_))
        yield with_run(claimed, name, shards=run.shards + names)
    others = {each for each in dead if each != name}
    for other in others:
        closed = with_run(state, other, closed=world.fences, held=True)
        yield closed._replace(over=put(state.over, i, other))
    if not left and not board.free and not others:
        mine = tuple(part for part, claim in board.open_parts if claim.machine == name)
        ended, _ = added(state, ended_name(name), Ended(mine))
        yield with_run(ended, name, held=False)._replace(at=put(state.at, i, None))


def taking_over(state: State, i: int, dead: str, world: World) -> State:
    """Do the next step of it: claim the rest of one slice, or note that the dead one has ended."""
    runs, board, name = dict(state.runs), board_of(state.notes, world.slices), state.at[i] or ""
    run = runs[dead]
    shards = [Shard(number, (), each) for number, each in enumerate(run.shards)]
    committed = {number for number, each in enumerate(run.shards) if each in run.committed}
    done = []
    for (slice_, turn), claim in board.open_parts:
        if claim.machine != dead:
            continue
        rest = rest_of(shards, claim.shards or plan_of(world.slices).shards(slice_), committed)
        if not rest:
            done.append((slice_, turn))
            continue
        claimed, first = added(state, claim_name((slice_, turn + 1)), Claim(name, rest))
        assert first, "who holds the dead one's output is alone"
        mine = runs[name]
        return with_run(claimed, name, shards=(*mine.shards, *(shard.name for shard in rest)))
    ended, _ = added(state, ended_name(dead), Ended(tuple(done)))
    return with_run(ended, dead, held=False)._replace(over=put(state.over, i, None))


def rows_of(runs: Mapping[str, Run]) -> list[int]:
    """Return the planned shard of each committed one: here a shard is a row, which can only be done as a whole."""
    return [int(shard.split(".")[0]) for run in runs.values() for shard in run.committed]


def explored(world: World) -> int:
    """Go through all states; return how many there are."""
    begin = State(at=(None,) * world.machines, over=(None,) * world.machines)
    seen, todo, before = {begin}, [begin], dict[State, list[State]]()
    complete = []
    while todo:
        state = todo.pop()
        rows = sorted(rows_of(dict(state.runs)))
        assert len(rows) == len(set(rows)), f"a row twice: {state}"
        done = board_of(state.notes, world.slices).complete
        if done:
            assert rows == list(range(world.slices)), f"a row is missing: {state}"
            complete.append(state)
        for following in moves(state, world):
            if done:
                assert sorted(rows_of(dict(following.runs))) == rows, f"more after the end: {state}"
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


@pytest.mark.parametrize("world", [World(2, 2, 2), World(3, 2, 1)])
def test_every_history_does_each_row_once(world: World) -> None:
    assert explored(world) > 1_000


@pytest.mark.soak
@pytest.mark.parametrize("world", [World(3, 3, 1), World(2, 3, 2), World(3, 2, 2)])
def test_every_longer_history_does_each_row_once(world: World) -> None:
    assert explored(world) > 10_000


def test_it_finds_what_a_missing_fence_does() -> None:
    with pytest.raises(AssertionError, match="a row twice"):
        explored(World(2, 2, 1, fences=False))
