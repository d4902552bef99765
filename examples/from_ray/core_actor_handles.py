# The calls are those of ray-project/ray, doc/source/ray-core/actors.rst.
from headrace.compat import ray


@ray.remote
class Counter:
    def __init__(self):
        self.counter = 0

    @ray.method(num_returns=2)
    def both(self):
        self.counter += 1
        return self.counter, -self.counter

    def increment(self):
        self.counter += 1

    def get(self):
        return self.counter


@ray.remote
def f(counter):
    for _ in range(10):
        counter.increment.remote()
    return True


counter = Counter.remote()
assert all(ray.get([f.remote(counter) for _ in range(3)]))
assert ray.get(counter.get.remote()) == 30
up, down = counter.both.remote()
assert ray.get([up, down]) == [31, -31]
assert ray.get(counter.get.options(name="mine").remote()) == 31
Remote = ray.remote(num_cpus=1, max_restarts=0)(type("Plain", (), {"one": lambda self: 1}))
assert ray.get(Remote.remote().one.remote()) == 1
