"""A function that yields its output in pieces."""

import numpy as np
import ray


def pieces(batch):
    for number in batch["id"]:
        yield {"id": np.full(int(number), number)}


class Splitter:
    def __call__(self, batch):
        for part in np.array_split(batch["id"], 2):
            yield {"part": part}


print(ray.data.range(4).map_batches(pieces).take_all())
print(ray.data.range(6).map_batches(Splitter, concurrency=1, batch_size=3).sum("part"))
