"""Groups inside one batch, where a key never spans two."""

import ray

ds = ray.data.from_items([{"k": "ab"[i % 2], "x": i} for i in range(6)], override_num_blocks=1)


def sums(frame):
    return frame.groupby("k", as_index=False)["x"].sum()


print(ds.map_batches(sums, batch_format="pandas", batch_size=None).take_all())
