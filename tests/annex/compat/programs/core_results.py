"""Several results, no result, results by a generator."""

import ray


@ray.remote(num_returns=3)
def three():
    return 1, 2, 3


@ray.remote
def many(n):
    for i in range(n):
        yield i * i


@ray.remote
def nothing():
    pass


a, b, c = three.remote()
print(ray.get([c, a, b]), ray.get(nothing.remote()))
for ref in many.remote(4):
    print(ray.get(ref), end=" ")
print()
first, second = many.options(num_returns=2).remote(2)
print(ray.get([first, second]))
stream = many.remote(2)
print(ray.get(next(stream)), ray.get(next(stream)))
try:
    next(stream)
except StopIteration:
    print("end")
