"""The rows of one side: of an output, a table, files or a dataset."""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.arrow.batch import schema_from
from headrace.core.door import loaded
from headrace.core.failures import words
from headrace.core.files import safe_files
from headrace.core.files.formats import DataFormat, written_as
from headrace.core.files.storage import storage_at
from headrace.core.stores.addresses import checked
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, NothingMatched, PlanError, UnreadableFile
from headrace.output.commit import DATABASE, parts_of
from headrace.output.places.place import Place, looked_at
from headrace.output.runs import SavedRun, is_output, shown_run, waiting_run
from headrace.readers.by_name import dataset_of

BATCH = 1 << 16  # rows that are compared at a time: temporary arrays of so many stay in a core's cache


class Rows:
    """One side: its name, its columns, and its rows in batches. ``run``: what is known of an output of ours."""

    run: SavedRun | None = None

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name, self.schema = name, schema

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order."""
        raise NotImplementedError


class OfDataset(Rows):
    """The rows of a dataset: its plan runs each time that they are read."""

    def __init__(self, name: str, dataset: Dataset, run: SavedRun | None = None) -> None:
        super().__init__(name, dataset._schema())
        self._dataset, self.run = dataset, run

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order."""
        chosen = self._dataset.select_columns(list(columns))
        for table in chosen.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield from table.to_batches(max_chunksize=BATCH)


class OfParts(Rows):
    """The rows of Parquet files on this machine, which lie in their order; stretches can be read in any order."""

    def __init__(self, name: str, files: Sequence[Path], run: SavedRun) -> None:
        self.run = run
        self._groups: list[
            tuple[Path, int, int]
        ] = []  # the file of each row group, its number there, its rows
        schema = None
        for path in files:
            with _parquet(path) as file:
                schema = schema or file.schema_arrow
                self._groups += [
                    (path, i, file.metadata.row_group(i).num_rows)
                    for i in range(file.metadata.num_row_groups)
                ]
        super().__init__(name, schema or pa.schema([]))
        self.starts = [0, *accumulate(rows for *_, rows in self._groups)]

    def read(
        self, columns: Sequence[str], start: int = 0, stop: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows from ``start`` up to ``stop``, in order."""
        stop = self.starts[-1] if stop is None else stop
        first = bisect.bisect_right(self.starts, start) - 1
        last = bisect.bisect_left(self.starts, stop)
        at = self.starts[first] if start < stop else stop
        for path, groups in groupby(self._groups[first:last], key=lambda each: each[0]):
            numbers = [number for _, number, _ in groups]
            with _parquet(path) as file:
                for batch in file.iter_batches(BATCH, numbers, list(columns), use_threads=False):
                    low, high = max(start - at, 0), min(stop - at, batch.num_rows)
                    at += batch.num_rows
                    if low < high:
                        yield batch.slice(low, high - low)


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    """Open a part; raises ``UnreadableFile`` where it is gone or damaged."""
    try:
        with pq.ParquetFile(pa.BufferReader(safe_files.mapped(path))) as file:
            yield file
    except (OSError, pa.ArrowException) as error:
        raise UnreadableFile(
            f"compare: the part {path} cannot be read: {words(error)}. `headrace verify` looks at all files."
        ) from error


@contextlib.contextmanager
def opened(what: Any, side: str, options: Mapping[str, Any] | None = None) -> Iterator[Rows]:
    """Yield the rows of what was given: a dataset, an output of ours, a table's folder, or files.

    ``side`` is "old" or "new".
    """
    if isinstance(what, Dataset):
        yield OfDataset(f"the {side} dataset", what)
        return
    if not isinstance(what, str | os.PathLike) or not os.fspath(what):
        given = repr(what) if isinstance(what, str) else type(what).__name__
        raise ArgumentError(
            f"compare: {side} is {given}. It is the path or address of an output, a table or a file, "
            "or a dataset, such as hr.read_sql(…)."
        )
    storage = storage_at(os.fspath(what))
    path = storage.pick(str(Path(what).expanduser()), storage.path)
    with contextlib.ExitStack() as stack:
        place = None
        if not _table_of(path) and storage.pick(is_output(Path(path)), True):
            with contextlib.suppress(NothingMatched):
                place = stack.enter_context(looked_at(path, checked(options)))
        yield OfDataset(path, _dataset(path, options)) if place is None else _last_run(place, side)


def _last_run(place: Place, side: str) -> Rows:
    """Return the rows that readers see; of a new side, those that wait to be published, if there are any."""
    waits = waiting_run(place.root)
    run = waits if waits is not None and side == "new" else shown_run(place.root)
    if run is None:
        how = (
            "waits to be published, so readers see no rows yet: name it as the new side"
            if waits is not None
            else "is not complete. Run the same command again, which goes on, and compare then"
        )
        raise PlanError(f"compare: the run in {place.name} {how}.")
    return of_run(place, run)


def of_run(place: Place, run: SavedRun) -> Rows:
    """Return the rows of a run, whose files have their names, or wait to get them."""
    sink = run.plan.sink
    format = format_read(sink, place.name)
    name = f"{place.name} (not published)" if run.state.withheld is not None else place.name
    names = [run.place_of(file, place) for file in parts_of(run.in_order())]
    divided = sink.get("partition_by") or ()
    if format.name == "parquet" and not place.copied and not divided:
        return OfParts(name, [place.root / name for name in names], run)
    options, settled = {}, run.state.schema
    if settled is not None:
        within = [field for field in schema_from(settled) if field.name not in divided]
        options = loaded(format.writer).read_by(sink, pa.schema(within))
    data = dataset_of([str(place.at(name)) for name in names], format.name, options)
    return OfDataset(name, data, run)


def format_read(sink: Mapping[str, Any], name: str) -> DataFormat:
    """Return the format of the files of an output; raises ``PlanError`` for one whose rows are elsewhere."""
    kind = str(sink.get("kind"))
    found = written_as("parquet" if kind in ("Delta table", "Iceberg table", DATABASE) else kind)
    if found is not None:
        return found
    raise PlanError(
        f"compare: the rows of {name} are in a {kind}, and not in files. Compare the table itself, such as "
        "hr.read_lance(…), once it has them."
    )


def _table_of(path: str) -> str:
    """Return which table a folder is, by the name of its reader; "" for none."""
    folder = Path(path)
    if (folder / "_delta_log").is_dir():
        return "delta"
    lance = path.rstrip("/").endswith(".lance") or (folder / "_versions").is_dir()
    return storage_at(path).pick("lance" if lance else "", "")


def _dataset(path: str, options: Mapping[str, Any] | None) -> Dataset:
    import headrace

    table = _table_of(path)
    given = {"storage_options": options} if options else {}
    if table:
        read: Any = getattr(headrace, f"read_{table}")
        made: Dataset = read(path, **given)
        return made
    return dataset_of([path], None, given, asked="hr.read_")
