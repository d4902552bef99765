"""CSV files, plain or compressed; big plain ones are read in byte ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.files.formats import suffixes_read_by
from headrace.core.work import Split
from headrace.sources.csv import CsvFormat
from headrace.sources.file_source import PathArgument
from headrace.sources.lines import LineSource, check_encoding

if TYPE_CHECKING:
    from headrace.sources.csv.layout import CsvRecords
    from headrace.sources.csv.reader import CsvReader


class CsvSource(LineSource):
    """Reads CSV files as one table; ``form`` has the fields of ``CsvFormat``.

    Planning reads big files once, to find out which newlines are quoted, unless ``newlines_in_values`` is False.
    Escapes, and encodings other than UTF-8, ASCII, ISO 8859 and Windows code pages, keep a file in one split.
    """

    kind = "csv"
    suffixes = suffixes_read_by("read_csv")

    def __init__(
        self,
        paths: PathArgument,
        *,
        partitioning: Literal["hive"] | None = "hive",
        include_paths: bool = False,
        block_bytes: int | None = None,
        **form: Any,
    ) -> None:
        self._format = CsvFormat.given(**form)
        check_encoding(self._format.encoding)
        super().__init__(
            paths, partitioning=partitioning, include_paths=include_paths, block_bytes=block_bytes
        )

    def options(self) -> dict[str, Any]:
        described = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(self._format).items()
        }
        if described["quoted_strings_can_be_null"]:
            del described["quoted_strings_can_be_null"]  # as in older outputs
        types = self._format.column_types.items()
        return {
            **described,
            "column_types": {
                name: each.__name__ if isinstance(each, type) else str(each) for name, each in types
            },
        }

    def format(self) -> CsvRecords:
        from headrace.sources.csv.layout import CsvRecords

        return CsvRecords(self._format)

    def reader(self, split: Split, columns: Sequence[str] | None) -> CsvReader:
        from headrace.sources.csv.reader import CsvReader

        return CsvReader(self.file(split.file).path, split, self.inspected(), columns, self._format)
