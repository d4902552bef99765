"""CSV files, and their format: delimiter, quotes, encoding, nulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.errors import ArgumentError


@dataclass(frozen=True)
class CsvFormat:
    """How the files are written. Names and meanings are those of ``read_csv``."""

    column_types: Mapping[str, Any] = field(default_factory=dict)
    column_names: tuple[str, ...] | None = None
    has_header: bool = True
    delimiter: str = ","
    quote_char: str | None = '"'
    escape_char: str | None = None
    newlines_in_values: bool = True
    encoding: str = "utf8"
    skip_rows: int = 0
    null_values: tuple[str, ...] | None = None
    strings_can_be_null: bool = False
    decimal_point: str = "."
    timestamp_parsers: tuple[str, ...] | None = None
    quoted_strings_can_be_null: bool = True

    @classmethod
    def given(
        cls, *, column_types: Mapping[str, Any] | None = None, has_header: bool | None = None, **options: Any
    ) -> CsvFormat:
        """Return the format that options of ``read_csv`` say; refuses what cannot be meant."""
        for name in ("column_names", "null_values", "timestamp_parsers"):
            values: Sequence[str] | None = options.get(name)
            if isinstance(values, str):
                raise ArgumentError(f"{name} is a list of strings; write {name}=[{values!r}].")
            options[name] = None if values is None else tuple(values)
        if has_header is None:
            has_header = options["column_names"] is None
        made = cls(column_types=dict(column_types or {}), has_header=has_header, **options)
        for name in ("delimiter", "quote_char", "escape_char", "decimal_point"):
            mark = getattr(made, name)
            if not _is_mark(mark) and not (mark is None and name in ("quote_char", "escape_char")):
                raise ArgumentError(f"{name} is a single ASCII character, not {mark!r}.")
        return made


def _is_mark(mark: object) -> bool:
    return isinstance(mark, str) and len(mark) == 1 and mark.isascii() and mark not in "\r\n"
