"""Compressed files and images that were cut short: noticed in each, also by who leaves bad rows out."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources.csv.source import CsvSource
from headrace.sources.images.source import ImageSource
from headrace.sources.json.source import JsonSource
from headrace.sources.lines import TextSource
from headrace.testing.sources import read_all

ROWS = 3000


SOURCES = [(CsvSource, "{0},v{0}\n"), (JsonSource, '{{"x": {0}}}\n'), (TextSource, "line {0}\n")]


@pytest.mark.parametrize(("source", "line"), SOURCES)
def test_one_that_ends_behind_what_types_are_settled_by(tmp_path: Path, source: Any, line: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(
        gzip.compress("".join(line.format(n * 7919 % 100_003) for n in range(200_000)).encode())[:-99]
    )
    for bad in (None, lambda *_: None):
        with pytest.raises(UnreadableFile, match="Truncated compressed stream"):
            read_all(source(path), bad=bad)
    with pytest.raises(ArgumentError, match="block_bytes is at least 1"):
        source(path, block_bytes=0)


@pytest.mark.parametrize("packing", ["gzip", "zstd", "bz2", "lz4"])
@pytest.mark.parametrize(("source", "line"), SOURCES)
def test_a_compressed_stream_without_its_end(tmp_path: Path, source: Any, line: str, packing: str) -> None:
    path = tmp_path / "a"
    packed = pa.BufferOutputStream()
    with pa.CompressedOutputStream(packed, packing) as stream:
        stream.write("".join(line.format(n) for n in range(ROWS)).encode())
    data = packed.getvalue().to_pybytes()
    path.write_bytes(data)
    assert read_all(source(path)).num_rows >= ROWS - 1
    for cut in (1, 4, len(data) // 2):
        path.write_bytes(data[:-cut])
        for bad in (None, lambda *_: None):
            with pytest.raises(UnreadableFile, match="Truncated compressed stream"):
                read_all(source(path), bad=bad)


@pytest.mark.parametrize("format_", ["png", "jpeg", "bmp", "gif", "tiff", "webp"])
def test_an_image_without_its_end(tmp_path: Path, format_: str) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (20, 30, 3), np.uint8)
    whole = io.BytesIO()
    Image.fromarray(pixels).save(whole, format_)
    path = tmp_path / "a.png"
    for cut in (50, len(whole.getvalue()) // 2):
        path.write_bytes(whole.getvalue()[:-cut])
        with pytest.raises(UnreadableFile, match=r"Cannot read the image .*a\.png"):
            read_all(ImageSource(path))
