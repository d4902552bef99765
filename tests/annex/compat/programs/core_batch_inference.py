"""The pattern of sharding by hand: a model that is put once, tasks and actors over shards."""

import numpy as np
import ray


class Model:
    def __init__(self, weights):
        self.weights = weights

    def predict(self, values):
        return values @ self.weights


@ray.remote
def score(model, shard):
    return model.predict(shard).sum()


@ray.remote
class Scorer:
    def __init__(self, model):
        self.model = model

    def score(self, shard):
        return self.model.predict(shard).sum()


shards = [np.full((10, 3), i) for i in range(4)]
model = ray.put(Model(np.arange(3)))
print([int(each) for each in ray.get([score.remote(model, shard) for shard in shards])])
scorers = [Scorer.remote(model) for _ in range(2)]
print([int(each) for each in ray.get([scorers[i % 2].score.remote(shard) for i, shard in enumerate(shards)])])
