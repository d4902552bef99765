"""Pieces of the texts of verbs, and what ``repartition`` and ``train_test_split`` ask an engine for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.queries.duckdb_types import plain, quoted
from headrace.errors import ArgumentError, unknown_column
from headrace.plan.parameters import given_names, given_number

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset


def gathered(dataset: Dataset, keys: Any) -> Dataset:
    """Return the rows with those of the same keys one behind the other; without keys in a random order."""
    if keys is None:
        return dataset.random_shuffle()
    names = given_names("repartition: keys", keys)
    label = f"repartition(keys={list(names)})"
    order = order_by(label, dataset._schema(), names, False)
    return dataset._answered(label, f"SELECT * EXCLUDE (_row) FROM data ORDER BY {order}, _row")


def split_exactly(
    dataset: Dataset, test_size: float, seed: int | None, stratify: str | None
) -> list[Dataset]:
    """Divide rows in two, of each group of ``stratify`` by itself: those to train with, and those to test with."""
    label = (
        f"train_test_split({test_size!r}, seed={seed or 0}{f', stratify={stratify!r}' if stratify else ''})"
    )
    size, drawn = given_number("train_test_split: test_size", test_size), f"{drawn_by(label, seed)}, _row"
    if size is None or size <= 0 or (size >= 1 and not isinstance(test_size, int)):
        raise ArgumentError(
            f"{label}: test_size is a part of the rows, such as 0.2, or a number of them, such as 1000."
        )
    place = "0"
    if stratify is not None:  # how far a row stands in its group, so that each gives its share
        (column,) = given_names("train_test_split: stratify", stratify)
        check_names(label, (column,), dataset._schema())
        group = f"PARTITION BY {quoted(column)}"
        place = f"(row_number() OVER ({group} ORDER BY {drawn}) - 0.5) / count(*) OVER ({group})"
    rows = str(test_size) if isinstance(test_size, int) else f"round({size!r} * count(*) OVER ())"
    places = f"SELECT _row, {place} AS place FROM data"
    test = f"SELECT _row FROM ({places}) QUALIFY row_number() OVER (ORDER BY place, {drawn}) <= {rows}"
    return [
        dataset._answered(
            f"{label} → {side}",
            f"SELECT * EXCLUDE (_row) FROM data WHERE _row {which} ({test}) ORDER BY _row",
        )
        for side, which in (("train", "NOT IN"), ("test", "IN"))
    ]


# ---------------------------------------------------------------- pieces


def order_by(label: str, schema: pa.Schema, keys: Sequence[str], descending: Any) -> str:
    """Return what rows are sorted by. Raises ``ArgumentError`` and ``UnknownColumn``."""
    check_names(label, keys, schema)
    each = [descending] * len(keys) if isinstance(descending, bool) else descending
    if not isinstance(each, (list, tuple)) or len(each) != len(keys) or set(map(type, each)) != {bool}:
        raise ArgumentError(
            f"{label}: descending={descending!r} is neither True nor False nor a list with one for each column."
        )
    return ", ".join(_ordered(schema.field(key), down) for key, down in zip(keys, each, strict=True))


def listed(names: Sequence[str]) -> str:
    """Return the columns of these names."""
    return ", ".join(map(quoted, names))


def check_free(label: str, schema: pa.Schema) -> None:
    """Refuse a dataset with a column of the name that the numbers of rows have."""
    for name in schema.names:
        if name.lower() == "_row":
            raise ArgumentError(
                f"{label}: the dataset has a column {name!r}, which is the name of the number of each row here. "
                "Rename it before, with rename_columns."
            )


def check_names(label: str, names: Sequence[str], schema: pa.Schema) -> None:
    """Refuse names of columns that there are not."""
    for name in names:
        if name not in schema.names:
            raise unknown_column(label, name, schema.names)


def _ordered(field: pa.Field, descending: bool) -> str:
    """Return the terms of ORDER BY: nulls are last, and NaN before them, which DuckDB takes for the biggest."""
    name = quoted(field.name)
    if not descending:
        return f"{name} ASC NULLS LAST"
    nan = f"isnan({name}) ASC NULLS LAST, " if pt.is_floating(plain(field.type)) else ""
    return f"{nan}{name} DESC NULLS LAST"


def drawn_by(label: str, seed: Any) -> str:
    """Return what rows are ordered by to look random; MD5 is the same in every version of every engine."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ArgumentError(f"{label}: seed={seed!r} is not a whole number.")
    return f"md5_number_lower(_row::VARCHAR || ':{seed or 0}')"
