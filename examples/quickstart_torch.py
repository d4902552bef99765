"""PyTorch in batches: prepare on the CPU, predict with one worker or two.

The model is made here, so that nothing has to be fetched. A worker of the second stage makes it once, then gets
batches of two rows; the first stage prepares the next rows meanwhile.
"""

import numpy as np
import torch

import headrace as hr


def scaled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The preprocessing: no model, any core."""
    return {"data": (batch["data"] / 100).astype(np.float32)}


class Classifier:
    def __init__(self) -> None:  # once per worker
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(100, 1), torch.nn.Sigmoid()).eval()

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:  # once per batch
        inputs = torch.tensor(batch["data"])  # (2, 100)
        with torch.inference_mode():
            return {"output": self.model(inputs).numpy()}  # (2, 1)


def predictions(workers: int) -> hr.Dataset:
    data = hr.from_numpy(np.arange(1_000, dtype=np.float64).reshape(10, 100))
    return data.map_batches(scaled, num_cpus=1).map_batches(
        Classifier, batch_size=2, compute=hr.ActorPoolStrategy(size=workers)
    )


def main() -> None:
    predictions(1).show(limit=1)
    print(f"{len(predictions(2).take_all())} predictions by two workers")


if __name__ == "__main__":
    main()
