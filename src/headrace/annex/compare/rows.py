"""The rows of one side of a comparison: those of an output of ours, or of any dataset."""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.core.files import safe_files
from headrace.core.stores.addresses import is_address
from headrace.core.stores.options import Options, checked
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, PlanError
from headrace.output.places.place import looked_at
from headrace.output.revealing import parts_of
from headrace.output.runs import SavedRun, current_run, is_output, next_run
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
            with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
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
            with safe_files.file(path) as opened, pq.ParquetFile(opened) as file:
                for batch in file.iter_batches(BATCH, numbers, list(columns), use_threads=False):
                    low, high = max(start - at, 0), min(stop - at, batch.num_rows)
                    at += batch.num_rows
                    if low < high:
                        yield batch.slice(low, high - low)


@contextlib.contextmanager
def opened(
    what: Any, side: str, *, options: Mapping[str, Any] | None = None, hidden: str = ""
) -> Iterator[Rows]:
    """Yield the rows of what was given: a dataset, an output of ours, a table's folder, or files.

    ``side`` is "old" or "new". ``hidden``: the name of a run that readers do not see yet, which is meant.
    """
    if isinstance(what, Dataset):
        yield OfDataset(f"the {side} dataset", what)
        return
    if not isinstance(what, str | os.PathLike) or not os.fspath(what):
        raise ArgumentError(
            f"compare: {side} is {type(what).__name__}. It is the path or address of an output, a table or a file, "
            "or a dataset, such as hr.read_sql(…)."
        )
    path, known = os.fspath(what), checked(options)
    kind = _table_of(path)
    if kind or not (is_address(path) or is_output(Path(path).expanduser())):
        yield OfDataset(path, _dataset(path, kind, options))
        return
    with _output(path, known, hidden) as found:
        yield found if found is not None else OfDataset(path, _dataset(path, "", options))


@contextlib.contextmanager
def _output(path: str, options: Options, hidden: str) -> Iterator[Rows | None]:
    """Yield the rows of an output; None for an address where none is."""
    from headrace.errors import NothingMatched

    with contextlib.ExitStack() as stack:
        try:
            place = stack.enter_context(
                looked_at(path if is_address(path) else Path(path).expanduser(), options)
            )
        except NothingMatched:
            if not is_address(path):
                raise
            yield None
            return
        run = next_run(place.root) if hidden else current_run(place.root)
        if run is None or (hidden and run.name != hidden) or not (hidden or run.standing(place.root)):
            raise PlanError(
                f"compare: the run in {place.name} is not complete. Run the same command again, which goes on, and "
                "compare then."
            )
        if not hidden and not run.finished:
            run = run.before_further_run()
        sink = msgspec.json.decode(run.plan.shape).get("sink") or {}
        names = [run.place_of(file, place) for file in parts_of(run.in_order())]
        if sink.get("kind") == "Parquet" and not place.copied and not sink.get("partition_by"):
            yield OfParts(place.name, [place.root / name for name in names], run)
        else:
            kind = str(sink.get("kind")).lower()
            data = dataset_of([str(place.at(name)) for name in names], kind, {})
            yield OfDataset(place.name, data, run)


def _table_of(path: str) -> str:
    """Return which table a folder is, by the name of its reader; "" for none."""
    folder = Path(path).expanduser()
    if is_address(path):
        return ""
    if (folder / "_delta_log").is_dir():
        return "delta"
    return "lance" if path.rstrip("/").endswith(".lance") or (folder / "_versions").is_dir() else ""


def _dataset(path: str, table: str, options: Mapping[str, Any] | None) -> Dataset:
    import headrace

    given = {"storage_options": options} if options else {}
    if table:
        read: Any = getattr(headrace, f"read_{table}")
        made: Dataset = read(path, **given)
        return made
    return dataset_of([path], None, given, asked="hr.read_")
