"""What a task raises, and who gets to see it."""

import ray


class Mine(Exception):
    pass


@ray.remote(max_retries=0)
def fail(kind):
    raise kind("broken")


@ray.remote
def use(value):
    return value


for kind in (ValueError, KeyError, ZeroDivisionError, Mine):
    try:
        ray.get(fail.remote(kind))
    except kind as error:
        print(kind.__name__, isinstance(error, ray.exceptions.RayTaskError), "broken" in str(error.cause))
try:
    ray.get(use.remote(fail.remote(ValueError)))
except ValueError as error:
    print("passed on", isinstance(error, ray.exceptions.RayTaskError))
try:
    ray.get([use.remote(1), fail.remote(OSError)])
except OSError:
    print("in a list")
done, rest = ray.wait([fail.remote(ValueError)], timeout=30)
print(len(done), len(rest))
try:
    ray.get(use.remote(1, 2))
except TypeError:
    print("TypeError")
