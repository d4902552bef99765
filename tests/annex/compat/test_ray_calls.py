"""Calls by Ray's names: what is wrong is said before they are on their way, and errors are Ray's, too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.compat import ray


@pytest.fixture(scope="module", autouse=True)
def two_cpus() -> Iterator[None]:
    ray.init(num_cpus=2)
    yield
    ray.shutdown()


@ray.remote
def divide(a: int, b: int = 1, *, more: int = 0) -> float:
    return a / b + more


@ray.remote(num_cpus=0)
class Pairs:
    def pair(self, n: int) -> tuple[int, int]:
        return n, -n

    def one(self, n: int) -> Iterator[int]:
        yield n

    def some(self, n: int) -> Iterator[int]:
        yield from range(n)
        raise KeyError("the end")


def test_arguments_are_checked_where_the_call_is_made() -> None:
    for wrong in (lambda: divide.remote(), lambda: divide.remote(1, 2, 3), lambda: divide.remote(1, c=1)):
        with pytest.raises(TypeError, match=r"divide\.remote"):
            wrong()
    assert ray.get(divide.remote(4, 2, more=1)) == 3


def test_what_lives_in_workers_is_not_called_here() -> None:
    pairs = Pairs.remote()
    with pytest.raises(TypeError, match=r"cannot be called directly.*pair\.remote"):
        pairs.pair(1)
    with pytest.raises(TypeError, match="cannot be instantiated directly"):
        Pairs()
    with pytest.raises(TypeError, match="Inheriting from actor classes"):

        class More(Pairs):  # type: ignore[misc]
            pass

    async def later() -> None: ...

    with pytest.raises(ValueError, match="is async"):
        ray.remote(later)


def test_names_of_actors_are_text() -> None:
    for wrong in ({"name": object()}, {"name": "x", "namespace": 3}):
        with pytest.raises(TypeError):
            Pairs.options(**wrong).remote()
    with pytest.raises(ValueError, match="name="):
        Pairs.options(get_if_exists=True).remote()


def test_what_is_awaited_raises_rays_errors() -> None:
    @ray.remote(num_cpus=0)
    class Waits:
        async def inside(self) -> str:
            try:
                await divide.remote(1, 0)
            except ray.exceptions.RayTaskError as error:
                return type(error.cause).__name__
            return ""

    async def outside() -> None:
        assert await divide.remote(1) == 1
        with pytest.raises(ray.exceptions.RayTaskError) as caught:
            await divide.remote(1, 0)
        assert isinstance(caught.value, ZeroDivisionError)

    asyncio.run(outside())
    assert ray.get(Waits.remote().inside.remote()) == "ZeroDivisionError"


def test_what_a_generator_yields_before_it_fails_is_there() -> None:
    refs = Pairs.remote().some.options(num_returns=3).remote(2)
    assert ray.get(refs[:2]) == [0, 1]
    with pytest.raises(ray.exceptions.RayTaskError, match="the end"):
        ray.get(refs[2])

    @ray.remote
    def two() -> Iterator[int]:
        yield from (1, 2)

    first, second, third = two.options(num_returns=3).remote()
    assert ray.get([first, second]) == [1, 2]
    with pytest.raises(ray.exceptions.RayTaskError, match="yielded 2 values") as caught:
        ray.get(third)
    assert isinstance(caught.value.as_instanceof_cause(), ValueError)
    assert ray.get(two.options(num_returns=2).remote()) == [1, 2]

    @ray.remote
    def one() -> Iterator[int]:
        yield 7

    assert ray.get(one.options(num_returns=1).remote()) == 7
    assert ray.get(Pairs.remote().one.options(num_returns=1).remote(8)) == 8
    assert ray.get(Pairs.remote().pair.options(num_returns=1).remote(8)) == (8, -8)


def test_a_pool_returns_the_results_of_methods_with_several() -> None:
    pool = ray.util.ActorPool([Pairs.remote()])

    def pair(actor: Any, n: int) -> Any:
        return actor.pair.options(num_returns=2).remote(n)

    assert list(pool.map(pair, [1, 2, 3])) == [[1, -1], [2, -2], [3, -3]]


@pytest.mark.parametrize("write", ["write_parquet", "write_csv", "write_json"])
def test_what_another_dataset_wrote_stays_and_each_run_is_done_once(tmp_path: Path, write: str) -> None:
    ray.data.range(4).with_options(engine="inline", progress=False).write_parquet(str(tmp_path / "in"))
    data = ray.data.read_parquet(str(tmp_path / "in")).with_options(engine="inline", progress=False)
    out = str(tmp_path / "out")
    later = [data.map(lambda row, add=add: {"id": row["id"] + add}) for add in (4, 8)]
    read = getattr(ray.data, write.replace("write", "read"))

    def ids() -> list[int]:
        return sorted(row["id"] for row in read(out).take_all())

    for again in (data, later[0], data, later[1], *later):
        getattr(again, write)(out)
    assert ids() == list(range(12))
    getattr(later[0], write)(out, mode=ray.data.SaveMode("append"))
    getattr(later[0], write)(out, mode="ignore")
    assert ids() == list(range(12))
    with pytest.raises(hr.errors.OutputExists):
        getattr(later[0], write)(out, mode=ray.data.SaveMode.ERROR)
    getattr(later[0], write)(out, mode="overwrite")
    assert ids() == [4, 5, 6, 7]


def test_a_task_waits_for_a_stream_again_and_again() -> None:
    @ray.remote(num_cpus=0)
    class Gate:
        def __init__(self) -> None:
            self.is_open = asyncio.Event()

        async def numbers(self) -> Any:
            for number in range(3):
                await self.is_open.wait()
                yield number

        async def open(self) -> None:
            self.is_open.set()

    @ray.remote(num_cpus=0)
    def waits(gate: Any) -> Any:
        stream = gate.numbers.remote()
        early = [len(ray.wait([stream], timeout=0)[0]) for _ in range(3)]
        ray.get(gate.open.remote())
        ready, others = ray.wait([stream, ray.put(1)], num_returns=2, timeout=60)
        return early, len(ready), others, [ray.get(each) for each in stream]

    assert ray.get(waits.remote(Gate.remote())) == ([0, 0, 0], 2, [], [0, 1, 2])
