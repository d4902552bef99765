"""JSON lines and arrays, plain or compressed; big plain files of lines are read in byte ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from headrace.core.files.formats import suffixes_read_by
from headrace.core.work import Split
from headrace.errors import ArgumentError
from headrace.sources.file_source import PathArgument
from headrace.sources.lines import LineSource

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.sources.json.layout import JsonRecords
    from headrace.sources.json.reader import JsonReader


class JsonSource(LineSource):
    """Reads files of one JSON object per line as one table.

    A file that begins with ``[`` is one array of objects: it is one split, which is in memory while it is read.
    Without ``schema``, it is inferred, and a field that turns up later is an error; with it, other fields are passed
    over. A field that a line lacks is null.
    """

    kind = "json"
    suffixes = suffixes_read_by("read_json")
    objects = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        schema: pa.Schema | None = None,
        partitioning: Literal["hive"] | None = "hive",
        include_paths: bool = False,
        block_bytes: int | None = None,
    ) -> None:
        if schema is not None and not (hasattr(schema, "names") and hasattr(schema, "serialize")):
            raise ArgumentError(f"schema is a pyarrow.Schema, not {type(schema).__name__}.")
        super().__init__(
            paths, partitioning=partitioning, include_paths=include_paths, block_bytes=block_bytes
        )
        self._given = schema

    def options(self) -> dict[str, Any]:
        return {
            "schema": None if self._given is None else {each.name: str(each.type) for each in self._given}
        }

    def format(self) -> JsonRecords:
        from headrace.sources.json.layout import JsonRecords

        return JsonRecords(self._given)

    def reader(self, split: Split, columns: Sequence[str] | None) -> JsonReader:
        from headrace.sources.json.reader import JsonReader

        return JsonReader(
            self.file(split.file).path, split, self.inspected(), columns, strict=self._given is None
        )
