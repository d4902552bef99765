"""Calls of functions: the standard executor's promises, and what goes beyond them."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, as_completed, wait
from concurrent.futures import Executor as StandardExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import (
    ArgumentError,
    BadReturn,
    CallLost,
    ExecutorClosed,
    NotOffered,
    NotPicklable,
    RemoteTraceback,
    ResourcesUnavailable,
    StepError,
    TimedOut,
    UnknownArgument,
)

WITHIN = 30


class Odd(Exception):
    """An error that only this program knows."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


def fifo(tmp_path: Path, name: str = "gate") -> str:
    os.mkfifo(tmp_path / name)
    return str(tmp_path / name)


def through(gate: str, value: Any = None) -> Any:
    """Wait until somebody opens the gate."""
    with open(gate):
        return value


def let_through(gate: str) -> None:
    with open(gate, "w"):
        pass


def test_it_is_a_standard_executor(executor: hr.Executor) -> None:
    assert isinstance(executor, StandardExecutor)
    futures = [executor.submit(pow, 2, n) for n in range(6)]
    assert all(isinstance(future, Future) for future in futures)
    done, not_done = wait(futures, timeout=WITHIN)
    assert not not_done and {future.result() for future in done} == {1, 2, 4, 8, 16, 32}
    assert sorted(future.result() for future in as_completed(futures)) == [1, 2, 4, 8, 16, 32]
    assert [future.result() for future in futures] == [1, 2, 4, 8, 16, 32]
    assert list(executor.map(pow, range(5), range(5))) == [1, 1, 4, 27, 256]
    assert executor.submit(dict, a=1, b=2).result() == {"a": 1, "b": 2}


def test_calls_run_elsewhere_and_at_once(executor: hr.Executor, tmp_path: Path) -> None:
    gates = fifo(tmp_path, "a"), fifo(tmp_path, "b")
    futures = [executor.submit(lambda gate: through(gate, os.getpid()), gate) for gate in gates]
    for gate in reversed(gates):
        let_through(gate)
    pids = {future.result(WITHIN) for future in futures}
    assert len(pids) == 2 and os.getpid() not in pids


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_map_in_chunks(executor: hr.Executor, chunksize: int) -> None:
    ref = executor.put(np.arange(3))
    found = executor.map(lambda a, b: int(a.sum()) + b, [ref] * 7, range(9), chunksize=chunksize)
    assert list(found) == [3 + i for i in range(7)]


