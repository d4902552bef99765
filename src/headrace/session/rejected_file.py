"""Rejected rows as a file that people look at and edit: CSV, or Parquet for what has no text form."""

from __future__ import annotations

import csv
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.core.arrow.forms import values_type
from headrace.core.failures import words
from headrace.core.files.storage import absolute
from headrace.core.rejected import ERROR_FIELDS, as_text, has_text_form
from headrace.errors import ArgumentError, OutputWriteFailed

PLACE = ("_file", "_row")  # what a row is recognised by
REASON = ("_error_type", "_error", "_step")
_OURS = tuple(field.name for field in ERROR_FIELDS)


Place = tuple[str | None, int | None]


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


def repaired_rows(
    path: str, rows: pa.Table, schema: pa.Schema, done: Collection[Place]
) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Read a file that ``save`` wrote and somebody edited: columns of the input, and which of ``rows`` they are of.

    The rows come in the order of ``rows``. A value that was not edited stays what it was, whatever a spreadsheet has
    made of its quotes. Rows that are ``done`` are left out. Raises ``ArgumentError`` for others that are none of
    ``rows``, for other columns than those of the input, and for values that are none of their type.
    """
    place = Path(absolute(path, "The file"))
    if place.suffix not in (".csv", ".parquet"):
        raise ArgumentError(
            f"fix={path!r}: it is a .csv or .parquet that `headrace rejected OUT --to` has written."
        )
    try:
        given = _read_csv(place) if place.suffix == ".csv" else pq.read_table(place)
    except (OSError, ValueError, csv.Error, pa.ArrowException) as error:
        raise ArgumentError(f"fix={path!r} cannot be read: {words(error)}.") from error
    names = given.schema.names
    others = [name for name in names if name not in (*schema.names, *_OURS)]
    if others or not set(PLACE) <= set(names) or len({*names}) < len(names):
        what = (
            f"has the column {others[0]!r}"
            if others
            else f"lacks {' or '.join(PLACE)}, or has a column twice"
        )
        raise ArgumentError(
            f"fix={path!r} {what}. It has {' and '.join(PLACE)}, by which a row is recognised, and columns of the "
            f"input: {', '.join(schema.names)}."
        )
    numbers, at = _numbers(path, given, rows, done)
    order = np.argsort(numbers)
    known, given = (
        table.take(pa.array(np.asarray(which, np.int64)[order]))
        for table, which in ((rows, numbers), (given, at))
    )
    mask = np.zeros(rows.num_rows, np.bool_)
    mask[np.asarray(numbers, np.int64)] = True
    columns = [
        _values(path, given[name], known[name]) if name in names else known[name] for name in schema.names
    ]
    return pa.table(columns, names=schema.names), mask


def _read_csv(path: Path) -> pa.Table:
    """Read all values as texts; an empty one is null."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        names = next(reader, [])
        lines = [line for line in reader if line]
    for number, line in enumerate(lines, 1):
        if len(line) != len(names):
            raise ValueError(f"its row {number:,} has {len(line)} values, and its header {len(names)}")
    columns = list(zip(*lines, strict=True)) or [()] * len(names)
    arrays = [pa.array([value or None for value in column], pa.string()) for column in columns]
    return pa.Table.from_arrays(arrays, names=names)


def _numbers(
    path: str, given: pa.Table, rows: pa.Table, done: Collection[Place]
) -> tuple[list[int], list[int]]:
    """Return the numbers of rows that were given among ``rows``, by file and row, and among those given."""
    known: dict[Place, list[int]] = {}
    for number, place in enumerate(places_of(rows)):
        known.setdefault(place, []).append(number)
    found: list[int] = []
    seen: dict[Place, int] = {}
    for at, (file, row) in enumerate(places_of(given)):
        numbers = known.get((file, row), [])
        here = (file, row) in done and not numbers
        if (len(numbers) != 1 and not here) or (file, row) in seen:
            what = "which is none of the rejected rows" if not numbers and not here else "twice"
            where = f"{file}, row {row}" if row is not None else str(file)
            raise ArgumentError(
                f"fix={path!r} has {where}, {what}. Rows are recognised by {' and '.join(PLACE)}: leave these as "
                "they are, each row once. Rows that are not to be tried may be left out."
            )
        seen[file, row] = at
        found += numbers
    return found, [at for place, at in seen.items() if place in known]


def places_of(table: pa.Table) -> list[Place]:
    """Return by what each row is recognised."""
    files, rows = (as_text(table[name]).to_pylist() for name in PLACE)
    return [
        (file, int(row) if row is not None and row.isdigit() else row)
        for file, row in zip(files, rows, strict=True)
    ]


def _values(path: str, given: pa.ChunkedArray, known: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column in the type of the input: those that were not edited as they were."""
    if given.type == known.type:
        return given
    if not pa.types.is_string(given.type) or not has_text_form(known.type):
        raise ArgumentError(f"fix={path!r}: a column is {given.type}, and {known.type} in the input.")
    kind = values_type(known.type)
    edited = pc.not_equal(pc.fill_null(as_text(known), ""), pc.fill_null(given, "")).combine_chunks()
    try:
        new = pc.cast(pc.if_else(edited, given.combine_chunks(), None), kind)
    except pa.ArrowException as error:
        raise ArgumentError(f"fix={path!r}: a value that was edited is no {kind}: {error}.") from error
    old = known if kind == known.type else pc.cast(known, kind)
    mixed = pc.if_else(edited, new, old.combine_chunks())
    return pa.chunked_array([mixed if kind == known.type else mixed.cast(known.type)])
