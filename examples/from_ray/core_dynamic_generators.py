# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/generator.py.
import numpy as np

from headrace.compat import ray
from headrace.compat.ray import DynamicObjectRefGenerator


@ray.remote(num_returns="dynamic")
def split(array, size):
    while len(array) > 0:
        yield array[:size]
        array = array[size:]


array_ref = ray.put(np.zeros(95))
dynamic_ref = split.remote(array_ref, 10)
generator = ray.get(dynamic_ref)
sizes = [len(ray.get(ref)) for ref in generator]
assert sizes == [10] * 9 + [5]


@ray.remote
def get_size(generator: DynamicObjectRefGenerator):
    return sum(len(ray.get(ref)) for ref in generator)


assert ray.get(get_size.remote(split.remote(array_ref, 10))) == 95
assert ray.get(get_size.remote(ray.get(split.remote(array_ref, 20)))) == 95


@ray.remote
def failing():
    for i in range(2):
        yield i
    raise Exception("error")


ref1, ref2, ref3, ref4 = failing.options(num_returns=4).remote()
assert ray.get([ref1, ref2]) == [0, 1]
for failed in (ref3, ref4):
    try:
        ray.get(failed)
        raise AssertionError
    except ray.exceptions.RayTaskError as error:
        assert "error" in str(error)
ref1, ref2, ref3 = ray.get(failing.options(num_returns="dynamic").remote())
assert ray.get([ref1, ref2]) == [0, 1]
try:
    ray.get(ref3)
    raise AssertionError
except ray.exceptions.RayTaskError:
    pass
