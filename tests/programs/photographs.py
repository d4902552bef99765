"""Photographs through a residual network of PyTorch, with a class that loads it once per worker."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import headrace as hr

torch.manual_seed(1)


class Residual(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.last = torch.nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        x = torch.relu(x + self.second(x))
        return self.last(x.mean(dim=(2, 3)))


class Classify:
    def __init__(self, weights: str) -> None:
        self.model = Residual()
        self.model.load_state_dict(torch.load(weights))
        self.model.eval()

    def __call__(self, batch):
        return {"path": batch["path"], "kind": kinds(self.model, batch["image"])}


def kinds(model, images):
    with torch.inference_mode():
        scores = model(torch.from_numpy(np.array(images)).permute(0, 3, 1, 2).float() / 255)
    return scores.argmax(dim=1).numpy()


if __name__ == "__main__":
    Path("photos").mkdir()
    random = np.random.default_rng(1)
    for number in range(60):
        pixels = random.integers(0, 255, (40 + number, 50, 3), np.uint8)
        Image.fromarray(pixels).save(f"photos/{number:03d}.png")
    network = Residual().eval()
    torch.save(network.state_dict(), "weights.pt")

    photos = hr.read_images("photos/", size=(32, 32), include_paths=True)
    sorted_out = photos.map_batches(
        Classify, fn_constructor_args=["weights.pt"], batch_size=16, concurrency=2
    )
    assert sorted_out.write_parquet("kinds/").rows == 60
    rows = hr.read_parquet("kinds/").take_all()
    assert [Path(row["path"]).name for row in rows] == [f"{number:03d}.png" for number in range(60)]
    images = np.stack([row["image"] for row in photos.take_all()])
    by_hand = [int(kinds(network, image[None])[0]) for image in images]
    assert [row["kind"] for row in rows] == by_hand
