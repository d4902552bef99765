# The calls are those of ray-project/ray, doc/source/ray-core/objects/serialization.rst.
import threading

import numpy as np

from headrace.compat import ray


class A:
    def __init__(self, x):
        self.x = x
        self.lock = threading.Lock()


def serializer(a):
    return a.x


def deserializer(x):
    return A(x)


ray.util.register_serializer(A, serializer=serializer, deserializer=deserializer)
assert ray.get(ray.put(A(3))).x == 3
ray.util.deregister_serializer(A)

from headrace.compat.ray.util import inspect_serializability

lock = threading.Lock()


def uses_lock():
    return lock


serializable, failures = inspect_serializability(uses_lock, name="test")
assert not serializable and failures


@ray.remote
def read_only(array):
    try:
        array[0] = 1
    except ValueError:
        array = array.copy()
        array[0] = 1
    return array


assert ray.get(read_only.remote(ray.put(np.zeros(100_000))))[0] == 1
