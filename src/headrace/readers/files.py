"""Functions that begin a dataset with files: ``read_*``.

Nothing here imports pyarrow before it must: a run starts its workers first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.plan import ray_arguments
from headrace.readers.options import READ_CSV, READ_JSON, of_files
from headrace.sources.file_source import PathArgument

if TYPE_CHECKING:
    import pyarrow as pa


__all__ = [
    "read_binary_files",
    "read_csv",
    "read_images",
    "read_json",
    "read_numpy",
    "read_rejected",
    "read_text",
]


@known_arguments(also=READ_CSV)
def read_csv(
    paths: PathArgument,
    *,
    column_types: Mapping[str, Any] | None = None,
    column_names: Sequence[str] | None = None,
    has_header: bool | None = None,
    delimiter: str = ",",
    quote_char: str | None = '"',
    escape_char: str | None = None,
    newlines_in_values: bool = True,
    encoding: str = "utf8",
    skip_rows: int = 0,
    null_values: Sequence[str] | None = None,
    strings_can_be_null: bool = False,
    quoted_strings_can_be_null: bool = True,
    decimal_point: str = ".",
    timestamp_parsers: Sequence[str] | None = None,
    partitioning: Literal["hive"] | None = "hive",
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read CSV files, plain or compressed (gzip, zstd, bz2, lz4), as one dataset.

    Types are settled once, from the first megabyte of the files, and never change on the way: a later value
    that does not fit is an error that names it. Options have the names and meanings of ``pyarrow.csv``, whose
    classes are taken, too: ``parse_options=pyarrow.csv.ParseOptions(delimiter=";")``.

    Parameters
    ----------
    paths, partitioning, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.csv`` and ``.tsv`` files, compressed or not.
    column_types
        Types for some columns: an Arrow type, its name (``"float64"``, ``"timestamp[us]"``), or ``int``,
        ``float``, ``str``, ``bool``, ``bytes``.
    column_names
        The names of the columns. As in pyarrow and pandas, giving them means that the first line is data; for
        files that do have a header line, give ``has_header=True`` too, and these names replace its.
    has_header
        Whether the first line of each file holds names. None: yes, unless ``column_names`` is given. False
        without ``column_names``: columns are ``f0``, ``f1``, ….
    delimiter, quote_char, escape_char, decimal_point
        Single ASCII characters; None switches quoting or escaping off. With escapes a file is one split.
    newlines_in_values
        False promises that no quoted value holds a newline: a big file need not be scanned to be cut.
    encoding
        Of the text. Besides UTF-8 and the one-byte encodings, a file is then one split.
    skip_rows
        Lines before the header to leave out, in every file.
    null_values, strings_can_be_null, quoted_strings_can_be_null
        Which texts are null (default: Arrow's list, with the empty text), whether in string columns too, and whether
        there with quotes around them. ``[""]``, True and False tell null from empty text, as ``write_csv`` does.
    timestamp_parsers
        Formats for ``strptime``, or ``"ISO8601"``, tried in turn.

    Raises
    ------
    NothingMatched, SchemaMismatch, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A row has too many or too few fields, a value is not of its column's type, a quote is never closed;
        with file, row (counted from 0 after the header) and column.
    UnknownColumn
        ``column_types`` has a name that no file has.

    Examples
    --------
    >>> import pathlib, tempfile, headrace as hr
    >>> file = pathlib.Path(tempfile.mkdtemp(), "a.csv")
    >>> _ = file.write_text('name,age\\n"Ada\\nLovelace",36\\n')
    >>> hr.read_csv(file, column_types={"age": "float32"}).take_all()
    [{'name': 'Ada\\nLovelace', 'age': 36.0}]
    """
    return of_files("headrace.sources.csv.source:CsvSource", locals())


