"""A program for Ray runs with one line changed; what is not offered says so."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from headrace.compat import ray
from headrace.compat.ray.util import ActorPool
from headrace.errors import ArgumentError, EngineError, HeadraceError, NotOffered, ResourcesUnavailable

from .test_calls import fifo, let_through, through

# What Ray 2.60 prints for the same program, with `import ray` in the first line.
PROGRAM = """
from headrace.compat import ray
from headrace.compat.ray.util import ActorPool
import numpy as np
import time

@ray.remote
def square(x):
    return x * x

@ray.remote(num_cpus=1, max_retries=1)
def total(*arrays):
    return float(sum(array.sum() for array in arrays))

@ray.remote
def of_list(refs):
    return sum(ray.get(refs))

@ray.remote
def bad():
    raise ValueError("no good")

@ray.remote
def slow():
    time.sleep(30)

@ray.remote
class Counter:
    def __init__(self, start=0):
        self.n = start

    def add(self, k):
        self.n += k
        return self.n

    def fail(self):
        raise KeyError("k")

print(ray.get([square.remote(i) for i in range(4)]))
array = ray.put(np.ones(100000))
print(ray.get(total.remote(array, array)), ray.get(total.options(num_cpus=2).remote(array)))
print(ray.get(of_list.remote([square.remote(i) for i in range(4)])), ray.get(square.remote(square.remote(3))))
try:
    ray.get(bad.remote())
except ValueError as error:
    print("ValueError", isinstance(error, ray.exceptions.RayTaskError), repr(error.cause))
counter = Counter.options(num_cpus=1).remote(10)
print(ray.get([counter.add.remote(1), counter.add.remote(2)]))
try:
    ray.get(counter.fail.remote())
except KeyError:
    print("KeyError")
refs = [square.remote(i) for i in range(5)]
done, rest = ray.wait(refs, num_returns=5, timeout=60)
print(len(done), len(rest), done == refs, isinstance(refs[0], ray.ObjectRef), isinstance(array, ray.ObjectRef))
try:
    ray.get(slow.options(num_cpus=0).remote(), timeout=0.2)
except ray.exceptions.GetTimeoutError:
    print("timeout")
pool = ActorPool([Counter.remote(i * 100) for i in range(2)])
print(list(pool.map(lambda actor, value: actor.add.remote(value), [1])), pool.has_next(), pool.has_free())
pool.submit(lambda actor, value: actor.add.remote(value), 5)
print(pool.has_free(), pool.has_next(), pool.get_next() > 0, pool.has_next())
ray.kill(counter)
try:
    ray.get(counter.add.remote(1))
except ray.exceptions.RayActorError:
    print("dead")
try:
    square(3)
except TypeError:
    print("TypeError")
