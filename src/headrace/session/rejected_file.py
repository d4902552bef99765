"""Rejected rows as a file that people look at and edit: CSV, or Parquet for what has no text form."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.failures import words
from headrace.core.files.paths import absolute
from headrace.core.rejected import ERROR_FIELDS, as_text, has_text_form
from headrace.errors import ArgumentError, OutputWriteFailed

PLACE = ("_file", "_row")  # what a row is recognised by
REASON = ("_error_type", "_error", "_step")
_OURS = tuple(field.name for field in ERROR_FIELDS)


def save(table: pa.Table, path: str) -> list[str]:
    """Write rejected rows into a new file; return the columns that have no place in it.

    The place and the reason stand first, the columns of the input behind them.
    """
    place = Path(absolute(path, "The file"))
    own = [name for name in table.schema.names if name not in _OURS]
    without = []
    if place.suffix == ".csv":
        without = [name for name in own if not has_text_form(table.schema.field(name).type)]
    elif place.suffix != ".parquet":
        raise ArgumentError(
            f"{path}: rejected rows are written as .csv or as .parquet; give it one of these endings."
        )
    table = table.select([*PLACE, *REASON, *(name for name in own if name not in without)])
    if place.exists():  # somebody may have edited it
        raise ArgumentError(f"{path} is there already, and was not touched. Remove it, or give another name.")
    whole = place.with_name(f".{place.name}.tmp")
    try:
        if place.suffix == ".csv":
            with open(whole, "w", encoding="utf-8", newline="") as file:
                writer = csv.writer(file)
                writer.writerow(table.schema.names)
                for batch in table.to_batches(max_chunksize=4096):
                    piece = pa.Table.from_batches([batch])
                    writer.writerows(zip(*(as_text(each).to_pylist() for each in piece.columns), strict=True))
        else:
            pq.write_table(table, whole)
        os.link(whole, place)  # which replaces nothing
    except OSError as error:
        raise OutputWriteFailed(f"{path} cannot be written: {words(error)}.") from error
    finally:
        whole.unlink(missing_ok=True)
    return without
