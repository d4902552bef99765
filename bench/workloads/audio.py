"""Sounds like speech to vectors: WAV files, their log-mel spectrum, and a small encoder like Whisper's."""

from __future__ import annotations

import io
import wave
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bench.workloads.texts import VECTOR

CLIPS = 200
RATE = 16_000
SECONDS = 10
MELS, WINDOW, HOP = 80, 400, 160


class Audio:
    """WAV bytes → a vector of 128 numbers; clips are cut or padded to ten seconds, as Whisper does with thirty."""

    batch_size: ClassVar[int] = 8
    outputs: ClassVar[dict[str, str]] = {"prediction": VECTOR}

    def __init__(self, threads: int = 1) -> None:
        import torch

        from bench.networks import seeded
        from bench.workloads.encoder import Encoder

        torch.set_num_threads(threads)
        self.torch = torch
        self.net = seeded(Encoder(MELS, 128))
        self.filters = mel_filters()

    def __call__(self, clips: Iterable[Any]) -> dict[str, NDArray[Any]]:
        spectra = np.stack([self.spectrum(samples(clip)) for clip in clips])
        with self.torch.inference_mode():
            return {"prediction": self.net(self.torch.from_numpy(spectra)).numpy()}

    def spectrum(self, sound: NDArray[np.float32]) -> NDArray[np.float32]:
        """(frames, mels): the logarithm of the energy in each band, every ten milliseconds."""
        frames = np.lib.stride_tricks.sliding_window_view(sound, WINDOW)[::HOP]
        power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW), axis=1)) ** 2
        logs = np.log10(np.maximum(power @ self.filters, 1e-10))
        result: NDArray[np.float32] = ((np.maximum(logs, logs.max() - 8) + 4) / 4).astype(np.float32)
        return result


def samples(clip: Any) -> NDArray[np.float32]:
    """The samples of a WAV file of 16 bits, one channel, between -1 and 1."""
    with wave.open(io.BytesIO(clip)) as sound:
        data = np.frombuffer(sound.readframes(sound.getnframes()), "<i2")
    result = np.zeros(RATE * SECONDS, np.float32)
    result[: len(data)] = data[: len(result)] / np.float32(32_768)
    return result


def mel_filters() -> NDArray[np.float64]:
    """(frequencies, mels): triangles that are equally wide on the mel scale."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, MELS + 2) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    result: NDArray[np.float64] = np.clip(np.minimum(rising, falling), 0, None)
    return result


def make(folder: Path, scale: float) -> None:
    """Clips of six to ten seconds: syllables of a few harmonics, with pauses and a little noise."""
    for number in range(max(4, round(CLIPS * scale))):
        rng = np.random.default_rng(number)
        sound = rng.normal(0, 0.01, RATE * int(rng.integers(6, SECONDS + 1)))
        at = 0
        while at < len(sound) - RATE // 4:
            length = int(rng.integers(RATE // 10, RATE // 4))
            t = np.arange(length) / RATE
            pitch = rng.uniform(90, 240)
            voice = sum(np.sin(2 * np.pi * pitch * k * t) / k for k in range(1, 12))
            sound[at : at + length] += 0.2 * voice * np.hanning(length)
            at += length + int(rng.integers(0, RATE // 5))
        with wave.open(str(folder / f"{number:05d}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes((sound.clip(-1, 1) * 32_767).astype("<i2").tobytes())
