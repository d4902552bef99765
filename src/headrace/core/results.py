"""What a model or function gave back: columns with names, or values that have none yet."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import numbers
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.layout import ConversionError
from headrace.core.cards import Link, Table, Words, card
from headrace.core.human import duration, plural, size
from headrace.core.work import REJECTED

_SCALARS = (
    str,
    bytes,
    numbers.Number,
    decimal.Decimal,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    np.generic,
)


def has_names(result: Any) -> bool:
    """Say whether a result is a dict, a RecordBatch, or a table of whatever library."""
    if hasattr(result, "keys") or isinstance(result, (pa.RecordBatch, pa.Table)):
        return not hasattr(result, "iloc") or hasattr(result, "columns")  # a Series has keys, too
    return hasattr(result, "columns") and (hasattr(result, "iloc") or hasattr(result, "to_arrow"))


def is_scalar(result: Any) -> bool:
    """Say whether a result is one value, of Python's or of numpy's, and not a column of them."""
    return isinstance(result, _SCALARS) or (isinstance(result, np.ndarray) and result.ndim == 0)


def flat(values: Any) -> Any:
    """Make one number per row, (n, 1) as many networks give it, a plain column."""
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) > 1 and 0 in tuple(shape[1:]):
        raise ConversionError(
            f"it returned an array of shape {tuple(shape)}, which has no values for any row"
        )
    if shape is not None and len(shape) == 2 and shape[1] == 1 and hasattr(values, "reshape"):
        return values.reshape(-1)
    return values


# ----------------------------------------------------------------
# A result as a notebook shows it: numbers, metrics, why rows were rejected, and the report.


_REJECTED = 5  # rows that are shown
_REASON = ("_error_type", "_error", "_step", "_file", "_row")


def result_html(result: Any) -> str:
    """Return a result as a notebook shows it; of rejected rows, why and where, but none of their values."""
    ledger = result.ledger
    facts: list[tuple[str, Words]] = [
        ("rows", f"{ledger.read:,} in, {result.rows:,} out, {result.rejected:,} rejected"),
        ("took", duration(result.seconds) + (" over all drivers" if result.resumed else "")),
        ("output", f"{result.path} ({plural(result.files, 'file')}, {size(result.bytes)})"),
        ("report", Link(result.report.name, result.report)),
    ]
    tables = []
    if result.metrics:
        tables.append(
            Table(("metric", "result"), [(name, str(found)) for name, found in result.metrics.items()])
        )
    if result.rejected:
        tables.append(_rejected_table(result))
    return card("Result: complete", facts, *tables)


def _rejected_table(result: Any) -> Table:
    """Return the first rejected rows: why they are, and where they stood."""
    rows = [
        (f"{kind}: {words}", str(step), f"{file}, row {row}" if row is not None else str(file))
        for kind, words, step, file, row in _first_rejected(result.path / REJECTED)
    ]
    note = f"{result.rejected:,} rejected rows: hr.read_rejected({str(result.path)!r}) reads them"
    return Table(("rejected for", "by", "from"), rows, note)


def _first_rejected(folder: Path) -> list[tuple[Any, ...]]:
    """Read why the first rows were rejected; none of what cannot be read."""
    import pyarrow as pa

    found: list[tuple[Any, ...]] = []
    with contextlib.suppress(OSError, pa.ArrowException, KeyError):
        for path in sorted(folder.glob("*.arrow")):
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as batches:
                for i in range(batches.num_record_batches):
                    batch = batches.get_batch(i).select(_REASON).slice(0, _REJECTED - len(found))
                    found += [tuple(row.values()) for row in batch.to_pylist()]
                    if len(found) >= _REJECTED:
                        return found
    return found
