# The calls are those of ray-project/ray, release/nightly_tests/stress_tests/test_many_tasks.py.
import numpy as np

from headrace.compat import ray

ray.init(address="auto")
assert ray.is_initialized()
print(ray.__version__)


@ray.remote
def f(size, *xs):
    return np.ones(size, dtype=np.uint8)


@ray.remote(num_cpus=0)
class Actor:
    def method(self, size, *xs):
        return np.ones(size, dtype=np.uint8)


ids = [f.remote(1000) for _ in range(20)]
for _ in range(2):
    ids = [f.remote(1000, *ids[:3]) for _ in range(10)]
    assert all(len(each) == 1000 for each in ray.get(ids))
actors = [Actor._remote(args=[], kwargs={}, num_cpus=0.1) for _ in range(2)]
assert all(len(each) == 10 for each in ray.get([actor.method.remote(10) for actor in actors]))
assert len(ray.get(f._remote(args=[5], kwargs={}, num_cpus=1))) == 5
