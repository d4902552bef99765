"""Functions that begin a dataset with files of rows that have a schema: ``read_orc``, ``read_avro``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.plan import ray_arguments
from headrace.readers.unfinished import warn_of_unfinished
from headrace.sources.files import PathArgument

__all__ = ["read_avro", "read_orc"]


@known_arguments(also=ray_arguments.READ)
def read_orc(
    paths: PathArgument,
    *,
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read ORC files as one dataset; each stripe is read on its own.

    Types are those that pyarrow gives ORC's: timestamps come in nanoseconds.

    Parameters
    ----------
    paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.orc`` files.
    include_paths
        Whether to add the string column ``path``, the file's absolute path.

    Raises
    ------
    NothingMatched, SchemaMismatch, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A file is cut short or damaged, with the stripe. Of a file with a single stripe, its rows can be set aside by
        ``on_error="reject"``. ORC has no checksums: damage in a file that is not compressed may not be noticed.

    Examples
    --------
    >>> import tempfile, headrace as hr, pyarrow as pa
    >>> from pyarrow import orc
    >>> file = f"{tempfile.mkdtemp()}/a.orc"
    >>> orc.write_table(pa.table({"id": [1, 2]}), file)
    >>> hr.read_orc(file).take_all()
    [{'id': 1}, {'id': 2}]
    """
    from headrace.sources.orc import OrcSource

    warn_of_unfinished(paths)
    return Dataset.from_source(OrcSource(paths, include_paths=include_paths).in_store(storage_options))


@known_arguments(also=ray_arguments.READ)
def read_avro(
    paths: PathArgument,
    *,
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read the records of Avro files (object container files) as rows. Needs the extra ``avro``.

    Dates, times, timestamps and decimals become Arrow's; UUIDs and enums become texts, records structs.
    An Avro file does not say how many blocks it has: one that was cut just between two is read as a shorter one.
    ``["null", x]`` is a column that may hold nulls; of a union of numbers, the widest is taken. Files may be
    compressed by deflate, snappy, zstandard, bzip2 or xz.

    Parameters
    ----------
    paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.avro`` files.
    include_paths
        Whether to add the string column ``path``, the file's absolute path.

    Raises
    ------
    MissingLibrary
        fastavro is not installed.
    NothingMatched, SchemaMismatch, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A file is cut short or no Avro file, or a column has no Arrow type, such as a union of texts and numbers:
        raised when the dataset is first looked at. A block is damaged, with its number: its rows can be set aside by
        ``on_error="reject"``.

    Examples
    --------
    >>> import pytest, tempfile, headrace as hr
    >>> fastavro = pytest.importorskip("fastavro")
    >>> schema = {"type": "record", "name": "trip", "fields": [{"name": "km", "type": "double"}]}
    >>> path = f"{tempfile.mkdtemp()}/a.avro"
    >>> with open(path, "wb") as file:
    ...     fastavro.writer(file, schema, [{"km": 1.5}, {"km": 2.5}])
    >>> hr.read_avro(path).take_all()
    [{'km': 1.5}, {'km': 2.5}]
    """
    from headrace.sources.avro import AvroSource

    warn_of_unfinished(paths)
    return Dataset.from_source(AvroSource(paths, include_paths=include_paths).in_store(storage_options))