def test_map_ends_with_the_first_error_and_cancels_the_rest(executor: hr.Executor) -> None:
    found = executor.options(num_cpus=2).map(lambda x: 1 // x, [1, 0, *range(1, 50)])
    assert next(found) == 1
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(found) == []


def test_map_takes_so_long(executor: hr.Executor, tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    found = executor.map(through, [gate], timeout=0.01)
    with pytest.raises(TimeoutError):
        next(found)
    let_through(gate)


# ---------------------------------------------------------------- errors


def test_an_error_is_raised_as_itself_with_its_traceback(executor: hr.Executor) -> None:
    def outer() -> None:
        inner_of_mine()

    def inner_of_mine() -> None:
        raise Odd(1, 2)

    with pytest.raises(Odd) as caught:
        executor.submit(outer).result()
    assert caught.value.args == (1, 2)
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    told = "".join(traceback.format_exception(caught.value))
    assert "in inner_of_mine" in told and "raise Odd(1, 2)" in told
    assert "hosted.py" not in str(caught.value.__cause__)


def test_errors_of_the_main_module(script: Callable[..., Any]) -> None:
    ended = script(
        """
        import headrace as hr

        class Mine(Exception):
            pass

        def bad():
            raise Mine("no")

        with hr.connect(workers=1) as executor:
            try:
                executor.submit(bad).result()
            except Mine as error:
                print("caught", error)
        """
    )
    assert (ended.code, ended.out, ended.err) == (0, "caught no\n", "")


def test_an_error_that_cannot_travel(executor: hr.Executor) -> None:
    def bad() -> None:
        raise LookupError(threading.Lock())

    with pytest.raises(StepError, match=r"bad raised LookupError: <unlocked"):
        executor.submit(bad).result()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_what_would_end_the_program_does_not(executor: hr.Executor, kind: type[BaseException]) -> None:
    def bad() -> None:
        raise kind(3)

    with pytest.raises(StepError, match=rf"bad raised {kind.__name__}: 3"):
        executor.submit(bad).result()
    assert executor.submit(int, "1").result() == 1


def test_a_result_that_cannot_travel(executor: hr.Executor) -> None:
    with pytest.raises(BadReturn, match=r"returned a generator that cannot travel back"):
        executor.submit(lambda: (i for i in range(3))).result()
    with pytest.raises(BadReturn, match=r"Return list\(…\) of it"):
        executor.submit(lambda: (i for i in range(3))).result()


def test_an_argument_that_cannot_travel(executor: hr.Executor) -> None:
    lock = threading.Lock()
    with pytest.raises(NotPicklable, match=r"f cannot travel .*: its argument 1 → \['a'\] → \[0\], a lock,"):

        def f(x: Any) -> None: ...

        executor.submit(f, {"a": [lock]})
    with pytest.raises(NotPicklable, match="put cannot travel to a worker"):
        executor.put([lock])
    with pytest.raises(NotPicklable, match="can be used only by the program that made it"):
        pickle.dumps(executor)


def test_wrong_names_and_values(executor: hr.Executor) -> None:
    with pytest.raises(UnknownArgument, match=r"'num_cpu'.* Did you mean 'num_cpus'"):
        executor.options(num_cpu=1)
    with pytest.raises(
        UnknownArgument, match=r"connect\(\) has no argument 'worker'.* Did you mean 'workers'"
    ):
        hr.connect(worker=2)  # type: ignore[call-arg]
    for wrong in ({"memory": "lots"}, {"num_cpus": -1}, {"num_gpus": "1"}, {"max_retries": 1.5}):
        with pytest.raises(ArgumentError):
            executor.options(**wrong)
    with pytest.raises(ArgumentError, match="two names"):
        hr.connect(workers=1, num_cpus=2)
    with pytest.raises(NotOffered, match=r"connect\('inline'\): .*processes of this machine"):
        hr.connect("inline")
    with pytest.raises(ArgumentError, match="it takes a function"):
        executor.submit(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="it takes a Ref, a future"):
        executor.get([1])
    with pytest.raises(UnknownArgument, match=r"'chunk_size'.*'chunksize'"):
        executor.map(str, [1], chunk_size=2)
    with pytest.raises(ArgumentError, match="chunksize=0"):
        executor.map(str, [1], chunksize=0)


# ---------------------------------------------------------------- futures


def test_futures_are_arguments(executor: hr.Executor) -> None:
    total: Any = executor.submit(np.zeros, 3)
    for i in range(5):
        total = executor.submit(lambda a, b: a + b, total, b=executor.submit(np.full, 3, i))
    assert total.result().tolist() == [10.0] * 3


def test_futures_in_containers_arrive_as_refs(executor: hr.Executor) -> None:
    parts = [executor.submit(np.full, 100_000, i) for i in range(3)]

    def add(parts: list[Any]) -> float:
        return float(sum(part.get().sum() for part in parts))

    assert executor.submit(add, parts).result() == 300_000


def test_a_failed_future_fails_those_that_wait(executor: hr.Executor) -> None:
    bad = executor.submit(lambda: 1 // 0)
    later = executor.submit(str, executor.submit(str, bad))
    with pytest.raises(ZeroDivisionError):
        later.result(WITHIN)


def test_get(executor: hr.Executor, tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    slow = executor.submit(through, gate, 5)
    assert executor.get([executor.put("a"), executor.submit(abs, -1)]) == ["a", 1]
    with pytest.raises(TimedOut, match=r"through.* was not done within 0.01 s"):
        executor.get([slow], timeout=0.01)
    let_through(gate)
    assert executor.get(slow) == 5

    def times_out() -> None:
        raise TimeoutError("my own")

    with pytest.raises(TimeoutError, match="my own"):
        executor.get(executor.submit(times_out), timeout=WITHIN)


def test_cancelling(executor: hr.Executor, tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    whole = executor.options(num_cpus=2)
    first = whole.submit(through, gate, 1)
    waiting = [whole.submit(abs, i) for i in range(3)]
    dependent = executor.submit(abs, waiting[1])
    while not first.running():
        time.sleep(0.001)
    assert not first.cancel()
    assert waiting[1].cancel() and waiting[1].cancel()
    with pytest.raises(CancelledError):
        dependent.result(WITHIN)
    let_through(gate)
    assert first.result(WITHIN) == 1
    assert [waiting[0].result(WITHIN), waiting[2].result(WITHIN)] == [0, 2]
    assert waiting[1].cancelled()


def test_results_are_there_after_the_end() -> None:
    with hr.connect(workers=1) as executor:
        future = executor.submit(np.ones, 1_000_000)
        ref = executor.put(np.ones(1_000_000))
    assert future.result().sum() == 1_000_000
    with pytest.raises(ExecutorClosed):
        ref.get()


# ---------------------------------------------------------------- workers that die


def die_if_new(mark: str) -> int:
    """Die the first time."""
    if not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_a_killed_worker_is_replaced_and_its_call_tried_again(executor: hr.Executor, tmp_path: Path) -> None:
    assert executor.submit(die_if_new, str(tmp_path / "mark")).result(WITHIN) != os.getpid()
    with pytest.raises(CallLost, match=r"die_if_new ended its worker once: .*(SIGKILL|ended).*max_retries=0"):
        executor.options(max_retries=0).submit(die_if_new, str(tmp_path / "other")).result(WITHIN)
    assert executor.submit(abs, -1).result(WITHIN) == 1


def test_a_call_that_always_kills(executor: hr.Executor, tmp_path: Path) -> None:
    def kills(log: str) -> None:
        with open(log, "a") as file:
            file.write("x")
        os._exit(7)

    with pytest.raises(CallLost, match=r"kills ended its worker 3 times: .*(status 7|ended)"):
        executor.options(max_retries=2).submit(kills, str(tmp_path / "log")).result(WITHIN)
    assert (tmp_path / "log").read_text() == "xxx"


def test_killed_from_outside_amid_a_call(executor: hr.Executor, tmp_path: Path) -> None:
    gate, log = fifo(tmp_path), tmp_path / "log"

    def work(log: str, gate: str) -> int:
        with open(log, "a") as file:
            print(os.getpid(), file=file)
        return len(open(log).readlines()) if len(open(log).readlines()) > 1 else through(gate)

    future = executor.submit(work, str(log), gate)
    while not log.exists() or not log.read_text().endswith("\n"):
        time.sleep(0.005)
    psutil.Process(int(log.read_text())).kill()
    assert future.result(WITHIN) == 2


# ---------------------------------------------------------------- resources


def test_memory_limits_how_many_run_at_once(tmp_path: Path) -> None:
    gates = [fifo(tmp_path, name) for name in "abc"]
    with hr.connect(workers=4, memory_limit="1GiB") as executor:
        hungry = executor.options(memory="400MiB")
        futures = [hungry.submit(through, gate, gate) for gate in gates]
        modest = executor.options(memory="200MiB").submit(abs, -1)
        assert modest.result(WITHIN) == 1, "it overtakes the third, for which there is no room"
        assert [future.running() for future in futures] == [True, True, False]
        let_through(gates[0])
        assert futures[0].result(WITHIN) == gates[0]
        let_through(gates[2])
        let_through(gates[1])
        assert [future.result(WITHIN) for future in futures] == gates
        with pytest.raises(ResourcesUnavailable, match=r"abs can never run here: .*2 GiB.*there are 1 GiB"):
            executor.options(memory="2GiB").submit(abs, 0)


def test_more_cores_than_there_are(fresh: hr.Executor) -> None:
    with pytest.warns(UserWarning, match="asks for 64 cores, and there are 2"):
        assert fresh.options(num_cpus=64).submit(abs, -1).result() == 1
    assert fresh.options(num_cpus=64).submit(abs, -2).result() == 2


def test_devices_that_are_not_there(executor: hr.Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with (
        hr.connect(workers=1) as executor,
        pytest.raises(ResourcesUnavailable, match="needs 1 GPU, and there are none"),
    ):
        executor.options(num_gpus=1).submit(abs, 1)
    with hr.connect(workers=1) as executor:
        with pytest.raises(ResourcesUnavailable, match="needs 2 GPUs, and there are none"):
            executor.actor(list, num_gpus=2)
        with pytest.raises(ResourcesUnavailable, match=r"needs 2 × 0\.5 GPUs, and there are none"):
            executor.actor_pool(list, num_gpus=0.5, size=2)
    with pytest.raises(ResourcesUnavailable, match="num_gpus=3: this machine has 0"):
        hr.connect(num_gpus=3)


def test_calls_see_the_devices_that_they_were_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.engines.local.machine.devices", lambda: ("4", "7"))

    def seen() -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    with hr.connect(workers=4) as executor:
        assert executor.limits.num_gpus == 2
        assert executor.submit(seen).result() == ""
        assert executor.options(num_gpus=2).submit(seen).result() == "4,7"
        gates = [fifo(tmp_path, name) for name in "ab"]
        one = executor.options(num_gpus=1)
        both = [one.submit(lambda gate: through(gate, seen()), gate) for gate in gates]
        for gate in gates:
            let_through(gate)
        assert sorted(future.result(WITHIN) for future in both) == ["4", "7"]
        assert executor.options(num_gpus=0.5).submit(seen).result() in ("4", "7")


def test_what_is_free(executor: hr.Executor, tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    future = executor.options(memory="1MiB").submit(through, gate)
    while not future.running():
        time.sleep(0.001)
    assert executor.available.num_cpus == 1
    assert executor.limits.memory - executor.available.memory == 1 << 20
    let_through(gate)
    future.result(WITHIN)
    assert executor.available == executor.limits


# ---------------------------------------------------------------- what travels


def test_tables_frames_and_arrays_travel(executor: hr.Executor) -> None:
    table = pa.table({"a": np.arange(200_000)})
    assert executor.submit(lambda table: table.slice(1), table).result().num_rows == 199_999
    made = executor.submit(lambda: np.ones(200_000)).result()
    made[0] = 5.0
    assert made.sum() == 200_004


def test_a_view_shares_all_but_its_options(executor: hr.Executor) -> None:
    view = executor.options(max_retries=0).options(num_cpus=2)
    assert view.submit(os.getpid).result() and view.limits == executor.limits
    assert view.get(executor.put(1)) == 1
