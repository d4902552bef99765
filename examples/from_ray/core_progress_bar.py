# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/tqdm.py.
from headrace.compat import ray
from headrace.compat.ray.experimental import tqdm_ray
from headrace.compat.ray.experimental.tqdm_ray import tqdm


@ray.remote
def f(name):
    return sum(x for x in tqdm(range(20), desc=name))


@ray.remote
def g():
    bar = tqdm_ray.tqdm(total=10)
    for _ in range(10):
        bar.update(1)
    bar.close()
    return "done"


assert ray.get([f.remote("task 1"), f.remote("task 2"), g.remote()]) == [190, 190, "done"]
