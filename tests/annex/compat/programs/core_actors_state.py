"""Actors keep state, and run their methods in order."""

import ray


@ray.remote
class Counter:
    """Counts."""

    step = 1

    def __init__(self, start=0, *, step=None):
        self.n = start
        self.step = step or self.step

    def add(self, times=1):
        self.n += self.step * times
        return self.n

    def fail(self):
        raise ValueError("no")

    @ray.method(num_returns=2)
    def both(self):
        return self.n, self.step


counter = Counter.remote(10, step=5)
print(ray.get([counter.add.remote() for _ in range(3)]), ray.get(counter.add.remote(times=2)))
try:
    ray.get(counter.fail.remote())
except ValueError:
    print("ValueError; the actor goes on:", ray.get(counter.add.remote()))
n, step = counter.both.remote()
print(ray.get(n), ray.get(step))
print(ray.get(Counter.options(num_cpus=0.5).remote().add.remote()))
try:
    Counter()
except TypeError:
    print("TypeError")
try:
    counter.nothing.remote()
except AttributeError:
    print("AttributeError")
