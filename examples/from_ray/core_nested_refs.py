# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/obj_val.py.
import numpy as np

from headrace.compat import ray


@ray.remote
def echo_and_get(x_list):
    return ray.get(x_list)


@ray.remote
def add(a, b):
    return a + b


a, b, c = ray.put(1), ray.put(2), ray.put(3)
assert ray.get(echo_and_get.remote([a, b, c])) == [1, 2, 3]
captured = ray.put(np.arange(5))


@ray.remote
def closure():
    return int(ray.get(captured).sum())


assert ray.get(closure.remote()) == 10
assert ray.get(add.remote(add.remote(1, 2), add.remote(3, 4))) == 10


@ray.remote(num_returns=3)
def three():
    return 0, 1, 2


x, y, z = three.remote()
assert ray.get([x, y, z]) == [0, 1, 2]


@ray.remote
def inner_put():
    return ray.put(5)


assert ray.get(ray.get(inner_put.remote())) == 5
assert isinstance(a, ray.ObjectRef) and a.hex()
