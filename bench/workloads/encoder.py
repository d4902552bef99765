"""An encoder like Whisper's: two convolutions over time, then layers of attention; the mean over time comes out."""

from __future__ import annotations

from torch import Tensor, nn


class Encoder(nn.Module):
    """(n, frames, mels) → (n, width)."""

    def __init__(self, mels: int, width: int, layers: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, width, 3, padding=1, bias=False)
        self.second = nn.Conv1d(width, width, 3, stride=2, padding=1, bias=False)
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)

    def forward(self, spectra: Tensor) -> Tensor:
        gelu = nn.functional.gelu
        x = gelu(self.second(gelu(self.first(spectra.transpose(1, 2)))))
        mean: Tensor = self.layers(x.transpose(1, 2)).mean(1)
        return mean
