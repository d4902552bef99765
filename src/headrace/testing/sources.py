"""What every source promises, as tests. A subclass gives ``make``, and ``make_bad`` if rows can be bad."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.source_ports import Bad, Location, Source
from headrace.core.work import Split
from headrace.errors import InputChanged, SourceError, UnknownColumn
from headrace.sources.schemas import constant
from headrace.testing.steps import check, same


def read_all(
    source: Source,
    splits: Sequence[Split] | None = None,
    columns: list[str] | None = None,
    rows: int = 1000,
    bad: Bad | None = None,
) -> pa.Table:
    """Read ``splits`` (default: all) one after the other into a table."""
    batches = [
        batch
        for split in (source.splits() if splits is None else splits)
        for batch in source.read(split, columns, rows, bad)
    ]
    schema = source.schema() if columns is None else pa.schema([source.schema().field(c) for c in columns])
    return pa.Table.from_batches(batches, schema)


class Sound(NamedTuple):
    """What a split gave to a reader who asked for bad rows to be told; ``numbers`` are those of the rows."""

    table: pa.Table
    numbers: list[int]
    bad: dict[range, Exception]


def read_sound(source: Source, split: Split, columns: list[str] | None = None, rows: int = 1000) -> Sound:
    """Read one split with ``bad``, and check that bad rows are told in their turn."""
    told: dict[range, Exception] = {}
    numbers: list[int] = []
    at = 0

    def bad(row: int, count: int, error: Exception) -> None:
        nonlocal at
        check(
            row == at and count > 0, f"bad() was told of {count} rows from row {row} on; the next row is {at}"
        )
        check(isinstance(error, SourceError), f"bad() takes a SourceError, not {error!r}")
        told[range(row, row + count)] = error
        at += count

    batches = []
    for batch in source.read(split, columns, rows, bad):
        batch.validate(full=True)
        _check_rows(batch, rows)
        numbers.extend(range(at, at + batch.num_rows))
        at += batch.num_rows
        batches.append(batch)
    schema = source.schema() if columns is None else pa.schema([source.schema().field(c) for c in columns])
    return Sound(pa.Table.from_batches(batches, schema), numbers, told)


def _check_rows(batch: pa.RecordBatch, most: int) -> None:
    check(batch.num_rows > 0, "read() gave a batch without rows")
    check(batch.num_rows <= most, f"read() gave a batch of {batch.num_rows} rows where batch_rows is {most}")


def read_told(source: Source) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Read all splits of one file: the rows, and what was said of which row of the file."""
    rows: list[dict[str, Any]] = []
    bad: dict[int, str] = {}
    at = 0
    for split in source.splits():
        sound = read_sound(source, split)
        rows += sound.table.to_pylist()
        for numbers, error in sound.bad.items():
            bad.update((at + number, str(error)) for number in numbers)
        count = len(sound.numbers) + sum(map(len, sound.bad))
        for number in range(0, count, max(1, count // 500)):
            location = source.locate(split, number)
            same(
                location.number,
                at + number + (location.unit == "line"),
                f"the place of row {number} of {split}",
            )
        at += count
    return rows, bad


class SourceContract:
    """Subclass it, override ``make``, and pytest runs every promise; ``make_bad``, if the source finds bad rows."""

    def make(self) -> Source:
        """Return a source of several splits; another one, of the same data, at every call.

        ``self.folder`` is an empty folder for its files.
        """
        raise NotImplementedError

    def make_bad(self) -> tuple[Source, Sequence[int]] | None:
        """Return a source with rows that make no sense, and their numbers: from 0, in the order of the input.

        Good rows and bad ones are counted alike. ``self.folder`` is an empty folder. Default: None, the test of bad
        rows is skipped.
        """
        return None

    @pytest.fixture
    def source(self, tmp_path: Any) -> Source:
        self.folder = tmp_path
        return self.make()

    def test_there_is_something_to_test(self, source: Source) -> None:
        check(len(source.splits()) > 1, "make() must return a source of two splits or more")
        check(read_all(source).num_rows > 2, "make() must return a source of three rows or more")

    def test_splits_are_the_same_every_time(self, source: Source) -> None:
        splits = list(source.splits())
        same(list(source.splits()), splits, "splits() called again")
        same(list(self.make().splits()), splits, "splits() of another source of the same data")

    def test_batches_have_the_schema(self, source: Source) -> None:
        for split in source.splits():
            for batch in source.read(split, None, 1000):
                if not batch.schema.equals(source.schema(), check_metadata=True):
                    same(str(batch.schema), str(source.schema()), f"the schema of a batch of {split}")
                batch.validate(full=True)

    def test_a_worker_reads_the_same(self, source: Source) -> None:
        splits = source.splits()
        worker: Source = pickle.loads(pickle.dumps(source, protocol=5))
        same(read_all(worker, splits), read_all(source, splits), "what a pickled source reads")

    def test_splits_read_in_any_order_and_again(self, source: Source) -> None:
        splits = source.splits()
        once = [read_all(source, [split]) for split in splits]
        again = [read_all(source, [split]) for split in reversed(splits)]
        for split, before, after in zip(splits, once, reversed(again), strict=True):
            same(after, before, f"{split} read again, in another order")
        same(pa.concat_tables(once), read_all(source, splits), "the splits one by one")

    def test_two_splits_read_by_turns(self, source: Source) -> None:
        first, second, *_ = source.splits()
        pairs = zip(source.read(first, None, 1), source.read(second, None, 1), strict=False)
        left, right = next(iter(pairs))
        same(
            left, read_all(source, [first]).to_batches(max_chunksize=1)[0], "the first row of the first split"
        )
        same(
            right,
            read_all(source, [second]).to_batches(max_chunksize=1)[0],
            "the first row of the second split",
        )

    @pytest.mark.parametrize("rows", [1, 2, 7])
    def test_batch_rows_bound_batches_and_change_nothing_else(self, source: Source, rows: int) -> None:
        splits = source.splits()
        same(
            read_all(source, splits, rows=rows), read_all(source, splits), f"the rows with batch_rows={rows}"
        )
        for split in splits:
            for batch in source.read(split, None, rows):
                _check_rows(batch, rows)

    def test_of_good_input_nothing_is_bad(self, source: Source) -> None:
        for split in source.splits():
            for rows in (2, 1000):
                sound = read_sound(source, split, rows=rows)
                check(not sound.bad, f"good rows of {split} are told as bad: {sound.bad}")
                same(sound.table, read_all(source, [split]), f"the rows of {split} with bad= given")

    @pytest.mark.parametrize("rows", [1, 2, 1000])
    def test_bad_rows_are_told_in_their_turn(self, tmp_path: Path, rows: int) -> None:
        self.folder = tmp_path
        made = self.make_bad()
        if made is None:
            pytest.skip("make_bad is not overridden")
        source, numbers = made
        found: list[int] = []
        at = 0
        for split in source.splits():
            sound = read_sound(source, split, rows=rows)
            found += [at + row for told in sound.bad for row in told]
            at += len(sound.numbers) + sum(map(len, sound.bad))
        same(found, sorted(numbers), "the rows that were told as bad")
        with pytest.raises(SourceError):  # without ``bad``, they are an error
            read_all(source, rows=rows)
            pytest.fail("bad is None, and read() raised nothing at rows that make no sense")

    def test_a_file_that_changes_is_noticed(self, source: Source) -> None:
        if not source.files():
            pytest.skip("it reads no files")
        split = source.splits()[0]
        read_all(source, [split])
        source.check_unchanged(split)
        worker: Source = pickle.loads(pickle.dumps(source, protocol=5))
        path = Path(source.files()[source.files_of(split)[0]][0])
        path.write_bytes(path.read_bytes() + b"\n")
        with pytest.raises(InputChanged):
            source.check_unchanged(split)
        with pytest.raises(InputChanged):
            read_all(worker, [split])

    def test_columns_come_as_asked_for(self, source: Source) -> None:
        splits, names = source.splits(), source.schema().names
        whole = read_all(source, splits)
        for columns in (names[::-1], names[-1:], names[:1]):
            same(read_all(source, splits, columns), whole.select(columns), f"the columns {columns}")

    def test_no_columns_still_count_rows(self, source: Source) -> None:
        for split in source.splits():
            batches = list(source.read(split, [], 3))
            same({batch.num_columns for batch in batches} - {0}, set(), "columns, where none were asked for")
            counted, rows = sum(batch.num_rows for batch in batches), read_all(source, [split]).num_rows
            same(counted, rows, f"the rows of {split} without columns")

    def test_an_unknown_column_is_refused_with_the_nearest(self, source: Source) -> None:
        name = source.schema().names[0]
        with pytest.raises(UnknownColumn, match=f"Did you mean '{name}'"):
            list(source.read(source.splits()[0], [f"{name}x"], 10))

    def test_what_splits_say_of_themselves_holds(self, source: Source) -> None:
        before: dict[int, int] = {}
        for split in source.splits():
            rows = read_all(source, [split]).num_rows
            check(split.rows in (-1, rows), f"{split} says rows={split.rows}, and has {rows}; -1: not known")
            check(split.bytes > 0, f"{split} says bytes={split.bytes}; it is 1 or more")
            first = before.get(split.file, 0)
            check(
                split.first in (-1, first),
                f"{split} says first={split.first}, and {first} rows are before it",
            )
            before[split.file] = before.get(split.file, 0) + rows

    def test_files_are_numbered_as_in_splits(self, source: Source) -> None:
        files = source.files()
        seen = [number for split in source.splits() for number in source.files_of(split)]
        same(seen, sorted(seen), "the numbers of the files, in the order of the splits")
        same(set(seen), set(range(len(files))), "the numbers of the files that splits read")

    def test_pinned_keeps_files_and_splits(self, source: Source) -> None:
        files = source.files()
        pinned = source.pinned([path for path, _, _ in files])
        same(pinned.files(), files, "the files of the pinned source")
        same(list(pinned.splits()), list(source.splits()), "the splits of the pinned source")
        same(read_all(pinned), read_all(source), "the rows of the pinned source")

    def test_plain_files_have_its_rows(self, source: Source) -> None:
        files, schema = source.plain_files(), source.schema()
        if not files:
            return
        tables = []
        for file in files:
            with pq.ParquetFile(file.path) as opened:
                own = opened.read()
            same(own.num_rows, file.rows, f"the rows of {file.path}")
            columns = [
                own[name] if name not in file.values else constant(file.values[name], kind, file.rows)
                for name, kind in zip(schema.names, schema.types, strict=True)
            ]
            tables.append(pa.table(columns, names=schema.names))
        same(pa.concat_tables(tables), read_all(source), "the rows of plain_files()")

    def test_description_is_plain_and_steady(self, source: Source) -> None:
        before = source.describe()
        source.splits()
        same(json.loads(json.dumps(before)), before, "describe() by way of JSON")
        same(source.describe(), before, "describe() called again")
        same(self.make().describe(), before, "describe() of another source of the same data")

    def test_rows_can_be_located(self, source: Source) -> None:
        split = source.splits()[-1]
        first, second = source.locate(split, 0), source.locate(split, 1)
        check(isinstance(first, Location), f"locate() returns a Location, not {first!r}")
        check(first != second, f"two rows are both at {first!r}")
        check(str(first) != str(second), f"two rows are both said to be at {first}")
        files = [path for path, _, _ in source.files()]
        for location in (first, second):
            check(
                not files or location.file in files,
                f"locate() names {location.file!r}, which files() has not",
            )

    def test_splits_for_batches_hold_the_same_rows(self, source: Source) -> None:
        whole = read_all(source)
        for rows in (1, 2, 7):
            splits = source.splits_in_batches(rows)
            again = list(source.splits_in_batches(rows))
            same(again, list(splits), f"splits_in_batches({rows}) called again")
            same(read_all(source, splits), whole, f"the rows of splits_in_batches({rows})")

    def test_splits_of_the_last_files_read_no_others(self, source: Source) -> None:
        count = len(source.files())
        if source.splits_from(count) is None:
            return
        for file in range(count + 1):
            splits = source.splits_from(file)
            if splits is None:
                raise AssertionError(f"splits_from({file}) is None, and splits_from({count}) is not")
            read = {number for split in splits for number in source.files_of(split)}
            same(read, set(range(file, count)), f"the files that splits_from({file}) reads")
        same(read_all(source, source.splits_from(0)), read_all(source), "the rows of splits_from(0)")

    def test_what_it_says_of_columns_and_batches(self, source: Source) -> None:
        source.splits()
        same(set(source.forms()) - set(source.schema().names), set(), "columns of forms() that it has not")
        check(source.decodes in (True, False), f"decodes is True or False, not {source.decodes!r}")
        check(
            source.shares_memory in (True, False),
            f"shares_memory is True or False, not {source.shares_memory!r}",
        )

    def test_close_is_not_the_end(self, source: Source) -> None:
        whole = read_all(source)
        source.close()
        source.close()
        same(read_all(source), whole, "what is read after close()")
