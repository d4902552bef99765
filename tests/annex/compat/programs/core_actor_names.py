"""Actors found by their names."""

import ray


@ray.remote
class Registry:
    def __init__(self, label):
        self.label = label

    def get(self):
        return self.label


first = Registry.options(name="registry").remote("first")
print(ray.get(ray.get_actor("registry").get.remote()))
same = Registry.options(name="registry", get_if_exists=True).remote("second")
print(ray.get(same.get.remote()))
try:
    Registry.options(name="registry").remote("third")
except ValueError:
    print("ValueError")
try:
    ray.get_actor("no such")
except ValueError:
    print("ValueError")


@ray.remote
def ask(name):
    return ray.get(ray.get_actor(name).get.remote())


print(ray.get(ask.remote("registry")))
