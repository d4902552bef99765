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
    import pyarrow as pa


__all__ = [
    "from_arrow",
    "from_daft",
    "from_huggingface",
    "from_items",
    "from_numpy",
    "from_pandas",
    "from_polars",
    "from_spark",
    "from_torch",
    "range",
    "range_tensor",
]


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

    Levels of the index that have names are columns, before the others, as ``reset_index`` makes them. Others are left
    out.

    Parameters
    ----------
    dfs
        A DataFrame, or a list of DataFrames with equal columns.

    Raises
    ------
    ArgumentError
        A column has no Arrow type, the frames differ in their columns, or the index is named as a column is.

    Examples
    --------
    >>> import headrace as hr, pandas as pd
    >>> hr.from_pandas(pd.DataFrame({"a": [1, 2]})).take_all()
    [{'a': 1}, {'a': 2}]
    """
    from headrace.sources.memory import MemorySource, table_from_frames

    return Dataset.from_source(MemorySource(table_from_frames(dfs), "from_pandas"))


@known_arguments(also=ray_arguments.BLOCKS)
def from_arrow(tables: Any) -> Dataset:
    """Make a dataset of an Arrow table, or of several one after the other; nothing is copied.

    Parameters
    ----------
    tables
        A ``pyarrow.Table`` or ``RecordBatch``, anything else that hands out an Arrow stream (a Polars
        DataFrame, a DuckDB result), or a list of these with equal schemas. Tensors of Ray and Daft of one shape are
        tensors of that shape.

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
    from headrace.interop import with_tensors
    from headrace.sources.memory import MemorySource, table_from_arrow

    return Dataset.from_source(MemorySource(with_tensors(table_from_arrow(tables)), "from_arrow"))


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


# ---------------------------------------------------------------- what another library holds

# It is imported when these are called. Arrow buffers are used as they are where the library has them. What its owner
# may still change is copied. All of it is in this process's memory, of which the workers share one copy.


@known_arguments(also=ray_arguments.BLOCKS)
def from_huggingface(dataset: Any) -> Dataset:
    """Make a dataset of one of Hugging Face's; columns keep their names.

    Parameters
    ----------
    dataset
        A ``datasets.Dataset``: its table is used as it is, mapped from its file, without a copy; but rows that
        were chosen or shuffled are copied in their order. Or an ``IterableDataset``, which is read to its end. Not a
        ``DatasetDict``: give one of its splits. Images stay as they are stored, structs of ``bytes`` and ``path``;
        arrays of a fixed shape (k…) become tensors of that shape.

    Raises
    ------
    ArgumentError
        It is something else, or a column has no Arrow type here. ``MissingLibrary``: a decoder is not installed.

    Examples
    --------
    >>> import pytest, headrace as hr
    >>> datasets = pytest.importorskip("datasets")
    >>> hr.from_huggingface(datasets.Dataset.from_dict({"text": ["a", "b"]})).take(1)
    [{'text': 'a'}]
    """
    from headrace.interop import from_huggingface

    return _of([from_huggingface(dataset)], "from_huggingface")


@known_arguments(also={**ray_arguments.BLOCKS, "local_read": ray_arguments.LOCAL_READ})
def from_torch(dataset: Any, *, columns: Sequence[str] | None = None) -> Dataset:
    """Make a dataset of one of PyTorch's: it is read to its end, here and now.

    Parameters
    ----------
    dataset
        A map-style or iterable dataset. An item that is a dict becomes a row of its keys; one that is a tuple, a row
        of its parts; anything else, a row with the column ``item``. Tensors of shape (k…) stay what they are. A
        ``TensorDataset`` is not read item by item: its tensors are copied whole.
    columns
        Names for the parts of a tuple, or for the one value. Default: ``item_0``, ``item_1``, …; Ray Data has one
        column ``item`` of Python tuples, which Arrow does not know.

    Raises
    ------
    ArgumentError
        It is no dataset, its items do not fit one type, or there is another number of names than parts.
        ``MissingLibrary``: PyTorch is not installed.

    Examples
    --------
    >>> import pytest, headrace as hr
    >>> torch = pytest.importorskip("torch")
    >>> pairs = torch.utils.data.TensorDataset(torch.ones(3, 2), torch.arange(3))
    >>> hr.from_torch(pairs, columns=["x", "y"]).take(1)
    [{'x': array([1., 1.], dtype=float32), 'y': 0}]
    """
    from headrace.interop import from_torch
    from headrace.plan.parameters import given_names

    names = given_names("from_torch(columns=...)", columns) if columns is not None else None
    return _of([from_torch(dataset, names)], "from_torch")


@known_arguments(also=ray_arguments.BLOCKS)
def from_polars(frames: Any) -> Dataset:
    """Make a dataset of a Polars DataFrame, or of several one after the other; nothing is copied.

    Parameters
    ----------
    frames
        A DataFrame, a LazyFrame, which is collected, or a list of them with equal columns. Arrays of shape (k…) are
        tensors of that shape.

    Raises
    ------
    ArgumentError
        It is something else, or the columns differ.

    Examples
    --------
    >>> import pytest, headrace as hr
    >>> pl = pytest.importorskip("polars")
    >>> hr.from_polars(pl.DataFrame({"a": [1, 2]})).take_all()
    [{'a': 1}, {'a': 2}]
    """
    from headrace.interop import from_polars

    return _of(from_polars(frames), "from_polars")


@known_arguments(also=ray_arguments.BLOCKS)
def from_daft(df: Any) -> Dataset:
    """Run a Daft DataFrame, and make a dataset of its result.

    Parameters
    ----------
    df
        A DataFrame. Tensors of a fixed shape (k…) stay tensors of that shape.

    Raises
    ------
    ArgumentError
        It is something else, or a column has no Arrow type here.

    Examples
    --------
    >>> import pytest, headrace as hr
    >>> daft = pytest.importorskip("daft")
    >>> hr.from_daft(daft.from_pydict({"a": [1, 2]})).take_all()
    [{'a': 1}, {'a': 2}]
    """
    from headrace.interop import from_daft

    return _of([from_daft(df)], "from_daft")


@known_arguments(also=ray_arguments.BLOCKS)
def from_spark(df: Any) -> Dataset:
    """Run a Spark DataFrame, and make a dataset of its result, which comes here by Arrow: it has to fit into memory.

    For more than that, let Spark write Parquet, ``df.write.parquet(path)``, to a folder that this process sees, and
    read it with ``read_parquet(path)``: a killed run then goes on without running Spark again.

    Parameters
    ----------
    df
        A DataFrame of Spark 4, or of Spark Connect. Arrays become lists, maps lists of pairs, timestamps are in UTC.

    Raises
    ------
    ArgumentError
        It is something else, of an older Spark, or a column has no Arrow type here. What Spark raises, it raises.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.from_spark(spark.range(2)).take_all()  # doctest: +SKIP
    [{'id': 0}, {'id': 1}]
    """
    from headrace.interop import from_spark

    return _of([from_spark(df)], "from_spark")


def _of(tables: Sequence[pa.Table], kind: str) -> Dataset:
    from headrace.sources.memory import MemorySource, joined

    return Dataset.from_source(MemorySource(joined(tables, kind), kind))
