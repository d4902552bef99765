"""A dataset that a task computes."""

import ray


@ray.remote
def mean_of(n):
    return ray.data.range(n).map(lambda row: {"x": row["id"] * 2}).mean("x")


print(ray.get(mean_of.options(num_cpus=0.5).remote(10)))
