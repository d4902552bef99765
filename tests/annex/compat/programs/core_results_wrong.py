"""A number of results that is not the one that was said."""

import ray


@ray.remote(num_returns=2)
def one():
    return (1,)


@ray.remote(num_returns=2)
def no_tuple():
    return 1


for task in (one, no_tuple):
    try:
        ray.get(task.remote())
    except (ValueError, TypeError):
        print("refused")
