"""ResNet-18 in plain torch (He et al. 2015, arXiv:1512.03385), and seeded random weights."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Block(nn.Module):
    """Two 3x3 convolutions and a short cut around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet18(nn.Module):
    """(n, 224, 224, 3) uint8 → (n, 1000) logits."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1) * 255)
        widths = (64, 64, 128, 256, 512)
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(
            *(
                Block(inner if i == 0 else outer, outer, 2 if i == 0 and outer > 64 else 1)
                for inner, outer in itertools.pairwise(widths)
                for i in range(2)
            )
        )
        self.head = nn.Linear(512, 1000)

    def forward(self, pixels: Tensor) -> Tensor:
        x = (pixels.permute(0, 3, 1, 2).float() - self.mean) / self.std
        features: Tensor = self.blocks(self.stem(x)).mean((2, 3))
        logits: Tensor = self.head(features)
        return logits


def seeded(network: nn.Module, seed: int = 0) -> nn.Module:
    """The network with the same random weights in every process and thread, for inference.

    A generator of our own: the global one is shared by threads that build a model each.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.dim() > 1:
                inputs = parameter[0].numel()
                parameter.normal_(0, (2 / inputs) ** 0.5, generator=generator)
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.zeros_(layer.bias)
    return network.eval()
