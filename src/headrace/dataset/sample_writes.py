"""Verbs that write arrays, and samples for training: ``.npy``, ``.npz`` and tar files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.arguments import known_arguments
from headrace.core.ports import Sink
from headrace.dataset.writes import WriteVerbs
from headrace.plan import ray_unsupported
from headrace.plan.parameters import given_folder, given_names, given_rows_per_file
from headrace.plan.steps.columns import SelectColumns

if TYPE_CHECKING:
    import os

    import pyarrow as pa

    from headrace.core.work import Durability
    from headrace.options import Mode, OnChange
    from headrace.result import Result


class SampleWriteVerbs(WriteVerbs):
    """Verbs that write all rows in formats of their own."""

    __slots__ = ()

    @known_arguments(also=ray_unsupported.WRITE)
    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        schema: pa.Schema | None = None,
        min_rows_per_file: int | None = None,
        max_rows_per_file: int | None = None,
        mode: Mode | None = None,
        on_change: OnChange | None = None,
        durability: Durability | None = None,
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as arrays that ``numpy.load`` reads.

        Numbers, booleans, and dates and times without a zone keep their dtypes, tensors of shape (k…) their shapes:
        n rows of them are an array (n, k…). Texts become arrays of ``<U…``. A null is NaN among fractions and NaT
        among times.

        Parameters
        ----------
        path, schema, min_rows_per_file, max_rows_per_file, mode, on_change, durability
            As in ``write_parquet``.
        column
            The column to write: each file is then a ``.npy`` of that one array, as in Ray Data. None: each file is a
            ``.npz`` with an array for each column.

        Raises
        ------
        SinkError
            A column has no numpy dtype, such as lists of different lengths or decimals; or holds a null among
            integers, booleans or texts. All else as in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> data = hr.range_tensor(3, shape=(2, 2)).with_options(engine="inline", progress=False)
        >>> data.write_numpy(f"{folder}/out", column="data").rows
        3
        >>> hr.read_numpy(f"{folder}/out").take_batch()["data"].shape
        (3, 2, 2)
        """

        rows = given_rows_per_file(min_rows_per_file, max_rows_per_file)

        def sink() -> Sink:
            from headrace.sinks.numpy import NumpySink

            return NumpySink(given_folder(path), single=column is not None, max_rows_per_file=rows.most)

        if column is None:
            return self._write(sink, schema, mode, on_change, durability, rows)
        (name,) = given_names("write_numpy", [column])
        chosen = self.with_step(SelectColumns((name,)))
        result = chosen._write(sink, schema, mode, on_change, durability, rows)
        self._note(result.summary)
        return result

    @known_arguments(also=ray_unsupported.WRITE_WEBDATASET)
    def write_webdataset(
        self,
        path: str | os.PathLike[str],
        *,
        schema: pa.Schema | None = None,
        min_rows_per_file: int | None = None,
        max_rows_per_file: int | None = None,
        mode: Mode | None = None,
        on_change: OnChange | None = None,
        durability: Durability | None = None,
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as tar archives of samples, as WebDataset has them.

        Each column of a row is a member ``<key>.<column>``; a null is none. The column ``__key__`` has the keys, each
        of them once; without it they are numbers. The end of a column's name says how it is packed: ``txt`` texts,
        ``cls`` whole numbers, ``json`` anything, ``npy`` numbers and arrays, ``png``, ``jpg`` and the like pixels,
        uint8 of shape (height, width) or (height, width, channels); bytes are members as they are. The same rows give
        the same archives.

        Parameters
        ----------
        path, schema, min_rows_per_file, max_rows_per_file, mode, on_change, durability
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

        rows = given_rows_per_file(min_rows_per_file, max_rows_per_file)

        def sink() -> Sink:
            from headrace.sinks.webdataset import WebDatasetSink

            return WebDatasetSink(given_folder(path), max_rows_per_file=rows.most)

        return self._write(sink, schema, mode, on_change, durability, rows)