print(ray.cluster_resources()["CPU"], ray.is_initialized())
data = ray.data.range(10).map_batches(lambda batch: {"id": batch["id"] * 2})
print(sorted(row["id"] for row in data.take_all()))
ray.shutdown()
print(ray.is_initialized())
"""

PRINTED = """\
[0, 1, 4, 9]
200000.0 100000.0
14 81
ValueError True ValueError('no good')
[11, 13]
KeyError
5 0 True True True
timeout
[101] False True
True True True False
dead
TypeError
2.0 True
[0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
False
"""


def test_a_program_for_ray(script: Callable[..., Any]) -> None:
    ended = script(PROGRAM)
    assert (ended.code, ended.out, ended.err) == (0, PRINTED, "")


@pytest.fixture(scope="module", autouse=True)
def shut_down(nothing_is_left: None) -> Iterator[None]:
    yield
    ray.shutdown()


@pytest.fixture
def begun() -> None:
    """Begin, if nobody has: one executor for all these tests."""
    ray.init(num_cpus=2, ignore_reinit_error=True, log_to_driver=False)


def test_beginning_twice(begun: None) -> None:
    with pytest.raises(EngineError, match="was called before"):
        ray.init()
    assert ray.is_initialized()
    assert ray.available_resources()["CPU"] == 2.0
    assert ray.get_gpu_ids() == []


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (
            lambda: ray.serve,
            r"ray\.serve is not offered here: Headrace predicts offline.*\. docs/coming-from-ray\.md",
        ),
        (lambda: ray.tune, r"ray\.tune is not offered here: Headrace predicts offline"),
        (lambda: ray.method(num_return=2), "num_returns"),
        (lambda: ray.remote(retry_exceptions=True)(dict), r"retry_exceptions=…\) .* it is for tasks"),
        (lambda: ray.gets, r"ray\.gets is not offered here\. Did you mean 'get'"),
        (
            lambda: ray.data.read_hudi,
            r"ray\.data\.read_hudi is not offered here: there is no reader for this",
        ),
        (lambda: ray.util.collective, r"ray\.util\.collective is not offered"),
        (lambda: ray.train.Trainer, r"ray\.train\.Trainer is not offered"),
        (lambda: ray.exceptions.RpcError, r"ray\.exceptions\.RpcError is not offered"),
        (lambda: ray.remote(label_selector={"a": "b"})(len), r"label_selector=…\) is not offered"),
        (lambda: ray.remote(max_concurrency=2)(len), r"max_concurrency=…\) is not offered here: it is for"),
        (lambda: ray.remote(max_retries=1)(dict), r"ray\.remote\(max_retries=…\) is not offered"),
        (
            lambda: ray.init(num_cpu=2),
            r"ray\.init\(num_cpu=…\) is not offered here\. Did you mean 'num_cpus'",
        ),
        (
            lambda: ray.init("ray://head:10001"),
            r"ray\.init\(address=…\) is not offered here: all runs on this",
        ),
        (lambda: ray.init(runtime_env={"conda": "env"}), r"'conda': …}.* install what it needs before"),
        (lambda: ray.init(runtime_env={"pip": ["no_such_package"]}), r"install no_such_package before"),
    ],
)
def test_what_is_not_offered_says_so(act: Callable[[], Any], said: str) -> None:
    with pytest.raises(NotOffered, match=said) as caught:
        act()
    assert isinstance(caught.value, AttributeError)


@pytest.mark.parametrize(
    "line",
    [
        "from headrace.compat.ray import tune",
        "from headrace.compat.ray.data import read_hudi",
        "from headrace.compat.ray.util.collective import init_collective_group",
        "import headrace.compat.ray.rllib.algorithms",
    ],
)
def test_what_is_not_offered_cannot_be_imported(line: str) -> None:
    with pytest.raises(ImportError, match=r"headrace\.compat\.ray"):
        exec(line, {})
    with pytest.raises(AttributeError):
        ray.__nothing__  # noqa: B018


def test_options_that_ask_for_nothing_are_passed_over(begun: None) -> None:
    task = ray.remote(name="a", max_calls=10, scheduling_strategy="SPREAD", retry_exceptions=False)(abs)
    assert ray.get(task.options(num_returns=1, runtime_env=None, memory=100 * 1024**2).remote(-3)) == 3
    actor = ray.remote(max_concurrency=1, lifetime="non_detached", resources={})(list).remote([2, 1])
    assert ray.get(actor.count.remote(2)) == 1
    with pytest.warns(UserWarning, match="list: a detached actor ends with the program"):
        kept = ray.remote(lifetime="detached")(list).remote([1])
    assert ray.get(kept.count.remote(1)) == 1
    with pytest.raises(TypeError, match=r"remote is remote already|abs is remote already: abs\.options"):
        ray.remote(num_cpus=1)(task)


def test_a_pool_raises_as_ray_does(begun: None) -> None:
    pool = ActorPool([ray.remote(list).remote([3])])
    pool.submit(lambda actor, value: actor.index.remote(value), 4)
    with pytest.raises(ray.exceptions.RayTaskError, match="4 is not in list") as caught:
        pool.get_next(timeout=30)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(StopIteration):
        pool.get_next()


def test_mistakes(begun: None) -> None:
    ref = ray.put(1)
    for wrong in (
        lambda: ray.get(3),
        lambda: ray.wait(ref),
        lambda: ray.wait([ref, ref]),
        lambda: ray.wait([ref], num_returns=2),
        lambda: ray.kill(ref),
        lambda: ray.cancel(ref),
        lambda: ray.remote(1),
        lambda: ray.remote(num_cpus=1)(1),
        lambda: ActorPool([ref]),
    ):
        with pytest.raises(ArgumentError):
            wrong()


def test_waiting(begun: None) -> None:
    quick, slow = ray.put(1), ray.remote(time.sleep).remote(0.5)
    while not slow.running():
        time.sleep(0.001)
    assert ray.wait([slow, quick], timeout=0) == ([quick], [slow])
    assert ray.wait([slow, quick], num_returns=2, timeout=0.01) == ([quick], [slow])
    assert ray.wait([slow, quick], num_returns=2) == ([slow, quick], [])
    ray.cancel(slow)  # it is over: nothing to say


def test_cancelling(begun: None, tmp_path: Path) -> None:
    gate = fifo(tmp_path)
    running = ray.remote(through).remote(gate, 1)
    later = ray.remote(abs).remote(running)
    while not running.running():
        time.sleep(0.001)
    ray.cancel(later)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(later)
    ray.cancel(running, force=True)
    with pytest.raises(ray.exceptions.TaskCancelledError) as caught:
        ray.get(running)
    assert isinstance(caught.value, HeadraceError)


class Notes:
    def through(self, gate: str) -> None:
        through(gate)

    def note(self, file: str) -> None:
        Path(file).touch()


def asking(actor: Any, file: str, asked: str, gate: str) -> None:
    ray.wait([actor.note.remote(file)], timeout=0)  # the driver knows of it
    let_through(asked)
    through(gate)


def test_a_cancelled_call_takes_along_the_methods_that_it_has_called(begun: None, tmp_path: Path) -> None:
    held, asked, gate = (fifo(tmp_path, name) for name in ("held", "asked", "gate"))
    actor = ray.remote(Notes).remote()
    calls = [actor.through.remote(held), *(actor.note.remote(tmp_path / f"{i}") for i in range(20))]
    cancelled = ray.remote(asking).remote(actor, str(tmp_path / "never"), asked, gate)
    through(asked)
    ray.cancel(cancelled)
    with pytest.raises(ray.exceptions.TaskCancelledError):
        ray.get(cancelled)
    let_through(held)
    ray.get([*calls, actor.note.remote(tmp_path / "last")])
    assert (tmp_path / "last").exists() and not (tmp_path / "never").exists()


def test_an_actor_class_keeps_ray_s_options(begun: None) -> None:
    @ray.remote(num_cpus=0, max_restarts=1, max_task_retries=1, memory=1 << 20)
    class Model:
        """Predicts."""

        def __init__(self, weights: Any) -> None:
            self.weights = weights

        def predict(self, rows: Any) -> Any:
            return rows @ self.weights

    assert Model.__doc__ == "Predicts."
    model = Model.remote(ray.put(np.ones(2)))
    assert ray.get(model.predict.remote(np.eye(2))).tolist() == [1.0, 1.0]
    with pytest.raises(TypeError, match=r"Model\.remote\(…\)"):
        Model(1)


def test_a_method_says_how_often_it_is_tried_again(begun: None, tmp_path: Path) -> None:
    def third_time(mark: str) -> int:
        with open(mark, "a") as file:
            file.write("x")
        if os.path.getsize(mark) < 3:
            os._exit(1)
        return os.path.getsize(mark)

    @ray.remote(num_cpus=0, max_restarts=-1)
    class Mortal:
        def once(self, mark: str) -> int:
            return third_time(mark)

        @ray.method(max_task_retries=2, retry_exceptions=False)
        def thrice(self, mark: str) -> int:
            return third_time(mark)

    actor = Mortal.remote()
    assert ray.get(actor.thrice.remote(str(tmp_path / "a"))) == 3
    assert ray.get(actor.once.options(max_task_retries=2).remote(str(tmp_path / "b"))) == 3
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(actor.once.remote(str(tmp_path / "c")))


def test_data_are_headraces_verbs() -> None:
    data = ray.data.range(3).filter(expr="id > 0").with_options(progress=False)
    assert isinstance(data, ray.data.Dataset) and isinstance(data, hr.Dataset)
    assert [batch["id"].tolist() for batch in data.iterator().iter_batches()] == [[1, 2]]
    assert ray.data.read_parquet.__doc__ == hr.read_parquet.__doc__ and ray.data.range is ray.data.range
    from headrace.compat.ray.data import ActorPoolStrategy
    from headrace.compat.ray.util.actor_pool import ActorPool

    assert ActorPoolStrategy is hr.ActorPoolStrategy and issubclass(ActorPool, hr.ActorPool)
    assert set(ray.data.__all__) >= {"from_items", "range", "read_images", "TaskPoolStrategy"}


def test_batch_prediction() -> None:
    from headrace.compat.air import batch_predictor, checkpoint

    assert ray.train.batch_predictor.BatchPredictor is batch_predictor.BatchPredictor
    assert ray.train.torch.TorchCheckpoint is checkpoint.TorchCheckpoint
    assert ray.train.torch.TorchPredictor is hr.TorchPredictor


def test_without_cores_what_needs_none_runs_and_the_rest_is_refused() -> None:
    ray.shutdown()
    ray.init(num_cpus=0)
    try:
        assert "CPU" not in ray.cluster_resources() and ray.available_resources()["CPU"] == 0
        free = ray.remote(num_cpus=0)(abs)
        assert ray.get([free.remote(-number) for number in range(3)]) == [0, 1, 2]  # as Ray prints
        words = r"needs 1 cores, and this executor was made with num_cpus=0"
        with pytest.raises(ResourcesUnavailable, match=words):
            ray.remote(abs).remote(1)  # Ray waits for ever
        with pytest.raises(ResourcesUnavailable, match=words):
            ray.remote(num_cpus=1)(dict).remote()
    finally:
        ray.shutdown()
    with pytest.raises(ArgumentError, match="workers=0: it takes a number above zero"):
        hr.connect(workers=0)
