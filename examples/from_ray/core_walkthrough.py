# The calls are those of ray-project/ray, doc/source/ray-core/walkthrough.rst.
import numpy as np

from headrace.compat import ray

ray.init()


@ray.remote
def square(x):
    return x * x


@ray.remote
class Counter:
    def __init__(self):
        self.i = 0

    def get(self):
        return self.i

    def incr(self, value):
        self.i += value


@ray.remote
def total(matrix):
    return np.sum(matrix)


assert ray.get([square.remote(n) for n in range(4)]) == [0, 1, 4, 9]
counter = Counter.remote()
for _ in range(10):
    counter.incr.remote(1)
assert ray.get(counter.get.remote()) == 10
assert ray.get(total.remote(np.ones((100, 100)))) == 10000.0
matrix_ref = ray.put(np.ones((100, 100)))
assert ray.get(total.remote(matrix_ref)) == 10000.0
