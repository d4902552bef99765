"""ResNets in plain torch (He et al. 2015, arXiv:1512.03385), a BERT to go with them, and seeded random weights."""

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


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1, and a short cut around them; the stride is the middle one's."""

    def __init__(self, inner: int, width: int, stride: int) -> None:
        super().__init__()
        outer = 4 * width
        self.path = nn.Sequential(
            nn.Conv2d(inner, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, outer, 1, bias=False),
            nn.BatchNorm2d(outer),
        )
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inner != outer:
            self.short = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.path(x) + self.short(x))


class ResNet50(nn.Module):
    """(n, 224, 224, 3) uint8 → the best class, (n,) int64; it computes in its weights' dtype."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1) * 255)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1) * 255)
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks, inner = list[nn.Module](), 64
        for width, depth in ((64, 3), (128, 4), (256, 6), (512, 3)):
            for i in range(depth):
                blocks.append(Bottleneck(inner, width, 2 if i == 0 and width > 64 else 1))
                inner = 4 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inner, 1000)

    def forward(self, pixels: Tensor) -> Tensor:
        x = (pixels.permute(0, 3, 1, 2).to(self.mean.dtype) - self.mean) / self.std
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits.argmax(1)


class Bert(nn.Module):
    """Token ids and their mask, (n, k) int64 → (n, 768) float32: the mean over tokens of a BERT of base size."""

    def __init__(self, vocabulary: int = 30_522) -> None:
        from transformers import BertConfig, BertModel

        super().__init__()
        self.encoder = BertModel(BertConfig(vocab_size=vocabulary), add_pooling_layer=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(states.dtype)
        mean: Tensor = (states * weights).sum(1) / weights.sum(1)
        return mean.float()


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
