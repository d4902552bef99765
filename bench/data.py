"""The benchmark's data: made once, kept in a folder that git ignores.

The taxi rides, the news and the photographs repeat real samples where ``$BENCH_SAMPLES`` (``../shared/data``) has
them; else they are generated in their likeness. A folder's name carries everything that shaped it, so that
another scale, source or `LAYOUT` makes another folder.
"""

from __future__ import annotations

import importlib
import io
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.random import Generator
from numpy.typing import NDArray

from bench.steps import COORDINATES, FLOATS, STRINGS

LAYOUT = 1
ROOT = Path(__file__).resolve().parent.parent
SAMPLES = Path(os.environ.get("BENCH_SAMPLES", ROOT.parent / "shared" / "data"))
FILES = 12
GROUPS = 4  # row groups per file

Columns = dict[str, NDArray[Any]]


def ensure(dataset: str, cache: Path, scale: float) -> Path:
    """The folder that holds `dataset`, making it first if it is not there."""
    sample = SAMPLES / SOURCES[dataset] if dataset in SOURCES else None
    origin = "real" if sample and sample.exists() else "made"
    folder = cache / f"{dataset}-{origin}-v{LAYOUT}-x{scale:g}"
    if not folder.exists():
        # A folder of our own, renamed when complete: an interrupted run leaves no half a data set.
        making = cache / f"making-{os.getpid()}-{folder.name}"
        making.mkdir(parents=True)
        try:
            MAKERS[dataset](making, scale)
            making.rename(folder)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder


def taxi_sample() -> Columns:
    """50,000 rides: fares, passengers and four coordinates."""
    path = SAMPLES / SOURCES["taxi"]
    names = ["fare_amount", "passenger_count", *COORDINATES]
    if path.exists():
        table = pq.read_table(path, columns=names)
        return {name: table[name].to_numpy() for name in names}
    rng, n = np.random.default_rng(1), 50_000
    centres = np.where(rng.random(n) < 0.02, 0.0, 1.0)  # some rides have no position
    sample: Columns = {
        "fare_amount": np.round(2.5 + rng.gamma(1.4, 6.0, n), 1),
        "passenger_count": rng.choice(7, n, p=(0.003, 0.69, 0.147, 0.043, 0.021, 0.071, 0.025)),
    }
    for name, middle in zip(COORDINATES, (-73.98, 40.75, -73.98, 40.75), strict=True):
        sample[name] = (middle + rng.normal(0, 0.03, n)) * centres
    return sample


def taxi_month(sample: Columns, month: int, n: int) -> pa.Table:
    """`n` rides of one month, drawn from the sample, each moved by about a hundred metres.

    The columns are the sample's, in no order as there; only the time is a timestamp, as in the
    files that the city publishes. Nobody reads `key`: it is there to be projected away.
    """
    rng = np.random.default_rng(month)
    picked = rng.integers(0, len(sample["fare_amount"]), n)
    start = np.datetime64(f"2014-{month:02d}", "s")
    end = np.datetime64(f"2014-{month + 1:02d}" if month < 12 else "2015-01", "s")
    times = start + rng.integers(0, (end - start).astype("int64"), n).astype("m8[s]")
    stamps = pc.strftime(pa.array(times), format="%Y-%m-%d %H:%M:%S")
    serial = pc.cast(pa.array(np.arange(n)), pa.string())
    columns = {
        "key": pc.binary_join_element_wise(stamps, serial, "."),
        "fare_amount": sample["fare_amount"][picked],
        "pickup_datetime": times.astype("M8[us]"),
    }
    for name in COORDINATES:
        columns[name] = np.round(sample[name][picked] + rng.normal(0, 0.001, n), 6)
    columns["passenger_count"] = sample["passenger_count"][picked].astype("int64")
    return pa.table(columns)


