"""Functions that begin a dataset with arrays: ``.npy``, ``.npz``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.plan import ray_arguments
from headrace.readers.options import warn_of_unfinished
from headrace.sources.file_source import PathArgument

__all__ = ["read_numpy"]


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
    paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.npy`` and ``.npz`` files.
    include_paths
        Whether to add the string column ``path``, the file's absolute path.

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
    from headrace.sources.numpy import NumpySource

    warn_of_unfinished(paths)
    return Dataset.from_source(NumpySource(paths, include_paths=include_paths).in_store(storage_options))
