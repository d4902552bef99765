"""ORC files, read stripe by stripe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad, Location
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.sources.file_source import FileSource, damaged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import orc

_SPLIT_BYTES = 8 << 20  # of a file: below that, it is one split
_UNPACKED = 4  # bytes in memory for each in a file, about


class _Found(NamedTuple):
    stripes: list[int]
    rows: list[int]
    schema: pa.Schema


class OrcSource(FileSource[_Found]):
    """Reads ORC files; a split is a stripe, or a whole file of less than 8 MiB.

    Only a file's footer says how many rows it has, and none how many a stripe has. ORC has no checksums: damage is
    noticed where the compression or the encoding notices it.
    """

    kind = "orc"
    suffixes = suffixes_read_by("read_orc")
    reads_objects = True

    def inspect(self, files: list[InputFile]) -> _Found:
        from headrace.sources.schemas import unify

        footers = []
        for file in files:
            with _opened(file.path) as opened:
                footers.append((opened.nstripes, opened.nrows, opened.schema.remove_metadata()))
        schema = unify((file.path, each[2]) for file, each in zip(files, footers, strict=True))
        return _Found([each[0] for each in footers], [each[1] for each in footers], schema)

    def splits(self) -> list[Split]:
        """List stripes, and whole files that are small."""
        found = self.refreshed()
        splits = []
        for number, (stripes, rows) in enumerate(zip(found.stripes, found.rows, strict=True)):
            size = self.file(number).size * _UNPACKED
            if rows and (stripes == 1 or size <= _SPLIT_BYTES * _UNPACKED):
                splits.append(Split(number, 0, stripes, rows, size))
            elif rows:
                splits += [
                    Split(number, i, i + 1, -1, max(1, size // stripes), -1 if i else 0)
                    for i in range(stripes)
                ]
        return splits

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the stripes of a split; the rows of a stripe that is a file's only one are bad together."""
        import pyarrow as pa

        from headrace.sources.schemas import conformed, select

        path = self.file(split.file).path
        whole = self.inspected().schema
        target = select(whole, columns)
        with _opened(path) as file:
            own = file.schema.names
            # Without a column, a stripe does not say how many rows it has.
            wanted = [name for name in target.names if name in own] or own[:1]
            for stripe in range(split.start, split.stop):
                try:
                    rows = file.read_stripe(stripe, columns=wanted)
                    rows.validate(full=True)
                except (OSError, ValueError, pa.ArrowException) as error:
                    unreadable = damaged(f"stripe {stripe} of {path!r} as ORC", error)
                    if bad is None or split.rows < 0 or file.nstripes > 1:
                        raise unreadable from error
                    bad(0, split.rows, unreadable)
                    return
                yield from conformed(rows, target, path, batch_rows)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the row; behind the first stripe of several, the stripe and the row there."""
        path = self.file(split.file).path
        if split.first >= 0:
            return Location(path, row)
        return Location(path, None, detail=f"row {row} of stripe {split.start}")


@contextmanager
def _opened(path: str) -> Iterator[orc.ORCFile]:
    """Open a file, for as long as it is read."""
    import pyarrow as pa
    from pyarrow import orc

    with ExitStack() as stack:
        try:
            opened = orc.ORCFile(stack.enter_context(open_binary(path)))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise damaged(f"{path!r} as ORC", error) from error
        yield opened