def write(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, row_group_size=max(1, -(-table.num_rows // GROUPS)))


def make_tiny(folder: Path, scale: float) -> None:
    write(taxi_month(taxi_sample(), 1, 100), folder / "rides.parquet")


def make_taxi(folder: Path, scale: float) -> None:
    sample = taxi_sample()
    for month in range(1, FILES + 1):
        table = taxi_month(sample, month, max(1, round(1_000_000 * scale)))
        write(table, folder / f"rides-2014-{month:02d}.parquet")


def make_small_files(folder: Path, scale: float) -> None:
    make_files(folder, max(1, round(20_000 * scale)), 50)


def make_medium_files(folder: Path, scale: float) -> None:
    make_files(folder, max(1, round(200 * scale)), 20_000)


def make_files(folder: Path, count: int, rows: int) -> None:
    rides = taxi_month(taxi_sample(), 1, count * rows)
    for number in range(count):
        pq.write_table(rides.slice(number * rows, rows), folder / f"rides-{number:05d}.parquet")


def make_large_files(folder: Path, scale: float) -> None:
    sample = taxi_sample()
    for month in range(1, 4):
        table = taxi_month(sample, month, max(1, round(4_000_000 * scale)))
        pq.write_table(table, folder / f"rides-{month}.parquet", row_group_size=max(1, table.num_rows // 4))


def make_texts(folder: Path, scale: float) -> None:
    from bench.workloads import texts

    texts.make(folder, scale, SAMPLES / SOURCES["texts"])


def of_workload(module: str, name: str = "make") -> Callable[[Path, float], None]:
    """The maker of a workload, which is imported when it is needed."""

    def make(folder: Path, scale: float) -> None:
        getattr(importlib.import_module(f"bench.workloads.{module}"), name)(folder, scale)

    return make


def make_wide(folder: Path, scale: float) -> None:
    total = max(FILES, round(800_000 * scale))
    for file in range(FILES):
        n = total * (file + 1) // FILES - total * file // FILES
        write(wide_table(np.random.default_rng(file), n), folder / f"features-{file:02d}.parquet")


def wide_table(rng: Generator, n: int) -> pa.Table:
    """200 floats that do not compress, and strings of few, some and all-different values."""
    columns: dict[str, pa.Array] = {
        name: pa.array(rng.standard_normal(n, dtype=np.float32)) for name in FLOATS
    }
    words = np.array(("quiet", "driver", "clean", "car", "late", "friendly", "long", "way", "ok"))
    texts = (
        np.array([f"city-{i}" for i in range(40)])[rng.integers(0, 40, n)],
        np.array([f"segment-{i:05d}" for i in range(2_000)])[rng.integers(0, 2_000, n)],
        np.array([f"{i:016x}" for i in rng.integers(0, 2**63, n)]),
        np.array([" ".join(words[row]) for row in rng.integers(0, len(words), (n, 5))]),
    )
    columns.update((name, pa.array(text)) for name, text in zip(STRINGS, texts, strict=True))
    return pa.table(columns)


def make_images(folder: Path, scale: float) -> None:
    """1,000 JPEG files: the samples in turn."""
    samples = SAMPLES / SOURCES["images"]
    if samples.exists():
        photographs = [path.read_bytes() for path in sorted(samples.iterdir())]
    else:
        photographs = [synthetic_jpeg(np.random.default_rng(seed)) for seed in range(91)]
    for i in range(max(1, round(1_000 * scale))):
        (folder / f"{i:05d}.jpg").write_bytes(photographs[i % len(photographs)])


def synthetic_jpeg(rng: Generator) -> bytes:
    """Smooth colours with some grain, at the size and about the weight of a photograph."""
    from PIL import Image

    size = (500, int(rng.integers(333, 501)))
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    pixels += rng.normal(0, 12, pixels.shape).astype(np.int16)
    target = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(target, "JPEG", quality=85)
    return target.getvalue()


SOURCES = {
    "tiny": "nyc_taxi_50k.parquet",
    "taxi": "nyc_taxi_50k.parquet",
    "small_files": "nyc_taxi_50k.parquet",
    "medium_files": "nyc_taxi_50k.parquet",
    "large_files": "nyc_taxi_50k.parquet",
    "images": "images",
    "texts": "ag_news_test.csv",
}
MAKERS: dict[str, Callable[[Path, float], None]] = {
    "tiny": make_tiny,
    "taxi": make_taxi,
    "wide": make_wide,
    "small_files": make_small_files,
    "medium_files": make_medium_files,
    "large_files": make_large_files,
    "images": make_images,
    "small_images": of_workload("thumbnails", "make_loose"),
    "small_images_tar": of_workload("thumbnails", "make_tars"),
    "texts": make_texts,
    "documents": of_workload("documents"),
    "audio": of_workload("audio"),
}
