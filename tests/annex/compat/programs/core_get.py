"""What ray.get takes, and time limits."""

import ray


@ray.remote
def number(n):
    return n


print(ray.get(number.remote(1), timeout=60), ray.get([number.remote(1), ray.put(2)], timeout=60))
for wrong in (3, "x", None):
    try:
        ray.get(wrong)
        print(wrong, "passed")
    except Exception as error:
        print(wrong, "ValueError" if isinstance(error, ValueError) else "other")
try:
    ray.put(ray.put(1))
except TypeError:
    print("TypeError")
