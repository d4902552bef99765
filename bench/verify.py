"""Whether contenders wrote the same rows, in whatever order and however many files.

Carried columns have to be equal in every value: rows are compared as a multiset, by a hash of 64 bits each.
Predictions are compared row by row, with a tolerance: a network's last bits depend on where its batches end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

RELATIVE, ABSOLUTE = 1e-3, 1e-4


@dataclass(frozen=True, slots=True)
class Output:
    """Rows in an order of their own: by the hash of what they carry, and among equal ones by their predictions."""

    columns: tuple[str, ...]
    keys: NDArray[np.uint64]
    values: NDArray[np.float32]  # rows × numbers

    @property
    def rows(self) -> int:
        return len(self.keys)


def read(out: Path, predicted: Sequence[str] = ("prediction",), without: Collection[str] = ()) -> Output:
    """Read the Parquet files that an engine has left; ``predicted``: the columns that are numbers to compare."""
    names, keys, values = tuple[str, ...](), [np.empty(0, np.uint64)], []
    for path in parts(out):
        with pq.ParquetFile(path) as file:
            names = tuple(sorted(set(file.schema_arrow.names) - set(without)))
            for batch in file.iter_batches(262_144, columns=list(names), use_threads=False):
                keys.append(hashes(batch, [name for name in names if name not in predicted]))
                values.append(np.hstack([numbers(batch[name]) for name in predicted if name in names]))
    joined = np.concatenate(keys)
    found = np.concatenate(values) if values else np.empty((0, 1), np.float32)
    frame = pl.DataFrame({"key": joined, "value": found[:, 0], "at": np.arange(len(joined))})
    order = frame.sort("key", "value")["at"].to_numpy()
    return Output(names, joined[order], found[order])


def parts(out: Path) -> Iterator[Path]:
    """Yield the files that a reader of the folder would take."""
    for path in sorted(out.rglob("*.parquet")):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(out).parts):
            yield path


def hashes(batch: pa.RecordBatch, names: Sequence[str]) -> NDArray[np.uint64]:
    """A hash for each row, of its values and not of how wide their types are."""
    columns: dict[str, Any] = {}
    for name in names:
        column = pl.Series(name, pl.from_arrow(batch[name]))
        if name == "path":  # engines write it as a path or as an address
            column = column.cast(pl.String).str.split("/").list.last()
        elif column.dtype.is_integer():
            column = column.cast(pl.Int64)
        elif column.dtype.is_float():
            column = column.cast(pl.Float64)
        elif column.dtype.is_temporal():
            column = column.dt.replace_time_zone(None).cast(pl.Datetime("us")).cast(pl.Int64)
        columns[name] = column
    return pl.DataFrame(columns).hash_rows(seed=7).to_numpy()


def numbers(column: Any) -> NDArray[np.float32]:
    """A column of numbers or of vectors as a matrix."""
    rows = len(column)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    while pa.types.is_nested(column.type):
        column = column.flatten()
    flat = column.to_numpy(zero_copy_only=False).astype(np.float32)
    return flat.reshape(rows, -1) if rows else flat.reshape(0, 1)


def difference(expected: Output, actual: Output) -> str | None:
    """What differs, in words, or None."""
    if expected.rows != actual.rows:
        return f"{actual.rows:,} rows instead of {expected.rows:,}"
    if expected.columns != actual.columns:
        odd = sorted(set(expected.columns) ^ set(actual.columns))
        return f"other columns: {', '.join(odd[:5])}"
    others = int((expected.keys != actual.keys).sum())
    if others:
        return f"other values in the columns that are carried (of {others:,} rows or fewer)"
    if expected.values.shape != actual.values.shape:
        return f"predictions of {actual.values.shape[1]} numbers instead of {expected.values.shape[1]}"
    close = np.isclose(expected.values, actual.values, rtol=RELATIVE, atol=ABSOLUTE)
    if not close.all():
        return f"other predictions in {int((~close.all(axis=1)).sum()):,} rows"
    return None


def first_row_wrong(out: Path, data: Path) -> str | None:
    """Say what is wrong with the row that was shown: it is one of the data, and has its own prediction."""
    from bench.steps import as_arrow, step_class

    step = step_class("taxi_mlp")()
    row = pq.read_table(out / "row.parquet").to_pylist()[0]
    wanted = {name: row[name] for name in step.carried}
    for path in sorted(data.glob("*.parquet")):
        table = pq.read_table(
            path, columns=list(step.columns), filters=[("fare_amount", "=", row["fare_amount"])]
        )
        moment = pa.scalar(
            row["pickup_datetime"].replace(tzinfo=None), table.schema.field("pickup_datetime").type
        )
        table = table.filter(pc.equal(table["pickup_datetime"], moment))
        for found in as_arrow(step, table).to_pylist() if table.num_rows else []:
            same = found["passenger_count"] == wanted["passenger_count"]
            if same and np.isclose(found["prediction"], row["prediction"], rtol=RELATIVE, atol=ABSOLUTE):
                return None
    return "the row that was shown is none of the data with its prediction"
