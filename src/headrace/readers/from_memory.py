"""Functions that begin a dataset with what is in memory: ``from_*`` for data, ``range`` for numbers.

Nothing here imports pyarrow before it must: a run starts its workers first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.plan import ray_arguments

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = ["from_arrow", "from_items", "from_numpy", "from_pandas", "range", "range_tensor"]


@known_arguments(also=ray_arguments.BLOCKS)
def from_items(items: Sequence[Any]) -> Dataset:
    """Make a dataset of a list: one row per dict, or per value in the column ``item``.

    Parameters
    ----------
    items
        Dicts, whose keys become columns (a key that a dict lacks is null there); or other values.

    Raises
    ------
    ArgumentError
        Dicts and other values are mixed, or the values of a column do not fit one type.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.from_items([{"a": 1}, {"a": 2, "b": "x"}]).take_all()
    [{'a': 1, 'b': None}, {'a': 2, 'b': 'x'}]
    >>> hr.from_items(["x", "y"]).take_all()
    [{'item': 'x'}, {'item': 'y'}]
    """
    from headrace.sources.memory import MemorySource, table_from_items

    return Dataset.from_source(MemorySource(table_from_items(items), "from_items"))


@known_arguments(also=ray_arguments.BLOCKS)
def from_numpy(ndarrays: np.ndarray[Any, Any] | Sequence[np.ndarray[Any, Any]]) -> Dataset:
    """Make a dataset of an array, or of several one after the other, in the column ``data``.

    Parameters
    ----------
    ndarrays
        An array of shape (n,) or (n, k…): n rows, each a number or a tensor of shape (k…). Or a list of
        such arrays, alike but for n.

    Raises
    ------
    ArgumentError
        An array has no rows axis or a dtype without an Arrow type, or the arrays differ in shape or dtype.

    Examples
    --------
    >>> import headrace as hr, numpy as np
    >>> hr.from_numpy(np.arange(4).reshape(2, 2)).take(1)
    [{'data': array([0, 1])}]
    """
    from headrace.sources.memory import MemorySource, table_from_arrays

    return Dataset.from_source(MemorySource(table_from_arrays(ndarrays), "from_numpy"))


@known_arguments(also=ray_arguments.BLOCKS)
def from_pandas(dfs: pd.DataFrame | Sequence[pd.DataFrame]) -> Dataset:
    """Make a dataset of a DataFrame, or of several one after the other.

    An index with a name, or a MultiIndex with names, becomes columns of these names, before the others: functions see
    them, files keep them, ``predict`` does not take them for inputs by itself, and ``to_pandas`` makes them the index
    again, with the labels of the rows that are left. They stay columns if one of them was left out or renamed, and
    after ``union`` and ``zip``. An index without a name is left out.

    Parameters
    ----------
    dfs
        A DataFrame, or a list of DataFrames with equal columns.

    Raises
    ------
    ArgumentError
        A column has no Arrow type, or the frames differ in their columns. Only some levels of the index have names,
        or one has the name of a column that holds something else.

    Examples
    --------
    >>> import headrace as hr, pandas as pd
    >>> hr.from_pandas(pd.DataFrame({"a": [1, 2]})).take_all()
    [{'a': 1}, {'a': 2}]
    """
    from headrace.interop.indexes import with_index_columns
    from headrace.sources.memory import MemorySource, table_from_frames

    frames, index = with_index_columns(dfs)
    return Dataset.from_source(MemorySource(table_from_frames(frames), "from_pandas", index=index))


@known_arguments(also=ray_arguments.BLOCKS)
def from_arrow(tables: Any) -> Dataset:
    """Make a dataset of an Arrow table, or of several one after the other; nothing is copied.

    Parameters
    ----------
    tables
        A ``pyarrow.Table`` or ``RecordBatch``, anything else that hands out an Arrow stream (a Polars
        DataFrame, a DuckDB result), or a list of these with equal schemas.

    Raises
    ------
    ArgumentError
        It is not Arrow data, or the schemas differ.

    Examples
    --------
    >>> import headrace as hr, pyarrow as pa
    >>> hr.from_arrow(pa.table({"a": [1, 2]})).take_all()
    [{'a': 1}, {'a': 2}]
    """
    from headrace.sources.memory import MemorySource, table_from_arrow

    return Dataset.from_source(MemorySource(table_from_arrow(tables), "from_arrow"))


@known_arguments(also=ray_arguments.BLOCKS)
def range(n: int) -> Dataset:
    """Make a dataset of the integers 0 to ``n`` − 1, in the int64 column ``id``.

    Parameters
    ----------
    n
        The number of rows, 0 or more.

    Raises
    ------
    ArgumentError
        ``n`` is negative or not an integer.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.range(2).take_all()
    [{'id': 0}, {'id': 1}]
    """
    from headrace.sources.range import RangeSource

    return Dataset.from_source(RangeSource(n))


@known_arguments(also=ray_arguments.BLOCKS)
def range_tensor(n: int, *, shape: Sequence[int] = (1,)) -> Dataset:
    """Make a dataset of ``n`` int64 tensors of one shape, in the column ``data``: tensor i is full of i.

    Parameters
    ----------
    n
        The number of rows, 0 or more.
    shape
        The shape (k…) of each row's tensor; no axis of length 0.

    Raises
    ------
    ArgumentError
        ``n`` is negative or not an integer, or ``shape`` is no shape.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.range_tensor(3, shape=(2, 2)).take_batch(3)["data"].shape
    (3, 2, 2)
    """
    from headrace.sources.range import RangeTensorSource

    return Dataset.from_source(RangeTensorSource(n, shape))
