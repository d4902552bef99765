"""The rows of several sources, one after the other; and what those of any several have in common."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.events import InputMade
from headrace.core.files.input_files import Mark
from headrace.core.files.safe_files import make_folder
from headrace.core.source_ports import Bad, Keys, Location, Numbers, Preparation, Source, row_keys
from headrace.core.work import Split
from headrace.errors import SchemaMismatch

if TYPE_CHECKING:
    import pyarrow as pa


class Several(Source):
    """What has the rows of several sources is described as they are, and made from their files, numbered on."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self.decodes = any(source.decodes for source in sources)
        self.shares_memory = any(source.shares_memory for source in sources)
        self.unprepared = any(source.unprepared for source in sources)

    def _described(self, kind: str) -> dict[str, Any]:
        sources = [source.describe() for source in self._sources]
        paths = [path for each in sources for path in each.get("paths", ())]
        return {"kind": kind, "paths": paths, "sources": sources}

    def preparations(self) -> list[InputMade]:
        """Return what was done for each source."""
        return [made for source in self._sources for made in source.preparations()]

    def explained(self) -> list[str]:
        """Return the lines of all sources."""
        return [line for source in self._sources for line in source.explained()]

    def known_schema(self) -> pa.Schema | None:
        """Return the schema of all, if each is known."""
        return None if any(source.known_schema() is None for source in self._sources) else self.schema()

    def files(self) -> list[tuple[str, int, int]]:
        """Return the files of all sources."""
        return [file for source in self._sources for file in source.files()]

    def offsets(self) -> list[int]:
        """Return how many files the sources before each have, and all."""
        return [0, *accumulate(len(source.files()) for source in self._sources)]

    def note_marks(self, marks: Sequence[Mark]) -> None:
        """Keep the marks of all files."""
        for source, (start, stop) in zip(self._sources, pairwise(self.offsets()), strict=True):
            source.note_marks(marks[start:stop])

    def each_prepared(self, preparation: Preparation) -> list[Source]:
        """Have each source make its rows, in a folder of its own."""
        made = []
        for number, source in enumerate(self._sources):
            folder = preparation.folder / str(number)
            make_folder(folder, 0o700)
            made.append(source.prepared(replace(preparation, folder=folder)) if source.unprepared else source)
        return made

    def each_first(self, rows: int, options: Any) -> list[Source] | None:
        """Return what begins with the first rows of each; None if one has to make all."""
        first = [source.first_rows(rows, options) for source in self._sources]
        found = [each for each in first if each is not None]
        return found if len(found) == len(first) else None

    def close(self) -> None:
        """Close the sources."""
        for source in self._sources:
            source.close()


