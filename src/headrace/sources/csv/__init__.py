"""CSV files, and their format: delimiter, quotes, encoding, nulls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CsvFormat:
    """How the files are written. Names and meanings follow ``pyarrow.csv``."""

    column_types: Mapping[str, Any]
    column_names: tuple[str, ...] | None
    has_header: bool
    delimiter: str
    quote_char: str | None
    escape_char: str | None
    newlines_in_values: bool
    encoding: str
    skip_rows: int
    null_values: tuple[str, ...] | None
    strings_can_be_null: bool
    decimal_point: str
    timestamp_parsers: tuple[str, ...] | None
