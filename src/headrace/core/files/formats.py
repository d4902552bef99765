"""File formats: the suffixes by which each is known, and which reader, sink or predictor is for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headrace.core.door import Table

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2", ".lz4": "lz4"}
"""Suffixes of text files that are compressed as a whole."""

PART_SUFFIX = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)?"
"""How the name of a part may end, behind the first dot; an output knows its parts by it."""


class DataFormat(msgspec.Struct, frozen=True):
    """A format of rows: its suffixes, in small letters with their dots, and the reader for it.

    ``options`` are those that the reader takes for this format. ``compressible``: one of a compression may follow.
    ``writer``: where the ``Format`` is that writes it, ``"module:Class"``; then there is a verb ``write_<name>``.
    """

    name: str
    suffixes: tuple[str, ...]
    reader: str
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    compressible: bool = False
    writer: str = ""

    def all_suffixes(self) -> tuple[str, ...]:
        """Return the suffixes, with those of compressed files.

        >>> FORMATS.ours["csv"].all_suffixes()
        ('.csv', '.csv.gz', '.csv.zst', '.csv.bz2', '.csv.lz4')
        """
        endings = ("", *COMPRESSIONS) if self.compressible else ("",)
        return tuple(suffix + ending for suffix in self.suffixes for ending in endings)


_OURS = {
    each.name: each
    for each in (
        DataFormat(
            "parquet", (".parquet", ".pq", ".parq"), "read_parquet", writer="headrace.sinks.parquet:Parquet"
        ),
        DataFormat("csv", (".csv",), "read_csv", compressible=True, writer="headrace.sinks.text:Csv"),
        DataFormat("tsv", (".tsv",), "read_csv", {"delimiter": "\t"}, compressible=True),
        DataFormat(
            "json",
            (".jsonl", ".ndjson", ".json"),
            "read_json",
            compressible=True,
            writer="headrace.sinks.json:Json",
        ),
        DataFormat("text", (".txt", ".text", ".log"), "read_text", compressible=True),
        DataFormat(
            "images",
            (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif", ".webp"),
            "read_images",
            writer="headrace.annex.formats.images:Images",
        ),
        DataFormat("orc", (".orc",), "read_orc"),
        DataFormat("avro", (".avro",), "read_avro"),
        DataFormat("numpy", (".npy", ".npz"), "read_numpy", writer="headrace.sinks.numpy:Numpy"),
        DataFormat(
            "webdataset",
            (".tar", ".tgz"),
            "read_webdataset",
            writer="headrace.annex.formats.webdataset.members:WebDataset",
            compressible=True,
        ),
        DataFormat(
            "tfrecords",
            (".tfrecord", ".tfrecords"),
            "read_tfrecords",
            compressible=True,
            writer="headrace.annex.formats.tfrecords.sink:TFRecords",
        ),
        DataFormat(
            "audio",
            (".wav", ".flac", ".mp3", ".ogg", ".oga", ".opus", ".aiff", ".aif", ".au", ".caf", ".w64"),
            "read_audio",
        ),
        DataFormat(
            "video",
            (
                *(".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi", ".mpg", ".mpeg", ".ts", ".m2ts", ".mts"),
                *(".flv", ".wmv", ".asf", ".3gp", ".ogv", ".mxf"),
            ),
            "read_video",
        ),
        DataFormat("binary", (), "read_binary_files"),
    )
}
FORMATS: Table[DataFormat] = Table("formats", _OURS, attributes=("suffixes", "reader", "all_suffixes"))
"""Formats of rows by their names, as on the command line."""

WRITTEN = tuple(each.name for each in _OURS.values() if each.writer)


def written_as(kind: str) -> DataFormat | None:
    """Return the format of ours that a plan calls its parts by; None for another one, and for tables.

    >>> written_as("TFRecord").name, written_as("CSV").reader, written_as("Delta table")
    ('tfrecords', 'read_csv', None)
    """
    name = kind.lower()
    written = (each for each in _OURS.values() if each.writer)
    return next((each for each in written if name in (each.name, each.name.removesuffix("s"))), None)


MODELS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "onnx": {"onnx": (".onnx",)},
    "sklearn": {"skops": (".skops",), "pickle": (".pkl", ".pickle", ".joblib")},
    "torch": {"export": (".pt2",), "pickle": (".pt", ".pth"), "safetensors": (".safetensors",)},
    "xgboost": {"ubj": (".ubj",)},
}
"""Formats of models by library: a model's content decides first, its suffix only where the content does not."""


def data_format(path: str) -> DataFormat | None:
    """Return the format of rows that a file's name tells; None if it tells none.

    >>> data_format("trips/JAN.CSV.gz").name, data_format("trips/jan")
    ('csv', None)
    """
    name = path.lower()
    ours = next((each for each in _OURS.values() if name.endswith(each.all_suffixes())), None)
    return ours or next(
        (each for each in FORMATS.usable().values() if name.endswith(each.all_suffixes())), None
    )


def suffixes_read_by(reader: str) -> tuple[str, ...]:
    """Return the suffixes of the files that a reader looks for in a folder."""
    return tuple(suffix for each in _OURS.values() if each.reader == reader for suffix in each.all_suffixes())


def compressed_suffixes(suffix: str, *compressions: str) -> dict[str | None, str]:
    """Return the suffix of a part by its compression, None included.

    >>> compressed_suffixes("csv", "gzip")
    {None: 'csv', 'gzip': 'csv.gz'}
    """
    endings = {compression: ending for ending, compression in COMPRESSIONS.items()}
    return {None: suffix, **{each: suffix + endings[each] for each in compressions}}


def model_format(path: str, library: str) -> str | None:
    """Return the format of a library's model that a file's name tells; None if it tells none.

    >>> model_format("model.PT", "torch"), model_format("model.bin", "torch")
    ('pickle', None)
    """
    name = path.lower()
    formats = MODELS[library].items()
    return next((each for each, suffixes in formats if name.endswith(suffixes)), None)


def reader_of(path: str) -> str:
    """Return which reader a file is for by its name; "" if that is not known.

    >>> reader_of("trips/JAN.CSV"), reader_of("trips/jan")
    ('read_csv', '')
    """
    by_name = data_format(path)
    return "" if by_name is None else by_name.reader
