"""Verbs that write arrays and images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self, Unpack

from headrace.core.arguments import known_arguments
from headrace.dataset.writes import WriteVerbs
from headrace.plan import ray_arguments
from headrace.plan.parameters import given_names
from headrace.plan.steps.columns import SelectColumns
from headrace.plan.write_options import FileOptions, StoredOptions

if TYPE_CHECKING:
    import os

    from headrace.result import Result


class SampleWriteVerbs(WriteVerbs):
    """Verbs that write all rows in formats of their own."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.WRITE, options=FileOptions)
    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        **options: Unpack[FileOptions],
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as arrays that ``numpy.load`` reads.

        Numbers, booleans, and dates and times without a zone keep their dtypes, tensors of shape (k…) their shapes:
        n rows of them are an array (n, k…). Texts become arrays of ``<U…``. A null is NaN among fractions and NaT
        among times.

        Parameters
        ----------
        path, schema, min_rows_per_file, max_rows_per_file, mode, on_change, incremental, refresh, fix, key,
        provenance, durability
            As in ``write_parquet``.
        storage_options
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
        chosen = self if column is None else self._of_columns("write_numpy", [column])
        result = chosen._write_files("numpy", path, options, single=column is not None)
        self._note(result.summary)
        return result

    @known_arguments(also=ray_arguments.WRITE, options=StoredOptions)
    def write_images(
        self,
        path: str | os.PathLike[str],
        column: str,
        file_format: str = "png",
        *,
        names: str | None = None,
        **options: Unpack[StoredOptions],
    ) -> Result:
        """Run the plan and write an image file for each row to the folder ``path``. Needs the extra ``images``.

        The files of a shard are committed together, as the rows of other formats are: none of them is there before
        all are, and a killed run goes on. Each is synced, which ``durability="process"`` saves.

        Parameters
        ----------
        path, schema, mode, on_change, incremental, refresh, fix, key, provenance, durability, storage_options
            As in ``write_parquet``.
        column
            The column of pixels: uint8, of shape (height, width) or (height, width, channels), 1 to 4 of these.
        file_format
            ``"png"``, ``"jpg"``, ``"jpeg"``, ``"webp"``, ``"bmp"``, ``"tif"`` or ``"tiff"``.
        names
            A column of names, or of paths whose last part is one. A file is ``part-<shard>-<run>.<name>.png``, and in
            the name all but letters, digits, ``-`` and ``_`` becomes ``_``. None: rows are numbered in their shard.

        Raises
        ------
        ArgumentError
            There is no such format. ``MissingLibrary``: Pillow is not installed.
        SinkError
            The column has no pixels, or a null; the format cannot hold them, as JPEG has no alpha; or two rows of a
            shard have one name. All else as in ``write_parquet``.

        Examples
        --------
        >>> import pytest, tempfile, headrace as hr, numpy as np
        >>> _ = pytest.importorskip("PIL")
        >>> data = hr.from_numpy(np.zeros((2, 4, 5, 3), np.uint8)).with_options(engine="inline", progress=False)
        >>> data.write_images(folder := f"{tempfile.mkdtemp()}/out", "data").files
        2
        >>> hr.read_images(folder).take(1)[0]["image"].shape
        (4, 5, 3)
        """
        wanted = [column] if names in (None, column) else [column, names]
        settings = {"column": column, "file_format": file_format, "names": names}
        chosen = self._of_columns("write_images", wanted)
        result = chosen._write_files("images", path, options, **settings)
        self._note(result.summary)
        return result

    def _of_columns(self, verb: str, names: Sequence[Any]) -> Self:
        return self.with_step(SelectColumns(given_names(verb, names), asked_by=verb))
