"""``read_parquet``.

Nothing here imports pyarrow before it must: a run starts its workers first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.arguments import known_arguments
from headrace.core.human import short_repr
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.readers.options import warn_of_unfinished
from headrace.sources.file_source import PathArgument

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

    from headrace.plan.column_expressions import ColumnExpression

__all__ = ["read_parquet"]


@known_arguments(also=ray_arguments.READ_PARQUET)
def read_parquet(
    paths: PathArgument,
    *,
    columns: Sequence[str] | None = None,
    partitioning: Literal["hive"] | None = "hive",
    filter: pc.Expression | ColumnExpression | list[Any] | None = None,
    schema: pa.Schema | None = None,
    include_paths: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read Parquet files as one dataset; only the columns that the plan needs are decoded.

    Parameters
    ----------
    paths
        A file, a folder (all levels), a glob (``**`` included), or a list of these, on this machine or by their
        addresses (``s3://``, ``gs://``, ``az://``, ``abfs://``, ``https://``: docs/object-stores.md). Names
        that begin with ``_`` or ``.`` are skipped, and of a folder only ``.parquet``, ``.pq`` and ``.parq``
        files are taken, if there are any. Files come in the order of their names; a list keeps its order.
    columns
        The columns to read, in this order; None reads all. A nested column comes whole.
    partitioning
        ``"hive"`` adds the ``key=value`` folders right above a file as columns behind its own, int64 where every
        value is an integer, else string; a column of the file of that name wins. None: no columns from folders.
    filter
        Which rows to take: ``pc.field("x") > 1``, ``hr.col("x") > 1``, or pyarrow's lists of tuples,
        ``[("x", ">", 1)]``. The same as the verb ``filter(expr=…)`` behind it: the others are read, and counted as
        filtered. It may name columns that are not in ``columns``.
    schema
        The columns and their types, in this order: other columns are left out, one that a file lacks is null there,
        and values are cast, without loss or with an error. None: as the files have it.
    include_paths
        Whether to add the string column ``path``, the file's absolute path, at the end.
    storage_options
        For addresses: what the store needs to know that is no secret (``endpoint``, ``region``, ``anonymous``,
        ``profile``, …). Credentials come from the environment.

    Raises
    ------
    NothingMatched
        No file there. Raised, like the next ones, when the dataset is first looked at.
    SchemaMismatch
        Two files have types for a column that do not unify, or one cannot be cast to what ``schema`` says. A column
        that a file lacks is null there.
    UnknownColumn
        ``columns`` has a name that no file has.
    UnreadableFile
        A file is damaged, cut short, or not Parquet.
    InputChanged
        A file changed between planning and reading.
    StoreFailed
        A store cannot be reached, or refuses.

    Examples
    --------
    >>> import tempfile, headrace as hr, pyarrow as pa, pyarrow.parquet as pq
    >>> folder = tempfile.mkdtemp()
    >>> pq.write_table(pa.table({"x": [1, 2], "y": [3, 4]}), f"{folder}/a.parquet")
    >>> hr.read_parquet(folder, columns=["y"]).take_all()
    [{'y': 3}, {'y': 4}]
    """
    from headrace.plan.expressions import fields_of
    from headrace.sources.file_source import PATH
    from headrace.sources.parquet.source import ParquetSource

    warn_of_unfinished(paths)

    def made(columns: Sequence[str] | None = None) -> ParquetSource:
        source = ParquetSource(
            paths, columns=columns, partitioning=partitioning, schema=schema, include_paths=include_paths
        )
        return source.in_store(storage_options)

    if filter is None:
        return Dataset.from_source(made(columns=columns))
    expression = given_condition(filter, "read_parquet")
    if columns is None:
        return Dataset.from_source(made()).filter(expr=expression)
    every = made().schema()
    read = fields_of(expression, every) or every.names
    wanted = list(columns) + sorted({*read} - {*columns, PATH})
    data = Dataset.from_source(made(columns=wanted)).filter(expr=expression)
    return data.select_columns([*columns, *([PATH] if include_paths else [])])


def given_condition(given: Any, verb: str) -> Any:
    """Read which rows are wanted: an expression of columns, or pyarrow's lists of tuples."""
    from headrace.plan.predicates import given_expression

    if not isinstance(given, list):
        return given_expression(given, f"{verb}(filter=")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.filters_to_expression(given)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise ArgumentError(
            f"{verb}(filter={short_repr(given)}): {error}. It is a list of tuples such as [('x', '>', 1)]."
        ) from None
