"""Verbs that write samples for training: TFRecord files and tar archives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from headrace.core.arguments import known_arguments
from headrace.dataset.writes import WriteVerbs
from headrace.plan import ray_arguments
from headrace.plan.verb_options import FileOptions

if TYPE_CHECKING:
    import os

    from headrace.result import Result


class FormatWriteVerbs(WriteVerbs):
    """Verbs that write all rows as samples for training."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.WRITE_WEBDATASET, options=FileOptions)
    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        **options: Unpack[FileOptions],
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as tar archives of samples, as WebDataset has them.

        Each column of a row is a member ``<key>.<column>``; a null is none. The column ``__key__`` has the keys, each
        of them once; without it they are numbers. The end of a column's name says how it is packed: ``txt`` texts,
        ``cls`` whole numbers, ``json`` anything, ``npy`` numbers and arrays, ``png``, ``jpg`` and the like pixels,
        uint8 of shape (height, width) or (height, width, channels); bytes are members as they are. The same rows give
        the same archives.

        Parameters
        ----------
        path, schema, min_rows_per_file, max_rows_per_file, mode, on_change, incremental, refresh, fix, key,
        provenance, durability
            As in ``write_parquet``.
        storage_options
            As in ``write_parquet``.

        Raises
        ------
        SinkError
            A column does not fit its name, or a key is none, or is there twice. ``MissingLibrary``: there are pixels,
            and Pillow is not installed. All else as in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> data = hr.from_items([{"__key__": "a", "txt": "one", "cls": 1}])
        >>> data.with_options(engine="inline", progress=False).write_webdataset(f"{folder}/out").rows
        1
        >>> hr.read_webdataset(f"{folder}/out").take_all()
        [{'__key__': 'a', 'txt': 'one', 'cls': 1}]
        """
        return self._write_files("webdataset", path, options)

    @known_arguments(also=ray_arguments.WRITE_TFRECORDS, options=FileOptions)
    def write_tfrecords(
        self,
        path: str | os.PathLike[str],
        *,
        compression: str | None = None,
        **options: Unpack[FileOptions],
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as TFRecord files of ``tf.train.Example``.

        Each column is a feature: texts and bytes are bytes, integers and booleans int64, floats float32; a list has a
        value for each element. A null is a feature without values, of no kind. The same rows give the same files.
        TensorFlow is not needed, but the extra ``tfrecords``.

        Parameters
        ----------
        path, schema, min_rows_per_file, max_rows_per_file, mode, on_change, incremental, refresh, fix, key,
        provenance, durability
            As in ``write_parquet``.
        storage_options
            As in ``write_parquet``.
        compression
            None, or ``"gzip"``, which TensorFlow reads with ``compression_type="GZIP"``.

        Raises
        ------
        ArgumentError
            There is no such compression. ``MissingLibrary``: google-crc32c or protobuf is not installed.
        SinkError
            A column is of another type; has arrays of several axes, or a null in a list; or a float64 that float32
            would round. All else as in ``write_parquet``.

        Examples
        --------
        >>> import pytest, tempfile, headrace as hr
        >>> _ = pytest.importorskip("google_crc32c")
        >>> data = hr.range(3).with_options(engine="inline", progress=False)
        >>> data.write_tfrecords(f"{tempfile.mkdtemp()}/out").rows
        3
        """
        return self._write_files("tfrecords", path, options, compression=compression)
