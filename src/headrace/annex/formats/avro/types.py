"""Arrow types for Avro schemas, and the values of columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]

_UNITS = {"millis": "ms", "micros": "us", "nanos": "ns"}
_WHOLE, _BROKEN = {"int", "long"}, {"float", "double"}


class NoArrowType(Exception):
    """A schema, or a part of one, that no Arrow type stands for."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its type, and what makes its values of those that are decoded, if they are others."""

    name: str
    type: pa.DataType
    convert: Convert | None = None

    def column(self, records: Sequence[Mapping[str, Any]]) -> pa.Array:
        """Return the values of these records."""
        import pyarrow as pa

        values = [record[self.name] for record in records]
        if self.convert is not None:
            convert = self.convert
            values = [None if value is None else convert(value) for value in values]
        return pa.array(values, self.type)


def fields_of(schema: Any) -> list[Field]:
    """Return the columns of a schema that fastavro has parsed; ``NoArrowType`` for what has none."""
    if not isinstance(schema, dict) or schema.get("type") not in ("record", "error"):
        raise NoArrowType("its schema is not a record, so it has no columns")
    types = _Types()
    types.named[schema["name"]] = None
    return [Field(each["name"], *types.of(each["type"], each["name"])) for each in schema["fields"]]


def without_logical_types(schema: Any) -> Any:
    """Return a schema whose values are decoded as they are stored: dates and times as numbers, UUIDs as texts.

    Decimals stay: their scale is in the schema.
    """
    if isinstance(schema, list):
        return [without_logical_types(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if key != "logicalType" or value == "decimal"}
    for key in ("type", "items", "values", "fields"):
        if key in kept:
            kept[key] = without_logical_types(kept[key])
    return kept


class _Types:
    def __init__(self) -> None:
        self.named: dict[str, tuple[pa.DataType, Convert | None] | None] = {}  # None: it is being made

    def of(self, schema: Any, place: str) -> tuple[pa.DataType, Convert | None]:
        import pyarrow as pa

        if isinstance(schema, list):
            return self._union(schema, place)
        if isinstance(schema, str):
            return self._plain(schema, place)
        kind = schema["type"]
        logical = self._logical(schema)
        if logical is not None:
            return logical, None
        if kind == "array":
            type_, convert = self.of(schema["items"], f"{place}[]")
            return pa.list_(type_), convert and (
                lambda values: [_converted(each, convert) for each in values]
            )
        if kind == "map":
            type_, convert = self.of(schema["values"], f"{place}[]")
            return pa.map_(pa.string(), type_), lambda pairs: [
                (key, _converted(value, convert)) for key, value in pairs.items()
            ]
        if kind in ("record", "error", "enum", "fixed"):
            self.named[schema["name"]] = None
            made = self._named(kind, schema, place)
            self.named[schema["name"]] = made
            return made
        return self.of(kind, place)

    def _named(self, kind: str, schema: Any, place: str) -> tuple[pa.DataType, Convert | None]:
        import pyarrow as pa

        if kind == "enum":
            return pa.string(), None
        if kind == "fixed":
            return pa.binary(schema["size"]), None
        fields = [
            (each["name"], *self.of(each["type"], f"{place}.{each['name']}")) for each in schema["fields"]
        ]
        converts = {name: convert for name, _, convert in fields if convert is not None}
        type_ = pa.struct([(name, each) for name, each, _ in fields])
        if not converts:
            return type_, None
        return type_, lambda record: {
            name: _converted(value, converts.get(name)) for name, value in record.items()
        }

    def _logical(self, schema: Any) -> pa.DataType | None:
        """Return the type of a date, a time or a decimal; None if the schema is of none of these."""
        import pyarrow as pa

        name, kind = schema.get("logicalType", ""), schema["type"]
        if name == "decimal" and (kind == "bytes" or kind == "fixed"):
            precision = schema["precision"]
            make = pa.decimal128 if precision <= 38 else pa.decimal256
            return make(precision, schema.get("scale", 0))
        if name == "date" and kind == "int":
            return pa.date32()
        what, _, unit = name.rpartition("-")
        if unit not in _UNITS or kind != ("int" if name == "time-millis" else "long"):
            return None
        if what == "timestamp":
            return pa.timestamp(_UNITS[unit], "UTC")
        if what == "local-timestamp":
            return pa.timestamp(_UNITS[unit])
        if what == "time":
            return pa.time32("ms") if unit == "millis" else pa.time64(_UNITS[unit])
        return None

    def _plain(self, name: str, place: str) -> tuple[pa.DataType, Convert | None]:
        import pyarrow as pa

        plain = {
            "null": pa.null(),
            "boolean": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "float": pa.float32(),
            "double": pa.float64(),
            "bytes": pa.binary(),
            "string": pa.string(),
        }
        if name in plain:
            return plain[name], None
        found = self.named.get(name)
        if found is None:
            raise NoArrowType(f"the record {name!r}, at {place!r}, contains itself, and no Arrow type does")
        return found

    def _union(self, schemas: Sequence[Any], place: str) -> tuple[pa.DataType, Convert | None]:
        import pyarrow as pa

        others = [each for each in schemas if each != "null"]
        if len(others) <= 1:
            return self.of(others[0] if others else "null", place)
        plain = {each for each in others if isinstance(each, str)}
        if len(plain) == len(others) and plain <= _WHOLE:
            return pa.int64(), None
        if len(plain) == len(others) and plain <= _WHOLE | _BROKEN:
            return pa.float64(), _exact
        names = [each if isinstance(each, str) else str(each.get("name", each["type"])) for each in others]
        raise NoArrowType(f"{place!r} is one of {', '.join(names)}, and a column has only one type")


def _exact(value: float) -> float:
    """Return a number as a float; ``ValueError`` for an integer that this would round."""
    if isinstance(value, int) and int(float(value)) != value:
        raise ValueError(f"{value} is a whole number that a column with fractions would round")
    return float(value)


def _converted(value: Any, convert: Convert | None) -> Any:
    return value if value is None or convert is None else convert(value)