@known_arguments(also=READ_JSON)
def read_json(
    paths: PathArgument,
    *,
    schema: pa.Schema | None = None,
    partitioning: Literal["hive"] | None = "hive",
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read files of one JSON object per line, plain or compressed (gzip, zstd, bz2, lz4), as one dataset.

    A file may also be one array of objects, ``[{…}, {…}]``: each of them is a row then; one object over several
    lines, which is one row; or one array per line, with the columns ``0``, ``1``, …. Such a file is read by one
    worker, and is in memory meanwhile.

    Parameters
    ----------
    paths, partitioning, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.jsonl``, ``.ndjson`` and ``.json`` files, compressed or
        not.
    schema
        The fields to read and their types; other fields are passed over. None infers it from the first
        megabyte of the files; a field that turns up later is then an error. A field that a line lacks is null.

    Raises
    ------
    NothingMatched, SchemaMismatch, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A line or element is not a JSON object, has an unknown field or a value of another type; with file and row
        (counted from 0, blank lines left out).

    Examples
    --------
    >>> import pathlib, tempfile, headrace as hr
    >>> file = pathlib.Path(tempfile.mkdtemp(), "a.jsonl")
    >>> _ = file.write_text('{"user": {"id": 1}, "tags": ["a"]}\\n{"user": {"id": 2}}\\n')
    >>> hr.read_json(file).take_all()
    [{'user': {'id': 1}, 'tags': ['a']}, {'user': {'id': 2}, 'tags': None}]
    """
    return of_files("headrace.sources.json.source:JsonSource", locals())


@known_arguments(also=ray_arguments.READ)
def read_binary_files(
    paths: PathArgument,
    *,
    include_paths: bool = False,
    compression: Literal["infer"] | None = "infer",
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read each file as one row: its contents in the binary column ``bytes``.

    Parameters
    ----------
    paths, include_paths, storage_options
        As for :func:`read_parquet`, with any suffix.
    compression
        ``"infer"``: a file whose name ends in ``.gz``, ``.zst``, ``.bz2`` or ``.lz4``, and that begins as such files
        do, is unpacked, as in Ray Data. None: its bytes come as they are.

    Raises
    ------
    ArgumentError
        There is no such ``compression``.
    NothingMatched, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A file may not be opened, is not a regular file, or cannot be unpacked.

    Examples
    --------
    >>> import pathlib, tempfile, headrace as hr
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.bin").write_bytes(b"abc")
    >>> hr.read_binary_files(folder).take_all()
    [{'bytes': b'abc'}]
    """
    return of_files("headrace.sources.lines:BinarySource", locals())


@known_arguments(also=ray_arguments.READ)
def read_images(
    paths: PathArgument,
    *,
    size: tuple[int, int] | None = None,
    mode: str | None = None,
    include_paths: bool = False,
    draft: bool = True,
    max_pixels: int = 89_478_485,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read each image file as one row: its pixels, uint8, in the column ``image``. Needs the extra ``images``.

    Parameters
    ----------
    paths, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.png``, ``.jpg``, ``.jpeg``, ``.tif``, ``.tiff``, ``.bmp``,
        ``.gif`` and ``.webp`` files.
    size
        ``(height, width)`` in pixels, in this order, as in Ray Data: all images are scaled to it (bilinear),
        whatever that does to their proportions, and a batch is one array of shape (n, height, width, channels).
        None keeps their sizes. That is one array too if all images have one size; else it is n objects, each
        an array of shape (h, w, channels). Which of the two holds for the whole dataset: all headers are read
        to know it, about 0.1 ms each.
    mode
        The Pillow mode to convert to: ``"L"`` (grey; arrays then have no axis of channels), ``"LA"``,
        ``"RGB"``, ``"RGBA"``, ``"CMYK"``, ``"YCbCr"`` or ``"HSV"``. None is ``"RGB"``, where Ray Data keeps the
        mode of each file. Alpha is dropped, not blended, unless the mode has it; of 16 bits the upper eight are
        taken; of an animated image, the first frame.
    draft
        True lets the JPEG decoder halve images, once or more, as long as both sides stay at least twice what
        ``size`` asks for: three times as fast for a photo of 12 megapixels, and pixels differ from the full
        decoding by about one of 255 levels on average. False decodes in full, as Ray Data does.
    max_pixels
        How many pixels a file may hold, by its header, against files of a few kilobytes that unpack to more than a
        machine has. The default is where Pillow begins to warn: a quarter of a GiB as RGB.

    The orientation that a camera notes in EXIF is not applied, as in Ray Data and torchvision: pixels come as
    they are stored, and ``size`` is that of the stored image.

    Raises
    ------
    ArgumentError
        ``size`` or ``mode`` is something else. ``MissingLibrary``: Pillow is not installed.
    NothingMatched, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A file is damaged, cut short, no image, or of more pixels than ``max_pixels``.

    Examples
    --------
    >>> import pytest, tempfile, headrace as hr
    >>> Image = pytest.importorskip("PIL.Image")
    >>> folder = tempfile.mkdtemp()
    >>> Image.new("RGB", (640, 480), "red").save(f"{folder}/a.png")
    >>> row = hr.read_images(folder, size=(2, 3)).take(1)[0]
    >>> row["image"].shape, row["image"][0, 0].tolist()
    ((2, 3, 3), [255, 0, 0])
    """
    return of_files("headrace.sources.images.source:ImageSource", locals())


@known_arguments(also=ray_arguments.READ)
def read_text(
    paths: PathArgument,
    *,
    encoding: str = "utf-8",
    drop_empty_lines: bool = False,
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read each line of text files, plain or compressed (gzip, zstd, bz2, lz4), as one row: column ``text``.

    A line ends at a newline, a carriage return, or both, as in Python's own text files; its end is no part of
    it. A byte order mark is none either.

    Parameters
    ----------
    paths, include_paths, storage_options
        As for :func:`read_parquet`, with any suffix.
    encoding
        Of the text. Besides UTF-8 and the one-byte encodings, a file is then one split.
    drop_empty_lines
        Whether to leave out lines of nothing but white space. In Ray Data, that is the default.

    Raises
    ------
    ArgumentError
        There is no such encoding.
    NothingMatched, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A line is not of that encoding, or a compressed file is damaged; with file and line (counted from 1).

    Examples
    --------
    >>> import pathlib, tempfile, headrace as hr
    >>> file = pathlib.Path(tempfile.mkdtemp(), "a.txt")
    >>> _ = file.write_text("one\\n\\ntwo")
    >>> hr.read_text(file).take_all()
    [{'text': 'one'}, {'text': ''}, {'text': 'two'}]
    """
    return of_files("headrace.sources.lines:TextSource", locals())


@known_arguments
def read_rejected(
    output: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None
) -> Dataset:
    """Read the rows that a run with ``on_error="reject"`` set aside, to look at them or to try them again.

    Parameters
    ----------
    output
        The folder, or the address, that was written to.
    storage_options
        As in ``read_parquet``.

    Returns
    -------
    Dataset
        The source's columns, with nulls for what could not be read, and behind them: ``_error`` and ``_error_type``,
        what was raised; ``_step``, where (``"read"``: in the source); ``_file`` and ``_row``, where the row stands,
        null if it is unknown; ``_attempts``, at which try of its shard that was. No rows if none was rejected. Of an
        output that waits for its first publishing (see ``require``), those of the rows that wait.

    Raises
    ------
    NothingMatched
        There is no finished or begun run in the folder.

    Examples
    --------
    >>> import tempfile, headrace as hr
    >>> folder = tempfile.mkdtemp()
    >>> data = hr.from_items(["1", "two", "3"]).map(lambda row: {"n": int(row["item"])})
    >>> _ = data.with_options(engine="inline", on_error="reject", progress=False).write_parquet(f"{folder}/out")
    >>> hr.read_rejected(f"{folder}/out").select_columns(["item", "_error_type", "_row"]).take_all()
    [{'item': 'two', '_error_type': 'ValueError', '_row': 1}]
    """
    from headrace.core.stores.addresses import checked
    from headrace.output.runs import rejected_rows
    from headrace.sources.memory import MemorySource

    return Dataset.from_source(MemorySource(rejected_rows(output, checked(storage_options)), "rejected"))


# ---------------------------------------------------------------- arrays


@known_arguments(also=ray_arguments.READ_NUMPY)
def read_numpy(
    paths: PathArgument,
    *,
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read arrays that numpy has saved; the first axis of each is the rows.

    A ``.npy`` file gives the column ``data``, of its dtype and of the shape (k…) of what stands at one place of the
    first axis. A ``.npz`` file, compressed or not, gives one column for each of its arrays, which have one length.

    Parameters
    ----------
    paths, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.npy`` and ``.npz`` files.

    Raises
    ------
    NothingMatched, SchemaMismatch, InputChanged
        As for :func:`read_parquet`; arrays of different shapes do not fit together, either.
    UnreadableFile
        A file is damaged or cut short, holds Python objects or a dtype without an Arrow type, or the arrays of a
        ``.npz`` file differ in length. Raised when the dataset is first looked at: all headers are read then.

    Examples
    --------
    >>> import tempfile, headrace as hr, numpy as np
    >>> file = f"{tempfile.mkdtemp()}/a.npy"
    >>> np.save(file, np.arange(6).reshape(3, 2))
    >>> hr.read_numpy(file).take(2)
    [{'data': array([0, 1])}, {'data': array([2, 3])}]
    """
    return of_files("headrace.sources.numpy:NumpySource", locals())
