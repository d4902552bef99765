# The calls are those of ray-project/ray, doc/source/data/batch_inference.rst.
import numpy as np
import torch

from headrace.compat import ray


class TorchPredictor:
    def __init__(self):
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(in_features=8, out_features=1), torch.nn.Sigmoid())
        self.model.eval()

    def __call__(self, batch):
        tensor = torch.as_tensor(batch["data"], dtype=torch.float32)
        with torch.inference_mode():
            return {"output": self.model(tensor).numpy()}


ds = ray.data.from_numpy(np.ones((4, 8)))
predictions = ds.map_batches(TorchPredictor, compute=ray.data.ActorPoolStrategy(size=2))
predictions.show(limit=1)
assert all(0 < row["output"][0] < 1 for row in predictions.take_all())
