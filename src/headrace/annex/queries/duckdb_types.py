"""Types of Arrow and of DuckDB: which have the same values, and what is read and written where they differ."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from headrace.annex.queries.engines import Query
from headrace.errors import PlanError

# Types of Arrow, and the types of DuckDB that have the same values.
_SAME = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.time64("us"): "TIME",
    pa.timestamp("ms"): "TIMESTAMP_MS",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("ns"): "TIMESTAMP_NS",
    pa.timestamp("us", "UTC"): "TIMESTAMP WITH TIME ZONE",
}
_ARROW = {name.lower(): kind for kind, name in _SAME.items()}
# Types whose values are the same in another type of Arrow, in which they are read.
_WIDER = {
    pa.float16(): pa.float32(),
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
    pa.timestamp("s"): pa.timestamp("ms"),
    pa.date64(): pa.date32(),
    pa.null(): pa.int32(),
}
# Types of results that Parquet does not have, and what they are written as: an error where a value does not fit.
_WRITTEN = {
    "hugeint": "DECIMAL(38, 0)",
    "uhugeint": "DECIMAL(38, 0)",
    "bignum": "DECIMAL(38, 0)",
    "uuid": "VARCHAR",
    "enum": "VARCHAR",
    "json": "VARCHAR",
    "timestamp_s": "TIMESTAMP",
    "null": "INTEGER",
}


def quoted(name: str) -> str:
    """Return a name as DuckDB takes any."""
    return '"' + name.replace('"', '""') + '"'


def normal(kind: Any) -> str:
    """Return a type's name so that names can be compared."""
    return str(kind).lower().replace(" ", "").replace('"', "")


def sql_type(kind: pa.DataType) -> str:
    """Return the type of DuckDB that has all values of a type of Arrow; "" if there is none."""
    kind = plain(kind)
    if kind in _SAME:
        return _SAME[kind]
    if pt.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})" if 0 <= kind.scale <= kind.precision <= 38 else ""
    if pt.is_struct(kind):
        fields = [(quoted(each.name), sql_type(each.type)) for each in kind.fields]
        return f"STRUCT({', '.join(map(' '.join, fields))})" if fields and all(t for _, t in fields) else ""
    if pt.is_map(kind):
        pair = [sql_type(kind.key_type), sql_type(kind.item_type)]
        return f"MAP({', '.join(pair)})" if all(pair) else ""
    if pt.is_fixed_size_list(kind):
        inner = sql_type(kind.value_type)
        return f"{inner}[{kind.list_size}]" if inner and kind.list_size else ""
    if pt.is_list(kind) or pt.is_large_list(kind):
        inner = sql_type(kind.value_type)
        return f"{inner}[]" if inner else ""
    return ""


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values are read, which is the same but for its name, its zone or its width."""
    if isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type
    if pt.is_dictionary(kind):
        return plain(kind.value_type)
    if pt.is_timestamp(kind) and kind.tz and kind.unit != "ns":
        return pa.timestamp("us", "UTC")
    if pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_decimal(kind) and not pt.is_decimal256(kind):
        return pa.decimal128(kind.precision, kind.scale)
    return _WIDER.get(kind, kind)


def seen_as(kind: pa.DataType, seen: str) -> bool:
    """Say whether what DuckDB sees in a file has the values of a type: there, lists have no size, times no unit."""
    wanted = normal(sql_type(kind))
    if pt.is_fixed_size_list(plain(kind)):
        return seen == wanted.rpartition("[")[0] + "[]"
    return seen == wanted or (wanted == "timestamp_ms" and seen == "timestamp")


def written(text: str, relation: Any) -> str:
    """Return the query with casts for what Parquet does not have."""
    wanted = [
        (name, normal(kind), written_as(kind))
        for name, kind in zip(relation.columns, relation.types, strict=True)
    ]
    if all(is_ == normal(to) for _, is_, to in wanted):
        return text
    columns = [f"CAST({quoted(name)} AS {to}) AS {quoted(name)}" for name, _, to in wanted]
    return f"SELECT {', '.join(columns)} FROM ({text}\n) AS headrace_result"


def written_as(kind: Any) -> str:
    """Return the type in which a type of DuckDB is written."""
    if kind.id in _WRITTEN:
        return _WRITTEN[kind.id]
    if kind.id in ("list", "array"):
        size = dict(kind.children).get("size", "") if kind.id == "array" else ""
        return f"{written_as(kind.children[0][1])}[{size}]"
    if kind.id == "struct":
        return f"STRUCT({', '.join(f'{quoted(name)} {written_as(inner)}' for name, inner in kind.children)})"
    if kind.id == "map":
        return f"MAP({', '.join(written_as(inner) for _, inner in kind.children)})"
    return str(kind)


def arrow_type(kind: Any, name: str, label: str) -> pa.DataType:
    """Return the type of Arrow in which a column of the result is read."""
    if kind.id == "decimal":
        sizes = dict(kind.children)
        return pa.decimal128(sizes["precision"], sizes["scale"])
    if kind.id in ("hugeint", "uhugeint", "bignum"):
        return pa.decimal128(38, 0)
    if kind.id == "list":
        return pa.list_(arrow_type(kind.children[0][1], name, label))
    if kind.id == "array":
        children = dict(kind.children)
        return pa.list_(arrow_type(children["child"], name, label), children["size"])
    if kind.id == "struct":
        return pa.struct([(inner, arrow_type(each, name, label)) for inner, each in kind.children])
    if kind.id == "map":
        return pa.map_(*(arrow_type(inner, name, label) for _, inner in kind.children))
    found = _ARROW.get(_WRITTEN.get(kind.id, str(kind)).lower())
    if found is None:
        raise PlanError(
            f"{label}: the result's column {name!r} is {kind}, which cannot be written without a change of its "
            "values. Cast it in the query, such as to VARCHAR, or leave it out."
        )
    return found


def restored(schema: pa.Schema, query: Query) -> pa.Schema:
    """Give columns the shape or the zone back that a column of their name has in the inputs, if all agree on it."""
    found = []
    for field in schema:
        given = {each.field(field.name).type for each in query.schemas.values() if field.name in each.names}
        kind = next(iter(given)) if len(given) == 1 else field.type
        tensor, zone = isinstance(kind, pa.FixedShapeTensorType), pt.is_timestamp(kind) and kind.tz
        same = (tensor or zone) and plain(kind) == field.type
        found.append(field.with_type(pa.timestamp("us", kind.tz) if zone else kind) if same else field)
    return pa.schema(found)
