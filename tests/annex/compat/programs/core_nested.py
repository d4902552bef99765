"""Tasks that start tasks, and trees of them."""

import ray


@ray.remote
def leaf(x):
    return x + 1


@ray.remote
def branch(n):
    return sum(ray.get([leaf.remote(i) for i in range(n)]))


@ray.remote
def fib(n):
    return n if n < 2 else sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))


@ray.remote
def returns_refs():
    return [leaf.remote(1), leaf.remote(2)]


def tree(numbers):
    refs = [leaf.remote(n) for n in numbers]
    while len(refs) > 1:
        refs = [combine.remote(*refs[i : i + 2]) for i in range(0, len(refs), 2)]
    return ray.get(refs[0])


@ray.remote
def combine(*values):
    return sum(values)


print(ray.get(branch.remote(5)), ray.get(fib.remote(7)), tree(range(8)))
print(ray.get(ray.get(returns_refs.remote())))
