"""New columns in the tables that a plan reads: which plans can add some, and what such a run has to know."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import pyarrow as pa

from headrace.annex.lakes.filling import Filling, P, Pieces, by_name, pieces_of
from headrace.annex.lakes.sink import LakeTable
from headrace.annex.lakes.tables import footers
from headrace.core.human import plural
from headrace.core.source_ports import Source
from headrace.core.table_changes import Lost
from headrace.core.target_ports import Sink
from headrace.core.terminal import warn
from headrace.core.work import HOME, StagedFile
from headrace.errors import ArgumentError, ColumnExists, NothingMatched, PlanError, SinkError
from headrace.plan import compile as compiler
from headrace.plan.identity import version_of
from headrace.plan.predicates import given_expression
from headrace.plan.steps.functions import Filter
from headrace.plan.steps.predict import Predict
from headrace.plan.steps.selection import DropColumns

if TYPE_CHECKING:
    from headrace.options import RunOptions
    from headrace.plan.logical import Plan

T = TypeVar("T")
_SHARD = re.compile(r"(?:.*/)?part-(\d+)")
_OTHER_ROWS = "its files have not the rows that were read"


class TableSource(Source, Protocol):
    """A source of a table that may get new columns."""

    def for_new_columns(self, where: str | None, begun: Mapping[str, Any]) -> TableSource:
        """Return this source with a shard for each file, maybe of rows that fulfil a condition in its own words.

        ``begun``: what it said of itself when the run began; that version is read, unless another was asked for.
        """
        ...

    def outside_files(self) -> tuple[str, ...] | None:
        """Return the columns that new files lack, which have all others; None: they have the new ones alone."""
        ...


def check_plan(plan: Plan, options: RunOptions, verb: str, given: Mapping[str, Any]) -> None:
    """Raise ``PlanError`` for a plan whose rows are not those of its source, one by one, in their order."""
    for step in plan.steps:
        if not step.one_to_one:
            raise PlanError(
                f"{verb}: mode='add_columns' needs one row for each row of the table, in its order, and "
                f"{step.label()} may change which rows there are. Leave it out; predict and with_column keep rows."
            )
    on_error = options.on_error
    if on_error == "reject":
        raise PlanError(
            f"{verb}: mode='add_columns' needs a value for each row of the table, and on_error='reject' leaves rows "
            "out. on_error='null' writes a null for a row that fails."
        )
    for name in ("incremental", "key"):
        if given.get(name) or getattr(options, name):
            raise ArgumentError(
                f"{verb}: mode='add_columns' does not go with {name}=. Rows that are added to the table later get "
                "their values by a further run with where=, or by mode='append'."
            )


def begun(files: Sink) -> Mapping[str, Any]:
    """Return what the source of the run in an output says of itself; nothing if there is no run.

    The table has the new columns by now, if that run was killed after its commit, or has finished.
    """
    from headrace.output.layout import read_plan
    from headrace.output.places.place import looked_at
    from headrace.output.runs import pointer

    with contextlib.suppress(NothingMatched), looked_at(files.root, files.storage.options) as place:
        run = pointer(place.root, "next") or pointer(place.root, "current")
        if run is not None:
            return read_plan(place.root / HOME / run).described.get("source") or {}
    return {}


def carried(plan: Plan) -> list[str]:
    """Return the columns of the source that come out under their names, as they are."""
    found = compiler.carried_columns(plan.steps, plan.source.schema())
    return [name for name, source in found.items() if name == source]


def check_names(plan: Plan, where: str, there: pa.Schema) -> None:
    """Raise ``ColumnExists`` for a column of the table that the plan is known to make anew."""
    names = {name: name for name in there.names}
    for step in plan.steps:
        models = step.models if isinstance(step, Predict) else ()
        made = {*(step.columns_after([]) or ()), *(model.output for model in models if not model.keyed)}
        made -= step.carried(names).keys()
        check_new(where, sorted(made), there) if made else None


def older_than(column: str, version: str) -> str:
    """Return the condition for rows that no version has made, or another one.

    >>> older_than("model_version", "it's 2")
    "model_version IS NULL OR model_version <> 'it''s 2'"
    """
    escaped = version.replace("'", "''")
    return f"{column} IS NULL OR {column} <> '{escaped}'"


def planned(
    plan: Plan, kind: type[TableSource], table: AddsColumns, read: str, provenance: str | None
) -> tuple[Plan, AddsColumns]:
    """Return what runs, a plan whose rows are what the files of a table get, and the table.

    ``provenance``: if the table has this column, only rows of another version than the plan's are computed.
    ``read`` is the reader of the table in messages. Raises ``PlanError`` for a plan that reads another one, or where
    a column that is needed does not come out as it is.
    """
    source, name = plan.source, f"{table.what} {table.place}"
    if not isinstance(source, kind) or source.describe()["table"] != table.place:
        raise PlanError(
            f"mode='add_columns' adds columns to the table that the plan reads. Begin with {read}, and write to the "
            "same table."
        )
    before = begun(table.files)
    source = source.for_new_columns(None, before)
    if provenance is not None and provenance in source.schema().names:
        table = replace(table, where=older_than(provenance, version_of(plan)))
    where, in_place = table.where, source.outside_files() is not None
    plan = replace(plan, source=source if in_place else source.for_new_columns(where, before))
    if in_place and where is not None:
        chosen = given_expression(where, "write_…(where=")
        plan = replace(plan, steps=(Filter(None, chosen), *plan.steps))
    there = plan.source.schema()
    if where is None:
        check_names(plan, name, there)
    old, outside = carried(plan), source.outside_files()
    if outside is not None and where is None:
        missing = [each for each in there.names if each not in old]
        if missing:
            raise PlanError(
                f"mode='add_columns' keeps all columns of the {name}, and the plan leaves out or changes "
                f"{missing[0]!r}. Leave out the step that does so; columns that are not used are copied as they are."
            )
        old = list(outside)
    return plan.then(DropColumns(tuple(old))) if old else plan, table


def check_new(where: str, new: Sequence[str], there: pa.Schema, *, fills: bool = False) -> None:
    """Raise for columns that a table has already, unless they are filled, or if there is none."""
    if not new:
        raise SinkError(
            f"The plan makes no new column for the {where}. Add some by predict or with_column before "
            "mode='add_columns'."
        )
    taken = [name for name in new if name in there.names]
    if taken and not fills:
        raise ColumnExists(
            f"The {where} has a column {taken[0]!r} already, and mode='add_columns' replaces no values. Give the "
            f'result another name, or fill the rows that lack a value: where="{taken[0]} IS NULL".'
        )


@dataclass(frozen=True)
class AddsColumns(LakeTable):
    """A table that gets new columns for its own rows: those of one version, which is the base of the commit.

    It stands before the class of a table. A subclass says what its parts become.
    """

    where: str | None = field(default=None, kw_only=True)

    adds: ClassVar[str] = "columns"

    def describe(self) -> dict[str, Any]:
        """Return how the table is written to."""
        return {**super().describe(), **({} if self.where is None else {"where": self.where})}

    @property
    def base(self) -> int | None:
        """The version that the run reads; None before it is bound, or if the table has none."""
        found: int | None = self.files.source.get("version", self.files.source.get("snapshot"))
        return found

    def bind(self, sink: Sink) -> Sink:
        """Look at the version that is read; of a table that has the run already, at the newest."""
        bound = self.of(sink)
        table = bound.open_table()
        if table is None:
            raise self.changed("it is gone")
        there = bound.identity_of(table)
        if bound.files.source.get("id", there) != there:
            raise self.changed("another table is in its place")
        done = bound.has_run(table, bound.files.run)
        return replace(
            bound, columns=bound.columns_of(table if done else bound.at_base()), there=there
        ).sink()

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise for a column that no table holds, or if there is no new one."""
        assert self.columns is not None
        new = [name for name in schema.names if self.where or name not in self.columns.schema.names]
        check_new(f"{self.what} {self.place}", new, self.columns.schema, fills=self.where is not None)
        self.stored(schema, part=True)

    def _check_same(self, table: Any | None, begun_with: str, *, needed: bool = False) -> None:
        if table is None:
            raise self.changed("it is gone")

    def at_base(self) -> Any:
        """Return the table in the version that is read."""
        raise NotImplementedError

    @cached_property
    def base_table(self) -> Any:
        """What ``at_base`` returns; in the driver, at the end of the run."""
        return self.at_base()

    def added_by(self, table: Any, run: str) -> Sequence[str]:
        """Return the columns that a run has added, by the history of the table; none if that does not say."""
        raise NotImplementedError

    def rows_lost(
        self, files: Sequence[StagedFile], missing: Sequence[StagedFile], run: str = ""
    ) -> Lost | None:
        """Say why the table has not the columns of a run; others may have changed its rows since."""
        table, name = self.open_table(), f"the {self.what} {self.place}"
        if table is None:
            return Lost("no table", f"{name} is gone, and with it the columns that this run added")
        there = self.columns_of(table).schema.names
        lost = [each for each in self.added_by(table, run or self.files.run) if each not in there]
        return (
            Lost("none", f"{name} has not the column {lost[0]!r} any more, which this run added")
            if lost
            else None
        )

    def kept_rows(self, run: str) -> str:
        """Say that the columns of a run are in the table."""
        return (
            f"its columns are in the table already ({self.what} {self.place})" if self.revealed(run) else ""
        )

    def placed(self, parts: Sequence[StagedFile]) -> list[tuple[int, StagedFile]]:
        """Return files with the number of the one whose place each takes: the parts, of which each is a shard's.

        With ``where=``, they are made of the parts. Raises ``SinkError`` if parts have not the rows that were read.
        """
        if self.where is not None:
            return self.filled(parts)
        splits, counted = self.source().splits(), Counter[int]()
        read = list(dict.fromkeys(split.file for split in splits))
        found = [(read[int(shard[1])], part) for part in parts if (shard := _SHARD.match(part.name))]
        for number, part in found:
            counted[number] += part.rows
        for split in splits:
            counted[split.file] -= split.rows if split.rows >= 0 else counted[split.file]
        if any(counted.values()) or len(found) < len(parts):
            raise self.changed(_OTHER_ROWS)
        return found

    def check_kept(self, table: Any, used: Iterable[str], new: Sequence[str], names: Sequence[str]) -> None:
        """Refuse if others have changed what was read, or have made such a column; new rows of theirs are kept.

        ``used`` are the files whose places others take, ``new`` the columns that the table has not, ``names`` all.
        """
        base, now = self.live(self.base_table), self.live(table)
        for path in used:
            if now.get(path) != base.get(path):
                raise self.changed(
                    f"its file {path}, for whose rows values were computed, was replaced, or rows of it were deleted"
                )
        if new or self.where is None:
            check_new(f"{self.what} {self.place}", new, self.columns_of(table).schema)
        self.warn_of_rows(sum(now.values()) - sum(base.values()), new or names)

    def pieces(self, rows: Sequence[tuple[T, int]], parts: Sequence[P]) -> Sequence[tuple[T, Pieces[P]]]:
        """Return the files that get rows of parts, with these. Raises ``SinkError`` if rows do not add up."""
        found = pieces_of(rows, parts)
        if found is None:
            raise self.changed(_OTHER_ROWS)
        return found

    def filled(self, parts: Sequence[StagedFile]) -> list[tuple[int, StagedFile]]:
        """Make the files in which rows for which ``where`` holds have the values of the parts, and others their own.

        Each comes with the number of the file whose place it takes; others have no such row.
        """
        parts = by_name([part for part in parts if part.rows])
        if not parts:
            return []
        source, (footer,) = self.source(), footers(self.files, [parts[0].name])
        condition, left_out = given_expression(self.where), source.outside_files() or ()
        filling = Filling(self.sink(), source, condition, left_out)
        new, files = footer.schema.to_arrow_schema(), filling.counted()
        return filling.files(self.pieces(files, parts), new)

    def source(self) -> TableSource:
        """Return what reads all rows of the version that the run has read."""
        raise NotImplementedError

    def changed(self, why: str) -> SinkError:
        """Return the error for a table that others have changed such that the new columns fit no more."""
        return SinkError(
            f"The {self.what} {self.place} was changed during this run: {why}. It was not touched. Write with "
            "another output=, which reads the table as it is now."
        )

    def warn_of_rows(self, rows: int, names: Sequence[str]) -> None:
        """Warn that rows which others have added meanwhile have no values; less than none were deleted."""
        if rows > 0:
            warn(
                f"{plural(rows, 'row')} that others added to the {self.what} {self.place} during this run got no "
                f"value in {', '.join(map(repr, names))}. A further run with another output= can compute them."
            )
