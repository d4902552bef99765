"""Who may run: decided without a process or a clock."""

from __future__ import annotations

from random import Random

import pytest

from headrace.annex.tasks.admission import MAX_OVERTAKEN, Admission, Needs


def keys(admission: Admission) -> list[object]:
    return [key for key, _ in admission.ready()]


def test_cores_are_shared_in_order() -> None:
    admission = Admission(cpus=2, memory=10)
    for name in "abc":
        admission.request(name, Needs())
    assert keys(admission) == ["a", "b"]
    admission.release("b")
    assert keys(admission) == ["c"]


def test_named_resources_are_counted_as_memory_is() -> None:
    admission = Admission(cpus=8, memory=10, resources={"disk": 1.0})
    for i in range(3):
        admission.request(i, Needs(num_cpus=1, resources=(("disk", 0.5),)))
    assert keys(admission) == [0, 1] and dict(admission.free.resources) == {"disk": 0.0}
    admission.release(0)
    assert keys(admission) == [2]
    assert admission.refusal(Needs(resources=(("disk", 2.0),))) == "2 of the resource 'disk', and there are 1"
    assert admission.refusal(Needs(resources=(("tape", 1.0),))) == "1 of the resource 'tape', and there are 0"


def test_parts_of_cores_add_up() -> None:
    admission = Admission(cpus=1, memory=10)
    for i in range(11):
        admission.request(i, Needs(num_cpus=0.1))
    assert keys(admission) == list(range(10))


def test_memory_is_hard() -> None:
    admission = Admission(cpus=8, memory=100)
    for name, memory in [("a", 60), ("b", 41), ("c", 40)]:
        admission.request(name, Needs(memory=memory))
    assert keys(admission) == ["a", "c"]
    assert admission.free.memory == 0
    admission.release("c")
    assert keys(admission) == []
    admission.release("a")
    assert keys(admission) == ["b"]


def test_devices_are_seats() -> None:
    admission = Admission(cpus=8, memory=100, gpus=2)
    for i in range(3):
        admission.request(i, Needs(num_gpus=0.5))
    admission.request("whole", Needs(num_gpus=1))
    admission.request("more", Needs(num_gpus=1))
    assert admission.ready() == [(0, (0,)), (1, (0,)), (2, (1,))]
    admission.release(2)
    assert admission.ready() == [("whole", (1,))]
    admission.release(0)
    assert admission.ready() == []
    admission.release(1)
    assert admission.ready() == [("more", (0,))]


def test_a_big_request_is_not_overtaken_for_ever() -> None:
    admission = Admission(cpus=4, memory=100)
    admission.request("small 0", Needs(memory=30))
    assert keys(admission) == ["small 0"]
    admission.request("big", Needs(memory=100))
    running, admitted = ["small 0"], 0
    for i in range(1, 100):
        admission.request(f"small {i}", Needs(memory=30))
        running += keys(admission)
        admitted = max(admitted, i if f"small {i}" in running else 0)
        if "big" in running:
            break
        admission.release(running.pop(0))
    assert running == ["big"]
    assert admitted == MAX_OVERTAKEN


def test_a_call_for_all_cores_gets_them() -> None:
    admission = Admission(cpus=2, memory=100)
    admission.request("one", Needs())
    assert keys(admission) == ["one"]
    admission.request("two", Needs(num_cpus=2))
    for i in range(MAX_OVERTAKEN + 5):
        admission.request(i, Needs())
    running = keys(admission)
    assert running == [0]
    for _ in range(MAX_OVERTAKEN):
        admission.release(running.pop())
        running += keys(admission)
    assert running == []
    admission.release("one")
    assert keys(admission) == ["two"]


def test_actors_take_cores_from_calls_but_leave_one() -> None:
    admission = Admission(cpus=2, memory=100)
    for i in range(3):
        admission.request(f"actor {i}", Needs(num_cpus=1), for_actor=True)
    for i in range(2):
        admission.request(i, Needs())
    assert keys(admission) == ["actor 0", "actor 1", "actor 2", 0]


def test_what_actors_hold_is_told_once_nothing_else_runs() -> None:
    admission = Admission(cpus=2, memory=100)
    admission.request("actor", Needs(0, 0, 80), for_actor=True)
    admission.request("call", Needs(memory=40))
    admission.request("small", Needs(memory=10))
    assert keys(admission) == ["actor", "small"]
    assert admission.blocked_by_actors() is None
    admission.release("small")
    assert admission.blocked_by_actors() == Needs(memory=40)
    admission.release("actor")
    assert keys(admission) == ["call"]


def test_what_a_waiting_call_needs_has_its_cores_and_comes_first() -> None:
    admission = Admission(cpus=1, memory=0)
    admission.request("call", Needs())
    assert keys(admission) == ["call"]
    admission.request("other", Needs())
    admission.request("inner", Needs(), depth=1)
    admission.request("innermost", Needs(), depth=2)
    assert keys(admission) == []
    admission.pause("call")
    assert keys(admission) == ["innermost"]
    admission.resume("call")
    admission.release("innermost")
    assert keys(admission) == []
    admission.release("call")
    assert keys(admission) == ["inner"]


def test_who_withdraws_is_passed_over() -> None:
    admission = Admission(cpus=1, memory=100)
    for name in "abc":
        admission.request(name, Needs())
    assert keys(admission) == ["a"]
    admission.withdraw("b")
    assert admission.waiting == 1
    admission.release("a")
    assert keys(admission) == ["c"]
    assert admission.waiting == 0


@pytest.mark.parametrize(
    ("needs", "workers", "said"),
    [
        (Needs(memory=101), 1, "101 B of memory, and there are 100 B"),
        (Needs(memory=51), 2, "2 × 51 B of memory, and there are 100 B"),
        (Needs(num_gpus=2), 1, "2 GPUs, and there is 1"),
        (Needs(num_gpus=0.5), 3, "3 × 0.5 GPUs, and there is 1"),
        (Needs(num_cpus=64, num_gpus=0.5, memory=50), 2, ""),
    ],
)
def test_what_can_never_be(needs: Needs, workers: int, said: str) -> None:
    assert Admission(2, 100, 1).refusal(needs, workers) == said


@pytest.mark.parametrize("seed", range(20))
def test_everybody_is_admitted_once_and_within_the_limits(seed: int) -> None:
    random = Random(seed)
    admission = Admission(cpus=3, memory=100, gpus=2)
    asked = {
        i: Needs(random.choice([0.5, 1, 3]), random.choice([0, 0, 0.5, 1, 2]), random.randrange(101))
        for i in range(80)
    }
    done: list[object] = []
    running: list[object] = []
    left = list(asked)
    while left or running or admission.waiting:
        for _ in range(random.randrange(4)):
            if left:
                admission.request(left[0], asked[left.pop(0)])
        admitted = keys(admission)
        running += admitted
        taken = [asked[key] for key in running]  # type: ignore[index]
        assert sum(needs.memory for needs in taken) <= 100
        assert sum(needs.num_gpus for needs in taken) <= 2
        assert sum(needs.num_cpus for needs in taken) <= 3
        if running:
            done.append(running.pop(random.randrange(len(running))))
            admission.release(done[-1])
    assert sorted(done) == list(asked)  # type: ignore[type-var]
    assert admission.free == Needs(3, 2, 100)
