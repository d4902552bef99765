"""A global that changes after the first call: Ray's workers keep the one that they saw first."""

import ray

LIMIT = 3


@ray.remote
def limit():
    return LIMIT


print(ray.get(limit.remote()))
LIMIT = 100
print(ray.get(limit.remote()))