class UnionSource(Several):
    """Reads sources in order, as one schema: columns that one lacks are null there, types are widened without loss.

    Their files are numbered on: the numbers of the second source's begin where those of the first end. A source
    without files has the number behind all files and sources before it. ``apart``: steps come before their rows
    become one dataset's, so that types need not unify; where they do not, a column is one of texts.
    """

    def __init__(self, sources: Sequence[Source], *, apart: bool = False) -> None:
        # Unions of unions would number their files twice.
        super().__init__([each for source in sources for each in source.datasets])
        self.apart = apart
        self._schema: pa.Schema | None = None

    def describe(self) -> dict[str, Any]:
        """Return what the sources say."""
        return self._described("union")

    def code(self) -> dict[str, str]:
        """Return the code of all sources, by their numbers."""
        return {
            f"input {number}, {place}": print_
            for number, source in enumerate(self._sources, 1)
            for place, print_ in source.code().items()
        }

    def prepared(self, preparation: Preparation) -> Source:
        """Have each source make its rows, in a folder of its own."""
        return UnionSource(self.each_prepared(preparation), apart=self.apart)

    def first_rows(self, rows: int, options: Any) -> Source | None:
        """Return the union of the first rows of each."""
        first = self.each_first(rows, options)
        return None if first is None else UnionSource(first)

    def schema(self) -> pa.Schema:
        """Return the schema of all; ``SchemaMismatch`` if two have types for a column that do not unify."""
        if self._schema is None:
            schemas = [source.schema() for source in self._sources]
            self._schema = _unified_or_texts(schemas) if self.apart else unified(schemas)
        return self._schema

    @property
    def datasets(self) -> tuple[Source, ...]:
        """The sources, in order; none of them is a union."""
        return self._sources

    def forms(self) -> Mapping[str, str]:
        """Return the forms of columns that may hold nulls in some source, or that some lacks; none if ``apart``."""
        if self.apart:
            return {}
        from headrace.core.arrow.forms import ARRAYS, OBJECT, form_of

        found: dict[str, str] = {}
        each = [(source.forms(), source.schema().names) for source in self._sources]
        for field in self.schema():
            marks = {forms[field.name] for forms, _ in each if field.name in forms}
            lacking = any(field.name not in names for _, names in each)
            form = form_of(field.type, wide=OBJECT in marks) if marks or lacking else None
            if ARRAYS in marks or form is not None:
                found[field.name] = ARRAYS if ARRAYS in marks else str(form)
        return found

    # ------------------------------------------------------------ files and splits

    def files_of(self, split: Split) -> range:
        """Return the numbers of the files that a split reads."""
        number, inner = self._inner(split)
        own, offset = self._sources[number].files_of(inner), self.offsets()[number]
        return range(own.start + offset, own.stop + offset) if len(own) else range(0)

    def pinned(self, paths: Sequence[str]) -> Source:
        """Return the union of the sources with these files: each goes to the source that lists it, in its turn."""
        now = [{file[0]: at for at, file in enumerate(source.files())} for source in self._sources]
        given: list[list[str]] = [[] for _ in self._sources]
        with_files = [number for number, files in enumerate(now) if files]
        turn, last = 0, -1
        for path in paths:
            while turn + 1 < len(with_files) and now[with_files[turn]].get(path, -1) <= last:
                later = [n for n in range(turn + 1, len(with_files)) if path in now[with_files[n]]]
                if not later:
                    break  # it is gone, and was read with those before it
                turn, last = later[0], -1
            given[with_files[turn]].append(path)
            last = now[with_files[turn]].get(path, last)
        return UnionSource(
            [source.pinned(own) if own else source for source, own in zip(self._sources, given, strict=True)],
            apart=self.apart,
        )

    def splits(self) -> list[Split]:
        """List the splits of the sources, in their order."""
        return self._outer([source.splits() for source in self._sources])

    def splits_in_batches(self, rows: int) -> list[Split]:
        """List the splits of the sources, cut as each can."""
        return self._outer([source.splits_in_batches(rows) for source in self._sources])

    def splits_alone(self, file: int) -> list[Split] | None:
        """List the splits of a file of a source."""
        offsets = self.offsets()
        number = bisect_right(offsets, file) - 1
        found = self._sources[number].splits_alone(file - offsets[number])
        return (
            None
            if found is None
            else [msgspec.structs.replace(split, file=split.file + offsets[number]) for split in found]
        )

    def _outer(self, splits: Sequence[Sequence[Split]]) -> list[Split]:
        first = [self._first(number) for number in range(len(self._sources))]
        return [
            msgspec.structs.replace(split, file=split.file + offset)
            for offset, each in zip(first, splits, strict=True)
            for split in each
        ]

    def _first(self, number: int) -> int:
        offsets = self.offsets()
        return offsets[number] if offsets[number] < offsets[number + 1] else offsets[-1] + number

    def _inner(self, split: Split) -> tuple[int, Split]:
        """Return the number of a split's source, and the split as that source knows it."""
        offsets = self.offsets()
        if split.file >= offsets[-1]:
            return split.file - offsets[-1], msgspec.structs.replace(split, file=0)
        number = bisect_right(offsets, split.file) - 1
        return number, msgspec.structs.replace(split, file=split.file - offsets[number])

    # ------------------------------------------------------------ rows

    def read(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read one split, and bring its rows to the schema of all, unless they are ``apart``."""
        number, inner = self._inner(split)
        source = self._sources[number]
        if self.apart:
            from headrace.core.arrow.forms import marked

            forms = source.forms()
            return (marked(batch, forms) for batch in source.read(inner, columns, batch_rows, bad))
        from headrace.sources.schemas import select

        target = self.schema() if columns is None else select(self.schema(), columns)
        names = source.schema().names
        own = [name for name in target.names if name in names]
        read = source.read(inner, None if len(own) == len(names) else own, batch_rows, bad)
        return _conformed(read, target, f"dataset {number + 1}")

    def check_unchanged(self, split: Split) -> None:
        """Check the files of a split."""
        number, inner = self._inner(split)
        self._sources[number].check_unchanged(inner)

    def locate(self, split: Split, row: int) -> Location:
        """Say where a row stands in its source."""
        number, inner = self._inner(split)
        return self._sources[number].locate(inner, row)

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return the keys of the source; where it has no files, together with its place in the union."""
        return self.own_keys(split, numbers, 0, max(2, len(self._sources)))

    # ------------------------------------------------------------ where datasets have steps of their own

    def dataset_of(self, split: Split) -> int:
        """Return the number of a split's source; 0 for all, where rows need not be told apart."""
        return self._inner(split)[0] if self.apart else 0

    def own_keys(self, split: Split, numbers: Numbers, first: int, stop: int) -> Keys:
        """Return the keys of some neighbouring sources, as if they were all."""
        number, inner = self._inner(split)
        source = self._sources[number]
        if stop - first == 1 or len(source.files_of(inner)):
            return source.row_keys(inner, numbers)
        return row_keys(f"dataset {number - first + 1}", source.row_keys(inner, numbers).view("int64"))


def unified(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return one schema for several datasets; ``SchemaMismatch`` if two types of a column do not unify."""
    from headrace.sources.schemas import unify

    try:
        return unify((f"dataset {i}", schema) for i, schema in enumerate(schemas, 1))
    except SchemaMismatch as error:
        said = str(error).partition(": ")[2].partition(" Rewrite")[0]
        raise SchemaMismatch(f"union: {said} Convert one of them first, or leave the column out.") from None


def _unified_or_texts(schemas: Sequence[pa.Schema]) -> pa.Schema:
    import pyarrow as pa

    types: dict[str, list[pa.DataType]] = {}
    for field in (field for schema in schemas for field in schema):
        types.setdefault(field.name, []).append(field.type)
    fields = []
    for name, each in types.items():
        try:
            fields.append(
                unified([pa.schema([(name, type_)]) for type_ in each]).field(0).with_nullable(True)
            )
        except SchemaMismatch:
            fields.append(pa.field(name, pa.string()))
    return pa.schema(fields)


def _conformed(batches: Iterator[pa.RecordBatch], target: pa.Schema, name: str) -> Iterator[pa.RecordBatch]:
    from headrace.sources.schemas import conform

    for batch in batches:
        yield batch if batch.schema.equals(target) else conform(batch, target, name, lambda name, rows: None)
