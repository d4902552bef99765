import numpy as np
import ray

print(ray.data.from_items([{"food": "spam", "price": 9.34}, {"food": "ham", "price": 5.37}]))
print(ray.data.from_numpy(np.ones((3, 2, 2))))
print(ray.data.range(3))
print(ray.data.range(30).map(lambda row: row).materialize())


def double(batch):
    return {"id": batch["id"] * 2}


print(ray.data.range(8).map(lambda row: row).map_batches(double))
