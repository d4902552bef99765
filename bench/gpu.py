"""``python -m bench.gpu``: whether a GPU is kept busy.

The ceiling is the bare model: a loop over tensors that are on the device already. Beside it, Headrace fed from
memory, where nothing but the library can keep the device waiting; and fed from JPEG files and from text, where the
cores may: what they decode or tokenize by themselves is measured, too.

Rates are those of a long run less a short one, so that what happens once (start, imports, the model's way to the
device) cancels.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

import headrace as hr
from bench import data, given, jobs, rounds
from headrace.core.source_ports import Bad
from headrace.core.work import Split
from headrace.sources.range import RangeSource

Batch = Mapping[str, NDArray[Any]]

BATCH, TOKENS = 256, 128
SHAPE = (224, 224, 3)
BAR = 0.95  # fed from memory, of the bare loop's rate
WORDS = 2_000


class Preloaded(RangeSource):
    """The same images over and over: ``n`` rows that cost nothing to read."""

    def __init__(self, n: int) -> None:
        super().__init__(n, rows_per_split=4 * BATCH)
        self._batch: pa.RecordBatch | None = None

    def schema(self) -> pa.Schema:
        return self._images().schema

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        for start in range(split.start, split.stop, BATCH):
            yield self._images().slice(0, min(BATCH, split.stop - start))

    def _images(self) -> pa.RecordBatch:
        if self._batch is None:
            column = pa.FixedShapeTensorArray.from_numpy_ndarray(images())
            self._batch = pa.record_batch([column], names=["image"])
        return self._batch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batch": None}


def images() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (BATCH, *SHAPE), dtype=np.uint8)


class Tokens:
    """Text → ids and their mask, by a vocabulary of our own."""

    def __init__(self) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        known = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *vocabulary()])}
        self.tokenizer = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        self.tokenizer.enable_truncation(TOKENS)
        self.tokenizer.enable_padding(length=TOKENS)

    def __call__(self, batch: Batch) -> dict[str, NDArray[Any]]:
        found = self.tokenizer.encode_batch([str(text) for text in batch["text"]])
        return {
            "input_ids": np.array([each.ids for each in found], np.int64),
            "attention_mask": np.array([each.attention_mask for each in found], np.int64),
        }


def vocabulary() -> list[str]:
    return [f"word{i}" for i in range(WORDS)]


def lines(count: int) -> list[str]:
    """Lines of 20 to 120 words."""
    rng, words = np.random.default_rng(0), np.array(vocabulary())
    return [" ".join(words[rng.integers(0, WORDS, length)]) for length in rng.integers(20, 121, count)]


# ---------------------------------------------------------------- rates, all in rows per second


def bare(network: Any, inputs: Sequence[Any], batches: int) -> float:
    """The model alone, over tensors that are where it is."""
    import torch

    def loop(count: int) -> float:
        began = time.perf_counter()
        with torch.inference_mode():
            for _ in range(count):
                found = network(*inputs)
        found.cpu()  # waits for the device
        return time.perf_counter() - began

    loop(10)  # kernels are chosen at first
    return batches * len(inputs[0]) / loop(batches)


def rate(dataset: Callable[[int], hr.Dataset], rows: int, scratch: Path) -> float:
    """What a job does in a second beyond its first quarter."""
    least = max(1, rows // 4)
    seconds = []
    for count in (least, rows):
        out = scratch / "out"
        shutil.rmtree(out, ignore_errors=True)
        rows_in = dataset(count).with_options(progress=False)
        began = time.perf_counter()
        result = rows_in.write_parquet(out)
        seconds.append(time.perf_counter() - began)
        if result.rows != count:
            raise SystemExit(f"{result.rows:,} rows came out instead of {count:,}")
    return (rows - least) / max(seconds[1] - seconds[0], 1e-9)


def predicted(rows: hr.Dataset, network: Any, inputs: Sequence[str], gpus: float | None) -> hr.Dataset:
    """``gpus`` None: where there is none, to try this out."""
    model = hr.TorchPredictor(network, dtype="bfloat16")
    return rows.predict(
        model, inputs=list(inputs), keep="none", batch_size=BATCH, num_gpus=gpus, concurrency=1
    )


def decoded(batch: Batch) -> dict[str, NDArray[Any]]:
    """As much as one look at each image, so that decoding is all the work."""
    return {"first": batch["image"][:, 0, 0, 0]}


def shape_of(batch: Batch) -> dict[str, NDArray[Any]]:
    return {"first": batch["input_ids"][:, 0]}


def measure_images(options: argparse.Namespace, scratch: Path, device: str, gpus: float | None) -> None:
    import torch

    from bench.networks import ResNet50, seeded

    network = seeded(ResNet50()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    there = seeded(ResNet50()).to(device=device, dtype=torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    ceiling = bare(there, [torch.from_numpy(images()).to(device)], max(1, options.images // BATCH))
    del there
    show("ResNet-50, bare loop", ceiling)

    memory = rate(
        lambda n: predicted(hr.Dataset.from_source(Preloaded(n)), network, ["image"], gpus),
        options.images,
        scratch,
    )
    verdict = "met" if memory >= BAR * ceiling else "missed"
    show("  from memory", memory, ceiling, f"; the bar of {BAR:.0%} is {verdict}")

    folder = data.ensure("images", options.data, options.images / 1_000)
    files = [str(path) for path in sorted(folder.iterdir())]

    def pixels(n: int) -> hr.Dataset:
        return hr.read_images(files[:n], size=SHAPE[:2])

    decoding = rate(
        lambda n: pixels(n).map_batches(decoded, columns=["image"], num_cpus=1), len(files), scratch
    )
    jpegs = rate(lambda n: predicted(pixels(n), network, ["image"], gpus), len(files), scratch)
    show("  decoding alone", decoding)
    show("  from JPEG files", jpegs, min(decoding, memory), explained(decoding, memory))


def measure_text(options: argparse.Namespace, scratch: Path, device: str, gpus: float | None) -> None:
    import torch

    from bench.networks import Bert, seeded

    network = seeded(Bert())
    sample = Tokens()({"text": np.array(lines(BATCH))})
    inputs = [torch.from_numpy(sample[name]).to(device) for name in ("input_ids", "attention_mask")]
    there = seeded(Bert()).to(device=device, dtype=torch.bfloat16)
    ceiling = bare(there, inputs, max(1, options.texts // BATCH))
    del there
    show(f"BERT, {TOKENS} tokens, bare loop", ceiling)

    def tokens(n: int) -> hr.Dataset:
        file = scratch / f"{n}.txt"
        file.write_text("".join(line + "\n" for line in lines(n)))
        return hr.read_text(str(file)).map_batches(Tokens, num_cpus=1)

    tokenizing = rate(lambda n: tokens(n).map_batches(shape_of, num_cpus=1), options.texts, scratch)
    texts = rate(
        lambda n: predicted(tokens(n), network, ["input_ids", "attention_mask"], gpus), options.texts, scratch
    )
    show("  tokenizing alone", tokenizing)
    show("  from text", texts, min(tokenizing, ceiling), explained(tokenizing, ceiling))


def explained(preparing: float, device: float) -> str:
    slower = "the cores" if preparing < device else "the device"
    return (
        f" of what {slower} can do; the device idles at least {max(0.0, 1 - preparing / device):.0%} for it"
    )


def show(name: str, found: float, beside: float | None = None, note: str = "") -> None:
    share = "" if beside is None else f"  {found / beside:6.1%}"
    print(f"{name:30} {found:10,.0f} rows/s{share}{note}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    if jobs.missing("torch"):
        print("bench.gpu: left out, torch is not installed")
        return 0
    import torch

    if not torch.cuda.is_available():
        print("bench.gpu: left out, there is no CUDA device")
        return 0
    options.data = options.data.resolve()
    options.data.mkdir(parents=True, exist_ok=True)
    print(
        f"{torch.cuda.get_device_name()}; torch {torch.__version__}; batches of {BATCH}, bfloat16", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="run-", dir=options.data) as scratch:
        measure_images(options, Path(scratch), "cuda", 1)
        if jobs.missing("transformers"):
            print("note: BERT left out: transformers is not installed")
        else:
            measure_text(options, Path(scratch), "cuda", 1)
    return 0


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument(
        "--images", type=given.count, default=20_000, help="(default 20000; 2 GB of JPEG files)"
    )
    result.add_argument("--texts", type=given.count, default=80_000, help="lines of text (default 80000)")
    rounds.add_data(result)
    return result


if __name__ == "__main__":
    sys.exit(main())
