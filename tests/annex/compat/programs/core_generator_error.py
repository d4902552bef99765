"""A generator that raises in the middle."""

import ray


@ray.remote(max_retries=0)
def stumbles():
    yield 1
    yield 2
    raise RuntimeError("over")


found = []
try:
    for ref in stumbles.remote():
        found.append(ray.get(ref))
except RuntimeError as error:
    print(found, "over" in str(error))
