"""Whole numbers in JSON lines that the type inferred for their field would round."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.errors import UnreadableFile
from headrace.sources.exact import rounded
from headrace.sources.json.lines import TooDeep, loaded

_MANY_DIGITS = re.compile(rb"\d{16}")


class Rounded(pa.ArrowInvalid):  # type: ignore[misc]  # pyarrow has no types
    """A line holds a number that its field would round."""

    def __init__(self, found: RoundedNumber) -> None:
        super().__init__(f"{found.text} is {found.what}")
        self.found = found


class RoundedNumber(NamedTuple):
    """Which line (blank ones not counted), the field's dotted name, the number, and what becomes of it."""

    line: int
    field: str
    text: str
    what: str


def first_rounded(lines: bytes, schema: pa.Schema) -> RoundedNumber | None:
    """Find the first number that ``schema`` rounds."""
    if not _MANY_DIGITS.search(lines):
        return None
    row = 0
    for line in lines.splitlines():
        if not line.strip():
            continue
        if _MANY_DIGITS.search(line):
            found = _in_line(line, schema)
            if found is not None:
                return RoundedNumber(row, *found)
        row += 1
    return None


def _in_line(line: bytes, schema: pa.Schema) -> tuple[str, str, str] | None:
    try:
        value = loaded(line, parse_int=str)
    except TooDeep:
        raise
    except ValueError:  # another check reports it
        return None
    for field in schema:
        if isinstance(value, dict) and (found := _in(value.get(field.name), field.type, field.name)):
            return found
    return None


def _in(value: Any, type_: pa.DataType, name: str) -> tuple[str, str, str] | None:
    if pa.types.is_floating(type_) and isinstance(value, str):
        what = rounded(value)
        return None if what is None else (name, value, what)
    if pa.types.is_struct(type_) and isinstance(value, dict):
        inner = ((value.get(field.name), field.type, f"{name}.{field.name}") for field in type_)
    elif pa.types.is_list(type_) and isinstance(value, list):
        inner = ((item, type_.value_type, name) for item in value)
    else:
        return None
    return next((found for each in inner if (found := _in(*each))), None)


def explain_rounded(where: str, found: RoundedNumber) -> UnreadableFile:
    """Return the error for a number that would be rounded."""
    return UnreadableFile(
        f"Cannot read {where}: the field {found.field!r} is {found.text}, {found.what}; that type was inferred from "
        "the first part of the files. Set the type with schema=pyarrow.schema([...]): decimal128(38, 9) or uint64 "
        "hold such numbers, float64 rounds them."
    ).showing(found.text)
