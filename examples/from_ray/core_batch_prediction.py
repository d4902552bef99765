# The calls are those of ray-project/ray, doc/source/ray-core/examples/batch_prediction.ipynb.
import tempfile

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from headrace.compat import ray
from headrace.compat.ray.util.actor_pool import ActorPool

folder = tempfile.mkdtemp()
files = []
for number in range(4):
    files.append(f"{folder}/{number}.parquet")
    pd.DataFrame({"passenger_count": np.arange(10) % 3}).to_parquet(files[-1])


def load_model():
    weights = np.zeros(100_000)

    def model(batch):
        model.payload = weights
        return pd.DataFrame({"score": batch["passenger_count"] % 2 == 0})

    return model


@ray.remote
def make_prediction(model, path):
    df = pq.read_table(path).to_pandas()
    result = model(df)
    print("rows:", len(result))
    return len(result)


@ray.remote
class Predictor:
    def __init__(self, model):
        self.model = model

    def predict(self, path):
        df = pq.read_table(path).to_pandas()
        return len(self.model(df))


model_ref = ray.put(load_model())
assert ray.get([make_prediction.remote(model_ref, path) for path in files]) == [10] * 4
actors = [Predictor.remote(model_ref) for _ in range(2)]
pool = ActorPool(actors)
for path in files:
    pool.submit(lambda actor, value: actor.predict.remote(value), path)
rows = 0
while pool.has_next():
    rows += pool.get_next()
assert rows == 40
