"""A model of PyTorch in an actor."""

import ray
import torch


class Net:
    def __init__(self):
        self.net = torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(self.net.weight)

    def __call__(self, batch):
        with torch.inference_mode():
            found = self.net(torch.as_tensor(batch["x"], dtype=torch.float32))
        return {"prediction": found.numpy()[:, 0]}


ds = ray.data.range_tensor(4, shape=(2,)).rename_columns({"data": "x"})
print(ds.map_batches(Net, concurrency=1, batch_size=2).take_all())
print(ds.map(lambda row: {"t": torch.ones(2)}).take(1))
