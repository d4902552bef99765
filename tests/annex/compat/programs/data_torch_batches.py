"""Tensors of PyTorch, one for each column."""

import numpy as np
import ray
import torch

ds = ray.data.from_items([{"x": i, "y": i / 2} for i in range(5)])
for batch in ds.iter_torch_batches(batch_size=2):
    print({name: (tensor.tolist(), str(tensor.dtype)) for name, tensor in batch.items()})
one = next(iter(ds.iter_torch_batches(batch_size=3, dtypes=torch.float32)))
print({name: str(tensor.dtype) for name, tensor in one.items()})
one = next(iter(ds.iter_torch_batches(batch_size=3, dtypes={"x": torch.int32, "y": torch.float16})))
print({name: str(tensor.dtype) for name, tensor in one.items()})
images = ray.data.from_numpy(np.zeros((4, 2, 3), dtype=np.uint8))
print([(batch["data"].shape, batch["data"].dtype) for batch in images.iter_torch_batches(batch_size=4)])
print(len(list(ds.iter_torch_batches(batch_size=2, drop_last=True))))
