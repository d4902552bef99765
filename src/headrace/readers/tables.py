"""Readers of tables that are folders of files and a log."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from headrace.core.arguments import known_arguments
from headrace.core.stores.options import checked
from headrace.core.tables.places import given_table
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError
from headrace.plan import ray_unsupported
from headrace.readers.parquet import given_condition

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from headrace.plan.column_expressions import ColumnExpression


@known_arguments(also=ray_unsupported.READ_DELTA)
def read_delta(
    path: str | os.PathLike[str],
    version: int | None = None,
    *,
    timestamp: datetime | str | None = None,
    columns: Sequence[str] | None = None,
    filter: pc.Expression | ColumnExpression | list[Any] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read one version of a Delta table; only the columns that the plan needs are decoded.

    The version is settled when the dataset is first looked at, and belongs to what a run is recognised by: a run that
    goes on after a kill reads the same files, whatever was written to the table meanwhile.

    Parameters
    ----------
    path
        The folder of the table, or its address (``s3://``, ``gs://``, ``az://``, ``abfs://``).
    version, timestamp
        Which version, by its number; or the one that was the latest at a moment: a ``datetime`` (without a time zone:
        UTC), or text such as ``"2026-11-22T06:00:00Z"``. None: the latest.
    columns
        The columns to read, in this order; None reads all.
    filter
        Which rows to take, as in ``read_parquet``. Files that have none of them, by the values of their partition or
        by the statistics of the log, are not opened; all other rows are read, and counted as filtered.
    storage_options
        For addresses, as in ``read_parquet``.

    Raises
    ------
    NothingMatched
        There is no Delta table. Raised, like the next ones, when the dataset is first looked at.
    SourceError
        There is no such version; or the table has deletion vectors, maps columns to other names, or needs another
        feature that is not read here.
    MissingLibrary
        ``deltalake`` is not installed: the extra ``delta``.
    UnknownColumn, UnreadableFile, InputChanged, StoreFailed
        As in ``read_parquet``.

    Examples
    --------
    >>> import tempfile, headrace as hr
    >>> folder = tempfile.mkdtemp()
    >>> data = hr.range(3).with_options(engine="inline", progress=False)
    >>> _ = data.write_delta(f"{folder}/numbers")
    >>> hr.read_delta(f"{folder}/numbers", filter=hr.col("id") > 1).take_all()
    [{'id': 2}]
    """
    from headrace.plan.expressions import fields_of
    from headrace.sources.tables.delta import DeltaSource

    if version is not None and timestamp is not None:
        raise ArgumentError("read_delta: version= and timestamp= both say which version; give one of them.")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise ArgumentError(f"read_delta: version= is the number of a version, such as 3, not {version!r}.")
    if isinstance(columns, str):
        raise ArgumentError(f"columns is a list of names; write columns=[{columns!r}].")
    place, moment = given_table(path, "read_delta"), _moment(timestamp)
    options = checked(storage_options)

    def made(columns: Sequence[str] | None = None, condition: Any = None) -> DeltaSource:
        return DeltaSource(
            place, version=version, moment=moment, columns=columns, condition=condition, options=options
        )

    if filter is None:
        return Dataset.from_source(made(columns))
    condition = given_condition(filter, "read_delta")
    if columns is None:
        return Dataset.from_source(made(condition=condition)).filter(expr=condition)
    every = made().schema()
    read = fields_of(condition, every) or every.names
    wanted = list(columns) + sorted({*read} - {*columns})
    return Dataset.from_source(made(wanted, condition)).filter(expr=condition).select_columns([*columns])


def _moment(given: datetime | str | None) -> str | None:
    if given is None:
        return None
    try:
        when = given if isinstance(given, datetime) else datetime.fromisoformat(given.replace("Z", "+00:00"))
    except (AttributeError, ValueError):
        raise ArgumentError(
            f"read_delta: timestamp= is a datetime, or text such as '2026-11-22T06:00:00Z', not {given!r}."
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).isoformat()
