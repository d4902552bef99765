# The calls are those of ray-project/ray, doc/source/ray-core/doc_code/pattern_tree_of_tasks.py.
from headrace.compat import ray


def partition(values):
    pivot = values.pop()
    return [v for v in values if v <= pivot], pivot, [v for v in values if v > pivot]


def quick_sort(values):
    if len(values) < 2:
        return values
    smaller, pivot, greater = partition(values)
    return [*quick_sort(smaller), pivot, *quick_sort(greater)]


@ray.remote
def quick_sort_distributed(values):
    if len(values) <= 20:
        return quick_sort(values)
    smaller, pivot, greater = partition(values)
    smaller = quick_sort_distributed.remote(smaller)
    greater = quick_sort_distributed.remote(greater)
    return ray.get(smaller) + [pivot] + ray.get(greater)


@ray.remote(num_cpus=1)
class Trainer:
    def __init__(self, hyperparameter, data):
        self.hyperparameter, self.data = hyperparameter, data

    def fit(self):
        return self.data * self.hyperparameter


@ray.remote(num_cpus=1)
class Supervisor:
    def __init__(self, hyperparameter, data):
        self.trainers = [Trainer.remote(hyperparameter, d) for d in data]

    def fit(self):
        return ray.get([trainer.fit.remote() for trainer in self.trainers])


import random

values = list(range(200))
random.Random(1).shuffle(values)
assert ray.get(quick_sort_distributed.remote(list(values))) == list(range(200))
supervisors = [Supervisor.remote(1, [1, 2]), Supervisor.remote(2, [1, 2])]
assert ray.get([each.fit.remote() for each in supervisors]) == [[1, 2], [2, 4]]
