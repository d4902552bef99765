"""Errors with constructors of their own, and chained ones."""

import ray


class Two(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b


@ray.remote(max_retries=0)
def two():
    raise Two(1, 2)


@ray.remote(max_retries=0)
def chained():
    try:
        {}["missing"]
    except KeyError as error:
        raise ValueError("outer") from error


try:
    ray.get(two.remote())
except Exception as error:
    print("Two", "1 and 2" in str(error))
try:
    ray.get(chained.remote())
except ValueError as error:
    print("ValueError", "outer" in str(error))
