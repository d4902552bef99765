"""The options that writers share: written once for all verbs that take them, by ``**options: Unpack[FileOptions]``.

None is as if an option were not given. ``write_parquet`` says what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.work import Durability
    from headrace.options import Mode, OnChange, Refresh


class WriteOptions(TypedDict, total=False):
    """Of all writers."""

    schema: pa.Schema | None
    on_change: OnChange | None
    durability: Durability | None


class LakeOptions(WriteOptions, total=False):
    """Of tables whose runs may follow one another."""

    incremental: bool | None
    key: str | Sequence[str] | None


class OutputOptions(LakeOptions, total=False):
    """Of outputs that readers find by their folder."""

    mode: Mode | None
    refresh: Refresh | None


OF_RUNS = tuple(name for name in OutputOptions.__annotations__ if name != "schema")
"""Those that are options of runs, too; here they override ``with_options``."""


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
