"""Batches with columns that tensors cannot hold."""

import ray

ds = ray.data.from_items([{"x": 1, "s": "a"}, {"x": 2, "s": "b"}], override_num_blocks=1)
try:
    for batch in ds.iter_torch_batches(batch_size=2):
        print(sorted(batch))
except Exception as error:
    print("refused", isinstance(error, (TypeError, ValueError)))
