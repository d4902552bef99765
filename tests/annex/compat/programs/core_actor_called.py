"""A method called without `remote`."""

import ray


@ray.remote
class Counter:
    def add(self):
        return 1


counter = Counter.remote()
try:
    print(ray.get(counter.add()))
except TypeError:
    print("TypeError")
