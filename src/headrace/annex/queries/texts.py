"""Texts of queries that verbs ask: joins, ``repartition``, ``train_test_split``, and pieces of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.queries.duckdb import HIDDEN, plain, quoted, sql_type
from headrace.annex.queries.engines import ROW
from headrace.core.tables import type_text
from headrace.errors import ArgumentError, nearest, unknown_column
from headrace.plan.parameters import given_names, given_number

if TYPE_CHECKING:
    from headrace.dataset.dataset import Dataset

_AT_ONCE = 100_000  # best rows of groups that are in memory, for each thread


def gathered(dataset: Dataset, keys: Any) -> Dataset:
    """Return the rows with those of the same keys one behind the other; without keys in a random order."""
    if keys is None:
        return dataset.random_shuffle()
    names = given_names("repartition: keys", keys)
    label = f"repartition(keys={list(names)})"
    order = order_by(label, dataset._schema(), names, False)
    return dataset._rows_of_data(label, f"ORDER BY {order}, _row")


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
        dataset._rows_of_data(f"{label} → {side}", f"WHERE _row {which} ({test}) ORDER BY _row")
        for side, which in (("train", "NOT IN"), ("test", "IN"))
    ]


# ---------------------------------------------------------------- pieces


def order_by(label: str, schema: pa.Schema, keys: Sequence[str], descending: Any) -> str:
    """Return what rows are sorted by. Raises ``ArgumentError`` and ``UnknownColumn``."""
    return ", ".join(map(" ".join, _terms(label, schema, keys, descending)))


def best_of_groups(k: int, label: str, schema: pa.Schema, by: Sequence[str], per: Sequence[str]) -> str:
    """Return the query for the first ``k`` rows of each group, as ``top_k`` says it.

    If there are few groups, the numbers of their best rows are found first, without a sort of all rows. DuckDB keeps
    those in memory and cannot spill them, so many groups, and columns of any size, are left to the sort.
    """
    terms, groups = [*_terms(label, schema, by, True), (ROW, "ASC NULLS LAST")], listed(per)
    first, order = order_by(label, schema, per, False), ", ".join(map(" ".join, terms))
    some = ""
    if all(pt.is_primitive(plain(schema.field(name).type)) for name in by):
        key = ", ".join(f"{column}, '{how}'" for column, how in terms)
        many = f"(SELECT approx_count_distinct(({groups})) * {k} > {_AT_ONCE} FROM data)"
        best = f"SELECT unnest(arg_min({ROW}, create_sort_key({key}), {k})) FROM data"
        some = f"WHERE {ROW} IN ({best} WHERE NOT {many} GROUP BY {groups}) OR {many} "
    place = f"QUALIFY row_number() OVER (PARTITION BY {groups} ORDER BY {order}) <= {k}"
    return f"SELECT * EXCLUDE ({ROW}) FROM (SELECT * FROM data {some}{place}) ORDER BY {first}, {order}"


def listed(names: Sequence[str]) -> str:
    """Return the columns of these names."""
    return ", ".join(map(quoted, names))


def check_free(label: str, schema: pa.Schema) -> None:
    """Refuse a dataset with a column of a name that numbers of rows have."""
    for name in schema.names:
        if name.lower() in {ROW, *HIDDEN}:
            raise ArgumentError(
                f"{label}: the dataset has a column {name!r}, a name that is used here to number rows. Rename the "
                "column before, with rename_columns."
            )


def check_names(label: str, names: Sequence[str], schema: pa.Schema) -> None:
    """Refuse names of columns that there are not."""
    for name in names:
        if name not in schema.names:
            raise unknown_column(label, name, schema.names)


def _terms(label: str, schema: pa.Schema, keys: Sequence[str], descending: Any) -> list[tuple[str, str]]:
    """Return the terms of ORDER BY: nulls are last, and NaN before them, which DuckDB takes for the biggest."""
    check_names(label, keys, schema)
    each = [descending] * len(keys) if isinstance(descending, bool) else descending
    if not isinstance(each, (list, tuple)) or len(each) != len(keys) or set(map(type, each)) != {bool}:
        raise ArgumentError(
            f"{label}: descending={descending!r} is neither True nor False nor a list with one for each column."
        )
    terms = []
    for key, down in zip(keys, each, strict=True):
        name = quoted(key)
        if down and pt.is_floating(plain(schema.field(key).type)):
            terms.append((f"isnan({name})", "ASC NULLS LAST"))
        terms.append((name, f"{'DESC' if down else 'ASC'} NULLS LAST"))
    return terms


def drawn_by(label: str, seed: Any) -> str:
    """Return what rows are ordered by to look random; MD5 is the same in every version of every engine."""
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ArgumentError(f"{label}: seed={seed!r} is not a whole number.")
    return f"md5_number_lower(_row::VARCHAR || ':{seed or 0}')"


# ---------------------------------------------------------------- joins

Side = tuple[pa.Schema, "str | None"]
"""The columns of one of the datasets, and what is put behind the names of those that both have."""

_JOINS = {
    "inner": "INNER",
    "left_outer": "LEFT",
    "right_outer": "RIGHT",
    "full_outer": "FULL",
    "left_semi": "SEMI",
    "left_anti": "ANTI",
    "right_semi": "SEMI",
    "right_anti": "ANTI",
    "left": "LEFT",
    "right": "RIGHT",
    "outer": "FULL",
    "semi": "SEMI",
    "anti": "ANTI",
}


def join(how: Any, join_type: Any, on: Any, right_on: Any, left: Side, right: Side) -> tuple[str, str]:
    """Return what messages call a join, and its text: of the datasets ``data`` and ``other``.

    Raises ``ArgumentError`` and ``UnknownColumn`` for what cannot be joined.
    """
    kind = _join_kind(how, join_type)
    if on is None:
        raise ArgumentError("join: on= names the columns that have to be the same, such as on='id'.")
    keys = given_names("join: on", on)
    theirs = keys if right_on is None else given_names("join: right_on", right_on)
    if len(keys) != len(theirs):
        raise ArgumentError(f"join: on= has {len(keys)} columns and right_on= {len(theirs)}.")
    label = f"join(on={list(keys)}, how={kind!r})"
    for key, their in zip(keys, theirs, strict=True):
        for asking, name, (schema, _) in ((label, key, left), (f"{label}, on the right,", their, right)):
            if name not in schema.names:
                raise unknown_column(asking, name, schema.names)
        a, b = left[0].field(key).type, right[0].field(their).type
        if not _comparable(a, b):
            raise ArgumentError(
                f"{label}: column {key!r} is {type_text(a)} here and {their!r} is {type_text(b)} in the other, "
                "so that values would have to change to be compared. Make them of one type in a step before, as with "
                f"with_column({key!r}, hr.col({key!r}).cast(…))."
            )
    made = _JOINS[kind]
    first, second = ("other", "data") if kind in ("right_semi", "right_anti") else ("data", "other")
    pairs = " AND ".join(f"data.{quoted(a)} = other.{quoted(b)}" for a, b in zip(keys, theirs, strict=True))
    columns = f"{first}.*"
    if made not in ("SEMI", "ANTI"):
        columns = ", ".join(
            _joined_columns(label, made, (left[0], keys, left[1]), (right[0], theirs, right[1]))
        )
    return label, f"SELECT {columns} FROM {first} {made} JOIN {second} ON {pairs}"


def _join_kind(how: Any, join_type: Any) -> str:
    said = [str(getattr(each, "value", each)) for each in (how, join_type) if each is not None] or ["inner"]
    if said[0] != said[-1]:
        raise ArgumentError(
            f"join: how={how!r} and join_type={join_type!r} say the same thing; give one of them."
        )
    if said[0] not in _JOINS:
        raise ArgumentError(
            f"join: how={said[0]!r} is none of {', '.join(_JOINS)}.{nearest(said[0], _JOINS)}"
        )
    return said[0]


def _comparable(one: pa.DataType, other: pa.DataType) -> bool:
    """Say whether values of two types can be compared as they are."""
    a, b = plain(one), plain(other)
    return sql_type(a) == sql_type(b) or any(
        test(a) and test(b) for test in (pt.is_integer, pt.is_floating, pt.is_decimal)
    )


def _joined_columns(
    label: str,
    kind: str,
    left: tuple[pa.Schema, Sequence[str], str | None],
    right: tuple[pa.Schema, Sequence[str], str | None],
) -> list[str]:
    (schema, keys, suffix), (other, theirs, other_suffix) = left, right
    partner = dict(zip(keys, theirs, strict=True))
    behind = [name for name in other.names if name not in theirs]
    twice = [name for name in behind if name in schema.names]
    if twice and not suffix and not other_suffix:
        raise ArgumentError(
            f"{label}: both datasets have a column {twice[0]!r}. Give left_suffix= or right_suffix=, such as "
            "right_suffix='_right', rename it, or drop it before."
        )
    columns = {}
    for name in schema.names:
        text = _nullable(label, "data", schema.field(name), kind in ("RIGHT", "FULL"))
        if name in partner and kind in ("RIGHT", "FULL"):
            text = f"coalesce({text}, other.{quoted(partner[name])})"
        columns[f"{name}{suffix or ''}" if name in twice and name not in partner else name] = text
    for name in behind:
        made = f"{name}{other_suffix or ''}" if name in twice else name
        if made in columns:
            raise ArgumentError(
                f"{label}: two columns would be called {made!r}. Choose another suffix, or rename one of them before."
            )
        columns[made] = _nullable(label, "other", other.field(name), kind in ("LEFT", "FULL"))
    return [f"{text} AS {quoted(name)}" for name, text in columns.items()]


def _nullable(label: str, side: str, field: pa.Field, may_be_null: bool) -> str:
    """Return a column; a vector that may be null becomes a list, as pyarrow reads no null vector from Parquet.

    A tensor becomes a list of lists.
    """
    text, kind = f"{side}.{quoted(field.name)}", plain(field.type)
    if not may_be_null or not _has_vectors(kind):
        return text
    tensor = field.type if isinstance(field.type, pa.FixedShapeTensorType) else None
    permuted = tensor and tensor.permutation not in (None, [*range(len(tensor.shape))])
    if pt.is_fixed_size_list(kind) and not _has_vectors(kind.value_type) and not permuted:
        values = f"{text}::{sql_type(kind.value_type)}[]"
        return f"CASE WHEN {text} IS NOT NULL THEN {_nested(values, tensor.shape)} END" if tensor else values
    raise ArgumentError(
        f"{label}: rows without a partner would have null in column {field.name!r}, {type_text(field.type)}, and no "
        "null of this type can be read from Parquet. Leave the column out before, or join with how='inner'."
    )


def _nested(values: str, shape: Sequence[int]) -> str:
    """Return a list of this shape of the values of a flat one."""
    if len(shape) < 2:
        return values
    size, at = math.prod(shape[1:]), f"at{len(shape)}"
    rest = _nested(f"({values})[{at} * {size} + 1:({at} + 1) * {size}]", shape[1:])
    return f"[{rest} for {at} in range({shape[0]})]"


def _has_vectors(kind: pa.DataType) -> bool:
    """Say whether a list of a fixed size is in a type."""
    return bool(
        pt.is_fixed_size_list(kind)
        or (pt.is_nested(kind) and any(_has_vectors(kind.field(i).type) for i in range(kind.num_fields)))
    )
