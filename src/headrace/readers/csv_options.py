"""The options of ``pyarrow.csv``, in its three classes, as arguments of ``read_csv``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.arguments import Translated, Unsupported
from headrace.errors import ArgumentError
from headrace.plan.ray_arguments import READ

_SAME_NAME = (
    "column_names", "encoding", "skip_rows", "delimiter", "column_types", "null_values", "strings_can_be_null",
    "decimal_point", "timestamp_parsers",
)  # fmt: skip
_CHARACTERS = ("quote_char", "escape_char")
_HARMLESS = ("block_size", "use_threads", "newlines_in_values", "check_utf8")
_INSTEAD = {
    "include_columns": "select_columns after it chooses columns",
    "invalid_row_handler": 'with_options(on_error="reject") sets such rows aside',
}


def given_csv_options(options: Any) -> Mapping[str, Any]:
    """Return what options of ``pyarrow.csv`` say that is not its default, by the names of ``read_csv``.

    >>> from pyarrow import csv
    >>> given_csv_options(csv.ParseOptions(delimiter=";", quote_char=False))
    {'delimiter': ';', 'quote_char': None}
    """
    from pyarrow import csv

    kinds = (csv.ReadOptions, csv.ParseOptions, csv.ConvertOptions)
    if not isinstance(options, kinds):
        raise ArgumentError(
            f"{options!r} is none of pyarrow.csv's ReadOptions, ParseOptions and ConvertOptions. The options have "
            "the same names as arguments of read_csv: delimiter=, column_names=, column_types=, ...."
        )
    usual, found = type(options)(), {}
    for name in sorted(name for name in dir(usual) if not name.startswith("_")):
        value = getattr(options, name)
        if callable(getattr(usual, name)) or value == getattr(usual, name) or name in _HARMLESS:
            continue
        if name in _SAME_NAME:
            found[name] = value
        elif name in _CHARACTERS:
            found[name] = value or None
        elif name == "autogenerate_column_names":
            found["has_header"] = False
        else:
            why = _INSTEAD.get(name, "read the file with pyarrow.csv and give the table to from_arrow")
            raise ArgumentError(
                f"read_csv has no use for {name}={value!r} of {type(options).__name__}: {why}."
            )
    return found


_OPTIONS = Translated("", (None,), given_csv_options)
READ_CSV: dict[str, Unsupported] = {
    **READ,
    "convert_options": _OPTIONS,
    "parse_options": _OPTIONS,
    "read_options": _OPTIONS,
}
