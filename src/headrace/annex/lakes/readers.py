"""Readers of tables that are folders of files and a log."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.annex.lakes.places import given_table
from headrace.core.arguments import known_arguments
from headrace.core.stores.addresses import checked
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.readers.parquet import given_condition

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from headrace.plan.column_expressions import ColumnExpression

__all__ = ["read_delta", "read_iceberg", "read_lance"]


@known_arguments(also=ray_arguments.READ_DELTA)
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
    from headrace.annex.lakes.delta.source import DeltaSource
    from headrace.plan.expressions import fields_of

    if version is not None and timestamp is not None:
        raise ArgumentError("read_delta: version= and timestamp= both say which version; give one of them.")
    if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 0):
        raise ArgumentError(f"read_delta: version= is the number of a version, such as 3, not {version!r}.")
    if isinstance(columns, str):
        raise ArgumentError(f"columns is a list of names; write columns=[{columns!r}].")
    place, given = given_table(path, "read_delta", storage_options)
    moment, options = _moment(timestamp, "read_delta: timestamp"), checked(given)

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


@known_arguments(also=ray_arguments.READ_ICEBERG)
def read_iceberg(
    table_identifier: str,
    *,
    catalog: str | Mapping[str, Any] | None = None,
    catalog_kwargs: Mapping[str, Any] | None = None,
    snapshot_id: int | None = None,
    as_of: datetime | str | None = None,
    row_filter: Any = None,
    selected_fields: Sequence[str] | None = None,
) -> Dataset:
    """Read one snapshot of an Iceberg table; only the columns that the plan needs are decoded.

    Rows are read by PyIceberg, file by file: deletions by position, renamed columns and types that became wider
    included. The snapshot is settled when the dataset is first looked at, and belongs to what a run is recognised
    by: a run that goes on after a kill reads the same one, whatever was written to the table meanwhile.

    Parameters
    ----------
    table_identifier
        The name of the table with its namespace, ``"shop.sales"``.
    catalog, catalog_kwargs
        The name of a catalogue in the configuration of PyIceberg (environment variables or ``~/.pyiceberg.yaml``), or
        a dict of its properties; ``catalog_kwargs`` is Ray Data's name of such a dict. Credentials are refused
        here: they come from the environment, or that file.
    snapshot_id, as_of
        Which snapshot, by its number; or the one that was the latest at a moment: a ``datetime`` (without a time
        zone: UTC), or text such as ``"2026-11-22T06:00:00Z"``. None: the latest.
    row_filter
        Which rows to take: text such as ``"price > 4 and day = '2026-11-22'"``, or an expression of PyIceberg. Files
        that have none of them are not opened; other rows are not counted as read.
    selected_fields
        The columns to read, in this order; None, or ``("*",)``, reads all.

    Raises
    ------
    NothingMatched
        There is no such table. Raised, like the next ones, when the dataset is first looked at.
    SourceError
        The catalogue cannot be opened; there is no such snapshot; or the table has what PyIceberg cannot read, such
        as deletions by equality.
    MissingLibrary
        ``pyiceberg`` is not installed: the extra ``iceberg``.
    ArgumentError, UnknownColumn, UnreadableFile, InputChanged, StoreFailed
        As in ``read_parquet``.

    Examples
    --------
    >>> import tempfile, headrace as hr
    >>> folder = tempfile.mkdtemp()
    >>> lake = {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": folder}
    >>> data = hr.range(3).with_options(engine="inline", progress=False)
    >>> _ = data.write_iceberg("shop.numbers", catalog=lake)
    >>> hr.read_iceberg("shop.numbers", catalog=lake, row_filter="id > 1").take_all()
    [{'id': 2}]
    """
    from headrace.annex.lakes.iceberg.source import Catalog, IcebergSource, given_identifier

    if snapshot_id is not None and as_of is not None:
        raise ArgumentError(
            "read_iceberg: snapshot_id= and as_of= both say which snapshot; give one of them."
        )
    if snapshot_id is not None and (isinstance(snapshot_id, bool) or not isinstance(snapshot_id, int)):
        raise ArgumentError(f"read_iceberg: snapshot_id= is the number of a snapshot, not {snapshot_id!r}.")
    if isinstance(selected_fields, str):
        raise ArgumentError(
            f"selected_fields is a list of names; write selected_fields=[{selected_fields!r}]."
        )
    moment = _moment(as_of, "read_iceberg: as_of")
    columns = None if selected_fields is None or tuple(selected_fields) == ("*",) else list(selected_fields)
    source = IcebergSource(
        given_identifier(table_identifier, "read_iceberg"),
        Catalog.given(catalog, catalog_kwargs, "read_iceberg"),
        snapshot=snapshot_id,
        moment=None if moment is None else int(datetime.fromisoformat(moment).timestamp() * 1000),
        row_filter=row_filter,
        columns=columns,
    )
    return Dataset.from_source(source)


@known_arguments(also=ray_arguments.READ_LANCE)
def read_lance(
    uri: str | os.PathLike[str],
    *,
    version: int | str | None = None,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read one version of a Lance table; only the columns that the plan needs are decoded.

    Rows are read by the library, fragment by fragment, without those that were deleted. The version is settled when
    the dataset is first looked at, and belongs to what a run is recognised by: a run that goes on after a kill reads
    the same one, whatever was written to the table meanwhile.

    Parameters
    ----------
    uri
        The folder of the table, or its address (``s3://``, ``gs://``, ``az://``, ``abfs://``).
    version
        Which version, by its number or its tag. None: the latest.
    columns
        The columns to read, in this order; None reads all.
    filter
        Which rows to take, as text in the library's SQL: ``"price > 4 AND text IS NOT NULL"``. Other rows are not
        counted as read. Other conditions go behind: ``.filter(expr=hr.col("price") > 4)``.
    storage_options
        For addresses, as in ``read_parquet``.

    Raises
    ------
    NothingMatched
        There is no Lance table. Raised, like the next one, when the dataset is first looked at.
    SourceError
        There is no such version, or ``filter`` makes no sense.
    MissingLibrary
        ``pylance`` is not installed: the extra ``lance``.
    ArgumentError, UnknownColumn, UnreadableFile, StoreFailed
        As in ``read_parquet``.

    Examples
    --------
    >>> import pytest, tempfile, headrace as hr, pyarrow as pa
    >>> lance = pytest.importorskip("lance")
    >>> folder = f"{tempfile.mkdtemp()}/numbers.lance"
    >>> _ = lance.write_dataset(pa.table({"id": [0, 1, 2]}), folder)
    >>> hr.read_lance(folder, filter="id > 1").take_all()
    [{'id': 2}]
    """
    from headrace.annex.lakes.lance.source import LanceSource

    if isinstance(version, bool) or not isinstance(version, (int, str, type(None))):
        raise ArgumentError(f"read_lance: version= is the number of a version, or a tag, not {version!r}.")
    if isinstance(columns, str):
        raise ArgumentError(f"columns is a list of names; write columns=[{columns!r}].")
    if not isinstance(filter, (str, type(None))):
        raise ArgumentError(
            'read_lance: filter= is a condition as text, such as "price > 4". For other conditions, use '
            ".filter(expr=…) after it."
        )
    place, given = given_table(uri, "read_lance", storage_options)
    source = LanceSource(place, version=version, columns=columns, condition=filter, options=checked(given))
    return Dataset.from_source(source)


def _moment(given: datetime | str | None, what: str) -> str | None:
    if given is None:
        return None
    try:
        when = given if isinstance(given, datetime) else datetime.fromisoformat(given)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"{what}= is a datetime, or text such as '2026-11-22T06:00:00Z', not {given!r}."
        ) from None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).isoformat()
