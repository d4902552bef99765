"""The options that writers share: written once for all verbs that take them, by ``**options: Unpack[FileOptions]``.

None is as if an option were not given. ``write_parquet`` says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.work import Durability
    from headrace.options import Fix, Mode, OnChange, Refresh


class WriteOptions(TypedDict, total=False):
    """Of all writers."""

    schema: pa.Schema | None
    on_change: OnChange | None
    incremental: bool | None
    durability: Durability | None
    provenance: str | None
    refresh: Refresh | None
    fix: Fix | None


class LakeOptions(WriteOptions, total=False):
    """Of tables that are files and a log."""

    key: str | Sequence[str] | None
    min_rows_per_file: int | None
    max_rows_per_file: int | None


class OutputOptions(WriteOptions, total=False):
    """Of outputs that readers find by their folder."""

    mode: Mode | None
    key: str | Sequence[str] | None


OF_RUNS = {
    "mode": "resume (default) goes on with what is there, overwrite replaces it; where a run is finished, ignore "
    "leaves it and error refuses.",
    "on_change": "If the model or code has changed: refuse (default), continue or restart.",
    "incremental": "Add the rows of input files that are new since the last run into OUT; nothing new, no work.",
    "refresh": "changed, with --incremental: make those rows again that an older model or code made. rejected: try "
    "rows again that were set aside, and no others.",
    "fix": "With --refresh rejected: what `headrace rejected OUT --to FILE` wrote, with other values in it.",
    "key": "With --incremental: key columns, with commas. Files that were written again are read again, and only "
    "rows with new keys are processed.",
    "durability": "power (default), or process: what is finished outlives a kill.",
}
"""Those that are options of runs, too; here they override ``with_options``. Each as the command line explains it."""


class StoredOptions(OutputOptions, total=False):
    """Of outputs that may lie in a store."""

    storage_options: Mapping[str, Any] | None


class FileOptions(StoredOptions, total=False):
    """Of formats whose files have many rows."""

    min_rows_per_file: int | None
    max_rows_per_file: int | None


class FolderOptions(FileOptions, total=False):
    """Of formats that may leave out columns which folders are named for."""

    partition_by: str | Sequence[str] | None
    partition_cols: str | Sequence[str] | None
