"""A program for Ray, with one import changed: tasks, actors, a pool of them, and Ray Data."""

import numpy as np

from headrace.compat import ray


@ray.remote
def squared(values):
    return values**2


@ray.remote
class Predictor:
    def __init__(self, weights):
        self.weights = weights

    def predict(self, values):
        return values * self.weights


class Scorer:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, batch):
        batch["score"] = batch["id"] * self.factor
        return batch


if __name__ == "__main__":
    ray.init(num_cpus=2)
    parts = [np.arange(start, start + 100) for start in range(0, 1000, 100)]
    assert (
        np.concatenate(ray.get([squared.remote(part) for part in parts])).sum()
        == (np.arange(1000) ** 2).sum()
    )

    weights = ray.put(np.float64(2.5))
    actors = [Predictor.remote(weights) for _ in range(2)]
    pool = ray.util.ActorPool(actors)
    scores = list(pool.map(lambda actor, part: actor.predict.remote(part), parts))
    assert (np.concatenate(scores) == np.arange(1000) * 2.5).all()

    dataset = ray.data.range(1000).map_batches(Scorer, fn_constructor_args=[3], concurrency=2, batch_size=64)
    dataset.write_parquet("scores")
    rows = ray.data.read_parquet("scores").take_all()
    assert sorted(row["score"] for row in rows) == [3 * i for i in range(1000)]
    ray.shutdown()
