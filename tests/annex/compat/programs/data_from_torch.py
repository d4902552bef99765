"""A dataset of PyTorch whose items are dicts: their keys become columns."""

import ray
import torch


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index >= 3:
            raise IndexError(index)
        return {"n": index, "square": index * index}


print(ray.data.from_torch(Squares()).take_all())
