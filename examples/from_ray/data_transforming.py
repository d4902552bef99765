# The calls are those of ray-project/ray, doc/source/data/transforming-data.rst.
import os
from typing import Any

import numpy as np
import pandas as pd

from headrace.compat import ray


def parse(row: dict[str, Any]) -> dict[str, Any]:
    row["filename"] = os.path.basename(row["path"])
    return row


def duplicate(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row] * 2


def increase(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    batch["id"] = np.clip(batch["id"] + 4, 0, 255)
    return batch


def drop_nas(batch: pd.DataFrame) -> pd.DataFrame:
    return batch.dropna()


class Stateful:
    def __init__(self, add: int):
        self.add = add

    def __call__(self, row: dict[str, Any], times: int = 1) -> dict[str, Any]:
        return {"id": row["id"] * times + self.add}


ds = ray.data.from_items([{"path": "a/b.png"}]).map(parse)
assert ds.take_all() == [{"path": "a/b.png", "filename": "b.png"}]
assert [row["id"] for row in ray.data.range(3).flat_map(duplicate).take_all()] == [0, 0, 1, 1, 2, 2]
assert ray.data.range(3).map_batches(increase, batch_size=2, batch_format="numpy").max("id") == 6
holes = ray.data.from_pandas(pd.DataFrame({"a": [1.0, None]}))
assert holes.map_batches(drop_nas, batch_format="pandas").count() == 1
mapped = ray.data.range(4).map(Stateful, fn_constructor_args=[5], fn_kwargs={"times": 2}, concurrency=2)
assert sorted(row["id"] for row in mapped.take_all()) == [5, 7, 9, 11]
assert (
    ray.data.range(10).map(lambda row: row, num_cpus=1).repartition(num_blocks=4).materialize().count() == 10
)
assert ray.data.range(10).filter(lambda row: row["id"] % 2 == 0, concurrency=2).count() == 5
