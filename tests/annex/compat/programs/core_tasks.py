"""Tasks with arguments by position and name, references, options."""

import ray


@ray.remote
def add(a, b=10, *rest, scale=1):
    return (a + b + sum(rest)) * scale


@ray.remote(num_cpus=1, max_retries=0)
def shout(text):
    return text.upper()


print(ray.get(add.remote(1)), ray.get(add.remote(1, b=2, scale=3)), ray.get(add.remote(1, 2, 3, 4)))
print(ray.get(add.remote(add.remote(1), add.remote(2))), ray.get(add.remote(1, scale=ray.put(5))))
print(
    ray.get(shout.options(num_cpus=0.5, name="loud").remote("a")), ray.get([shout.remote(c) for c in "xyz"])
)
print(ray.get([]), ray.get(ray.put({"a": [1, 2]})))
try:
    add(1)
except TypeError:
    print("TypeError")
print(ray.remote(lambda x: x * 2).__class__.__name__, ray.get(ray.remote(lambda x: x * 2).remote(4)))
