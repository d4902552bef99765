"""Arguments that readers share: options of ``pyarrow.csv`` and ``pyarrow.json``, and a warning of folders."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from headrace.core.arguments import Translated, Unsupported
from headrace.core.door import loaded
from headrace.core.terminal import warn
from headrace.core.work import HOME, SUCCESS
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.plan.ray_arguments import READ
from headrace.sources.csv import CsvFormat
from headrace.sources.file_source import PathArgument, given_paths

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
        if name in CsvFormat.__dataclass_fields__:  # no quotes and no escapes are False there
            found[name] = None if value is False and name.endswith("_char") else value
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


def given_parse_options(options: Any) -> Mapping[str, Any]:
    """Return what ``pyarrow.json.ParseOptions`` say that is not the default, by the names of ``read_json``."""
    from pyarrow import json

    if not isinstance(options, json.ParseOptions):
        raise ArgumentError(
            f"parse_options={options!r} is not a pyarrow.json.ParseOptions; schema= says the fields."
        )
    schema, others = options.explicit_schema, options.unexpected_field_behavior
    if schema is None and others == "infer":
        return {}
    if schema is None or others != "ignore":
        raise ArgumentError(
            f"read_json has no use for unexpected_field_behavior={others!r} of ParseOptions: with a schema, other "
            "fields are passed over ('ignore'); without one, all are read."
        )
    return {"schema": schema}


READ_JSON: dict[str, Unsupported] = {
    **ray_arguments.READ_JSON,
    "parse_options": Translated("", (None,), given_parse_options),
    "read_options": Unsupported("how much is read at a time is settled by size", None),
}


def of_files(source: str, arguments: Mapping[str, Any]) -> Dataset:
    """Begin a dataset with files: ``arguments`` of a reader are those of its source, and those of the store."""
    options = dict(arguments)
    paths, storage_options = options.pop("paths"), options.pop("storage_options")
    warn_of_unfinished(paths)
    return Dataset.from_source(loaded(source)(paths, **options).in_store(storage_options))


def warn_of_unfinished(paths: PathArgument) -> None:
    """Warn, on behalf of the caller's caller, if a folder is the output of a run that is not complete."""
    folders = [each.path for each in given_paths(paths)]
    tables = [folder for folder in folders if os.path.isdir(os.path.join(folder, "_delta_log"))]
    if tables:
        warn(
            f"The folder {tables[0]!r} is a Delta table: its Parquet files may hold rows of older versions, or of "
            "runs that are not complete. read_delta reads only the rows of one version."
        )
    unfinished = [
        folder
        for folder in dict.fromkeys(folders)
        if os.path.isdir(os.path.join(folder, HOME)) and not os.path.exists(os.path.join(folder, SUCCESS))
    ]
    if unfinished:
        several = len(unfinished) > 1
        warn(
            f"The folder{'s' if several else ''} {', '.join(map(repr, unfinished))} {'are' if several else 'is'} the "
            f"unfinished output of a headrace run: {SUCCESS} is missing, and rows may be missing, too. Run its job "
            "again to complete it."
        )
