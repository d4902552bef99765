"""Each task sees a copy of its own; arrays are read-only."""

import collections

import numpy as np
import ray


@ray.remote
def grow(values):
    values.append(len(values))
    return values


@ray.remote
def write(array):
    try:
        array[0] = 1
    except ValueError as error:
        return "read-only" in str(error)
    return "written"


@ray.remote
def write_inside(data):
    try:
        data["a"][0] = 1
    except ValueError as error:
        return "read-only" in str(error)
    return "written"


class Model:
    def __init__(self):
        self.seen = []
        self.weights = np.zeros(100_000)


@ray.remote
def use(model):
    model.seen.append(1)
    return len(model.seen)


@ray.remote
def make(n):
    return np.arange(n)


values = ray.put([])
print(ray.get([grow.remote(values) for _ in range(3)]), ray.get(values))
got = ray.get(values)
got.append("mine")
print(ray.get(values))
mine = [1]
ref = ray.put(mine)
mine.append(2)
print(ray.get(ref))
argument = {"x": [1]}
ref = grow.remote(argument["x"])
print(ray.get(ref), argument)
big, small = ray.put(np.zeros(100_000)), np.zeros(3)
print(ray.get([write.remote(big), write.remote(np.zeros(100_000))]))
print(
    ray.get(write_inside.remote({"a": np.zeros(100_000)})),
    ray.get(write_inside.remote(ray.put({"a": np.zeros(100_000)}))),
)
print(ray.get(big).flags.writeable, ray.get(make.remote(100_000)).flags.writeable)
model = ray.put(Model())
print(ray.get([use.remote(model) for _ in range(3)]))
result = grow.remote([1])
ray.get(result).append("changed")
print(ray.get(result))
Point = collections.namedtuple("Point", "x y")
print(ray.get(ray.put(Point(1, 2))), ray.get(ray.put(None)), ray.get(ray.put({1: (2, {3})})))


@ray.remote
class Holder:
    def __init__(self):
        self.data = {"a": [1]}

    def get(self):
        return self.data

    def take(self, data):
        self.data = data


holder = Holder.remote()
ray.get(holder.get.remote())["a"].append(2)
print(ray.get(holder.get.remote()))
sent = {"b": []}
holder.take.remote(sent)
sent["b"].append(1)
print(ray.get(holder.get.remote()))
