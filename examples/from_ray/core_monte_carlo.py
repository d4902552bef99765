# The calls are those of ray-project/ray, doc/source/ray-core/examples/monte_carlo_pi.rst.
import math
import random
import time

from headrace.compat import ray


@ray.remote
class ProgressActor:
    def __init__(self, total: int):
        self.total = total
        self.done = {}

    def report(self, task: int, done: int) -> None:
        self.done[task] = done

    def progress(self) -> float:
        return sum(self.done.values()) / self.total


@ray.remote
def sample(number: int, task: int, actor: ray.actor.ActorHandle) -> int:
    inside = 0
    for i in range(number):
        if math.hypot(random.uniform(-1, 1), random.uniform(-1, 1)) <= 1:
            inside += 1
        if (i + 1) % 1000 == 0:
            actor.report.remote(task, i + 1)
    actor.report.remote(task, number)
    return inside


actor = ProgressActor.remote(4 * 3000)
results = [sample.remote(3000, i, actor) for i in range(4)]
while ray.get(actor.progress.remote()) < 1:
    time.sleep(0.01)
assert 2.8 < 4 * sum(ray.get(results)) / 12000 < 3.5
