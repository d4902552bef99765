"""Warns of folders that are no input by themselves: outputs that are not complete, the files of tables."""

from __future__ import annotations

import os

from headrace.core.warn import warn
from headrace.core.work import HOME, SUCCESS
from headrace.sources.files import PathArgument, absolute_paths


def warn_of_unfinished(paths: PathArgument) -> None:
    """Warn, on behalf of the caller's caller, if a folder is the output of a run that is not complete."""
    tables = [folder for folder in absolute_paths(paths) if os.path.isdir(os.path.join(folder, "_delta_log"))]
    if tables:
        warn(
            f"The folder {tables[0]!r} is a Delta table: its Parquet files may hold rows of older versions, or of "
            "runs that are not complete. read_delta reads only the rows of one version."
        )
    unfinished = [
        folder
        for folder in dict.fromkeys(absolute_paths(paths))
        if os.path.isdir(os.path.join(folder, HOME)) and not os.path.exists(os.path.join(folder, SUCCESS))
    ]
    if unfinished:
        several = len(unfinished) > 1
        warn(
            f"The folder{'s' if several else ''} {', '.join(map(repr, unfinished))} {'are' if several else 'is'} the "
            f"unfinished output of a headrace run: {SUCCESS} is missing, and rows may be missing, too. Run its job "
            "again to complete it."
        )
