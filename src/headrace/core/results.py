"""What a model or function gave back: columns with names, or values that have none yet."""

from __future__ import annotations

import datetime
import decimal
import numbers
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.layout import ConversionError

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
