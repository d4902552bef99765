"""Handles of actors as arguments, in results and inside of other actors."""

import ray


@ray.remote
class Counter:
    START = 10

    def __init__(self, n=0):
        self.n = n

    def add(self, k=1):
        self.n += k
        return self.n

    def me(self):
        return ray.get_runtime_context().current_actor


@ray.remote
def bump(counter, times):
    return [ray.get(counter.add.remote()) for _ in range(times)][-1]


@ray.remote
def make():
    counter = Counter.remote(100)
    return counter, ray.get(counter.add.remote())


@ray.remote
class Parent:
    def __init__(self, count):
        self.children = [Counter.remote(i) for i in range(count)]

    def totals(self):
        return ray.get([child.add.remote(1) for child in self.children])

    def child(self, i):
        return self.children[i]


@ray.remote
def both(handles):
    return sum(ray.get([handles["a"].add.remote(5), handles["b"].add.remote(6)]))


counter = Counter.remote()
print(ray.get(bump.remote(counter, 3)), ray.get(bump.remote(counter, 2)), ray.get(counter.add.remote(0)))
made, first = ray.get(make.remote())
print(first, ray.get(made.add.remote()))
parent = Parent.remote(3)
print(ray.get(parent.totals.remote()), ray.get(parent.totals.remote()))
child = ray.get(parent.child.remote(2))
print(ray.get(child.add.remote(10)), ray.get(parent.totals.remote()))
print(ray.get(both.remote({"a": counter, "b": child})))
print(ray.get(ray.get(counter.me.remote()).add.remote(0)))
print(Counter.START)
stored = ray.put([counter])
print(ray.get(ray.get(stored)[0].add.remote(0)))
other = Counter.options(num_cpus=0).remote(ray.put(7))
print(ray.get(other.add.remote(ray.put(3))))
