"""DataFrames → Arrow, without importing pandas."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from millrace.core.batch import one_array
from millrace.core.handed import Handed
from millrace.core.layout import ConversionError


def from_frame(frame: Any, handed: Handed) -> pa.RecordBatch:
    """Convert a DataFrame; named levels of its index become columns, as ``reset_index`` makes them."""
    named = [level for level, name in enumerate(frame.index.names) if name is not None]
    if named:
        listed = ", ".join(repr(frame.index.names[level]) for level in named)
        if set(frame.index.names) & set(frame.columns):
            raise ConversionError(
                f"the DataFrame's index is named {listed}, and so is a column; rename one of them, or drop "
                "the index (`reset_index(drop=True)`)"
            )
        frame = frame.reset_index(level=named)
    try:
        typed = {}
        for name in frame.columns:
            like = handed.type_of(name) if isinstance(name, str) else None
            if like is not None and (pa.types.is_map(like) or pa.types.is_decimal(like)):
                made = as_before(frame[name], like)
                if made is not None:
                    typed[name] = made
        rest = frame.drop(columns=list(typed)) if typed else frame
        batch = pa.RecordBatch.from_pandas(rest, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConversionError(f"the DataFrame cannot become Arrow columns: {error}") from error
    if typed:
        columns = [typed[name] if name in typed else batch.column(str(name)) for name in frame.columns]
        batch = pa.RecordBatch.from_arrays(columns, names=[str(name) for name in frame.columns])
    return batch


def as_before(values: Any, like: pa.DataType) -> pa.Array | None:
    """Try the type that the column had; a map or the scale of a decimal cannot be told from its values."""
    try:
        made = pa.array(values, like, from_pandas=hasattr(values, "iloc") or None)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None
    return one_array(made) if isinstance(made, pa.ChunkedArray) else made
