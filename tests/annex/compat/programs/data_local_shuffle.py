"""A buffer that mixes rows: all of them come, in batches of the size."""

import ray

ds = ray.data.range(50)
batches = list(ds.iter_batches(batch_size=8, local_shuffle_buffer_size=20, local_shuffle_seed=1))
print([len(batch["id"]) for batch in batches])
ids = [int(i) for batch in batches for i in batch["id"]]
print(sorted(ids) == list(range(50)), ids != list(range(50)))
again = [
    int(i)
    for b in ds.iter_batches(batch_size=8, local_shuffle_buffer_size=20, local_shuffle_seed=1)
    for i in b["id"]
]
print(again == ids)
