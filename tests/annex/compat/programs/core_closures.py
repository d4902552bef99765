"""What functions close over: values, other functions, modules, references."""

import math

import ray

LIMIT = 3
REF = ray.put([1, 2])


def helper(x):
    return math.floor(x) + LIMIT


class Plain:
    def __init__(self, x):
        self.x = x


@ray.remote
def uses(x):
    return helper(x), ray.get(REF), Plain(x).x


@ray.remote
def makes(x):
    return Plain(x)


print(ray.get(uses.remote(1.5)), ray.get(makes.remote(4)).x)
