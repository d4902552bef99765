"""Functions that begin a dataset with ORC, Avro and TFRecord files, or with the tar archives of WebDataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.plan import ray_arguments
from headrace.readers.options import of_files
from headrace.sources.file_source import PathArgument

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_avro", "read_orc", "read_tfrecords", "read_webdataset"]


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
    paths, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.orc`` files.

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
    return of_files("headrace.annex.formats.orc:OrcSource", locals())


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
    paths, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.avro`` files.

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
    return of_files("headrace.annex.formats.avro:AvroSource", locals())


@known_arguments(also=ray_arguments.READ_WEBDATASET)
def read_webdataset(
    paths: PathArgument,
    *,
    suffixes: Sequence[str] | None = None,
    decoder: bool | None = True,
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read the samples of tar archives, plain or compressed, as WebDataset has them: a sample is a row.

    The members ``0001.jpg`` and ``0001.cls``, side by side, are the columns ``jpg`` and ``cls`` of the sample whose
    ``__key__`` is ``0001``: the key is all up to the first dot. A member that a sample lacks is null. An archive is
    read by one worker, from its start.

    Parameters
    ----------
    paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.tar``, ``.tar.gz``, ``.tgz`` files and the like.
    suffixes
        The columns to read, such as ``["jpg", "cls"]``. None: those that the first 64 samples of each of the first
        eight archives have; one that turns up later is then an error.
    decoder
        True makes values of the members, by the ends of their names: ``txt`` texts, ``cls`` int64, ``json`` what it
        holds, ``npy`` arrays, ``png``, ``jpg`` and the like pixels as RGB of shape (height, width, 3), all else
        bytes; pickles are never loaded. None or False: all are bytes, to be unpacked in ``map``.
    include_paths
        Whether to add the string column ``path``, the archive's absolute path.

    Raises
    ------
    ArgumentError
        ``suffixes`` is no list of names, or ``decoder`` a function.
    NothingMatched, InputChanged
        As for :func:`read_parquet`.
    SchemaMismatch
        Values of one column, in ``json`` or ``npy``, are of types that do not fit together.
    UnreadableFile
        An archive is damaged or cut short; or a member is, with its name, or has no column, or its sample's members
        are not side by side: with ``on_error="reject"`` only that sample is left out.

    Examples
    --------
    >>> import io, tarfile, tempfile, headrace as hr
    >>> file = f"{tempfile.mkdtemp()}/a.tar"
    >>> with tarfile.open(file, "w") as tar:
    ...     for name, data in [("0001.txt", b"one"), ("0001.cls", b"1"), ("0002.txt", b"two")]:
    ...         member = tarfile.TarInfo(name)
    ...         member.size = len(data)
    ...         tar.addfile(member, io.BytesIO(data))
    >>> hr.read_webdataset(file).take_all()
    [{'__key__': '0001', 'txt': 'one', 'cls': 1}, {'__key__': '0002', 'txt': 'two', 'cls': None}]
    """
    return of_files("headrace.annex.formats.webdataset.source:WebDatasetSource", locals())


@known_arguments(also=ray_arguments.READ_TFRECORDS)
def read_tfrecords(
    paths: PathArgument,
    *,
    schema: pa.Schema | None = None,
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read TFRecord files of ``tf.train.Example``, plain or compressed: a record is a row, a feature a column.

    Columns stand in the order of their names. Features of bytes are binary, of floats float32, of integers int64;
    those with one value at most in the first records are single values, others lists. A feature that a record lacks,
    or that is of no kind, is null. TensorFlow is not needed, but the extra ``tfrecords``. A file is read by one
    worker, from its start, and all checksums are checked.

    Parameters
    ----------
    paths, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.tfrecord`` and ``.tfrecords`` files, compressed or not.
    schema
        The features to read and their types: ``binary``, ``string``, integers, floats, ``bool``, or lists of these,
        such as ``pa.schema({"text": pa.string(), "ids": pa.list_(pa.int64())})``; other features are passed over.
        None: those of the first 256 records of each of the first eight files; one that turns up later is an error.

    Raises
    ------
    ArgumentError
        ``schema`` has another type. ``MissingLibrary``: google-crc32c or protobuf is not installed.
    NothingMatched, InputChanged
        As for :func:`read_parquet`.
    SchemaMismatch
        A feature is of several kinds in the first records.
    UnreadableFile
        A record is damaged, no Example, or does not fit the columns: ``on_error`` says what becomes of it. A file
        that was cut short, or whose length of a record is damaged, has one row for all that is missing.

    Examples
    --------
    >>> import pytest, tempfile, headrace as hr
    >>> _ = pytest.importorskip("google_crc32c")
    >>> folder = tempfile.mkdtemp()
    >>> data = hr.from_items([{"x": 1, "v": [0.5, 2.0]}]).with_options(engine="inline", progress=False)
    >>> _ = data.write_tfrecords(f"{folder}/out")
    >>> hr.read_tfrecords(f"{folder}/out").take_all()
    [{'v': [0.5, 2.0], 'x': 1}]
    """
    return of_files("headrace.annex.formats.tfrecords.source:TFRecordSource", locals())
