"""References inside containers stay references; as arguments they become values."""

import ray


@ray.remote
def kinds(direct, inside, *, named):
    return (
        type(direct).__name__,
        isinstance(inside[0], ray.ObjectRef),
        type(named).__name__,
        ray.get(inside[0]),
    )


print(ray.get(kinds.remote(ray.put(1), [ray.put("x")], named=ray.put(2.5))))
