"""A PyTorch model on every GPU of the machine: one actor each, work as it becomes free.

The weights are `put` once; each actor moves them to the device that it was given, and sees no other. Without a
device this says so and ends; `--device cpu` runs it anyway.
"""

import argparse
import time
from typing import Any

import numpy as np
import torch
from torch import nn

import headrace as hr


class Classifier:
    """Holds the network on its device; the devices that an actor was given are numbered from 0."""

    def __init__(self, network: nn.Module, device: str) -> None:
        self.device = torch.device(device, 0) if device == "cuda" else torch.device(device)
        self.network = network.to(self.device).eval()

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return the class of each image: (n, pixels) float32 in, (n,) int64 out."""
        with torch.inference_mode():
            scores = self.network(torch.from_numpy(images).to(self.device))
            return scores.argmax(dim=1).cpu().numpy()


def make_network(pixels: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(pixels, 512), nn.ReLU(), nn.Linear(512, 10))


def predict(actor: Any, images: np.ndarray) -> Any:
    return actor.predict(images)


def main() -> None:
    parser = argparse.ArgumentParser(description="A PyTorch model on every GPU, one actor each.")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batches", type=int, default=50, help="how many batches (default: 50)")
    parser.add_argument("--rows", type=int, default=4_096, help="images in a batch (default: 4,096)")
    parser.add_argument("--pixels", type=int, default=3_072, help="numbers in an image (default: 3,072)")
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    batch = rng.random((arguments.rows, arguments.pixels), np.float32)
    network = make_network(arguments.pixels)
    with hr.connect() as executor:
        gpus = int(executor.limits.num_gpus)
        if arguments.device == "cuda" and not gpus:
            print("there is no GPU that this process may use: nothing to do (--device cpu runs it anyway)")
            return
        pool = executor.actor_pool(
            Classifier,
            executor.put(network),
            arguments.device,
            size=gpus if arguments.device == "cuda" else 1,
            num_gpus=1 if arguments.device == "cuda" else 0,
        )
        began = time.perf_counter()
        found = list(pool.map(predict, (batch + i for i in range(arguments.batches))))
        seconds = time.perf_counter() - began
        rows = sum(map(len, found))
        print(f"{rows:,} images, {rows / seconds:,.0f} a second, the model's load included")
        counts = np.bincount(np.concatenate(found), minlength=10)
        print("images of each class:", " ".join(map(str, counts)))


if __name__ == "__main__":
    main()
