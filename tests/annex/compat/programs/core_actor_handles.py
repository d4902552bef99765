"""Handles travel to tasks and other actors."""

import ray


@ray.remote
class Store:
    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value

    def get(self, key):
        return self.values.get(key)


@ray.remote
def fill(store, n):
    ray.get([store.set.remote(i, i * i) for i in range(n)])
    return n


@ray.remote
class Reader:
    def __init__(self, store):
        self.store = store

    def total(self, n):
        return sum(ray.get([self.store.get.remote(i) for i in range(n)]))


store = Store.remote()
print(ray.get(fill.remote(store, 4)), ray.get(store.get.remote(3)))
print(ray.get(Reader.remote(store).total.remote(4)))
print(ray.get(fill.remote({"handle": store}["handle"], 1)))
