"""``hr.sql``, and queries as sources: their rows are made once, before a run plans them, and belong to that run.

::

    OUT/_headrace/queries/<state>/input-0/     an input that has steps, or is no Parquet: a hidden output of its own
    OUT/_headrace/queries/<state>/made/        what the engine writes; renamed when it is whole
    OUT/_headrace/queries/<state>/result/      result.parquet, and answer.json, which says what was done

``<state>`` is a digest of the query, of the plans of its inputs, of the code in them, and of their files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa

from headrace.annex.queries.engines import Input, Query, QueryEngine, Work, engine_named
from headrace.annex.queries.map_groups import pack, packed_schema
from headrace.core import failpoints
from headrace.core.events import InputMade
from headrace.core.files import safe_files
from headrace.core.files.safe_files import write_failed
from headrace.core.human import plural, short_repr
from headrace.core.source_ports import Location, Preparation, Source
from headrace.core.tables import type_text
from headrace.core.work import Split
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, InputChanged, LedgerMismatch, PlanError, SourceError
from headrace.options import RunOptions
from headrace.plan.logical import Plan
from headrace.session.made import MadeRows, code_of_input, described, others_removed, state_of, write_first
from headrace.sources.parquet.source import ParquetSource
from headrace.sources.schemas import constant

RESULT, ANSWER = "result.parquet", "answer.json"


@dataclass(frozen=True, slots=True)
class QueryInput:
    """A dataset that a query names: its plan, and what reading it gives."""

    name: str
    plan: Plan
    schema: pa.Schema

    def handed(self, engine: QueryEngine) -> Input | None:
        """Return its rows as Parquet files that the engine reads itself, if it does."""
        files = () if self.plan.steps else self.plan.source.plain_files()
        if not files:
            return None
        paths, rows, values = zip(*files, strict=True)
        kinds = {name: self.schema.field(name).type for name in values[0]}
        try:
            made = {name: [constant(each[name], kinds[name], 1) for each in values] for name in kinds}
            outside = {name: pa.concat_arrays(arrays) for name, arrays in made.items()}
        except (pa.ArrowException, ValueError):  # which is said when we read it
            return None
        found = Input(paths, self.schema, rows, outside)
        return found if engine.reads(found) else None

    def input(
        self, engine: QueryEngine, folder: Path, preparation: Preparation
    ) -> tuple[Input, Sequence[InputMade]]:
        """Return its rows as Parquet files, and what queries before it did.

        They are written into ``folder`` if the engine does not read its own.
        """
        plan, rejected = self.plan, 0
        if (handed := self.handed(engine)) is not None:
            return handed, ()
        if plan.source.unprepared and not plan.steps:
            safe_files.make_folder(folder, 0o700)
            plan = replace(
                plan, source=plan.source.prepared(replace(preparation, folder=folder, lasting=True))
            )
            folder = folder / "all"
        if plan is not self.plan and plan.source.has_chunks:
            made, before = cast(ParquetSource, plan.source), plan.source.preparations()
        else:
            *before, written = write_first(plan, self.name, folder, preparation)
            rejected = sum(written.rejected.values())
            made = ParquetSource([str(folder)], partitioning=None)
        files = [path for path, _, _ in made.files()]
        counts = [footer.rows for footer in made.inspected().footers]
        return Input(tuple(files), self.schema, tuple(counts), rejected=rejected), before


class QuerySource(Source):
    """The rows that an engine answers a query with; they are made when a run begins that reads them.

    Its columns are known before, as the engine looks at the query when this is made. Raises ``PlanError`` for what it
    cannot answer.
    """

    unprepared = True

    def __init__(
        self,
        query: Query,
        inputs: Sequence[QueryInput],
        engine: QueryEngine,
        packed: tuple[str, ...] | None = None,
    ) -> None:
        self._query, self._inputs, self._engine, self._packed = query, tuple(inputs), engine, packed
        answered = engine.schema(query)
        self._schema = answered if packed is None else packed_schema(answered)

    # ------------------------------------------------------------ who it is

    def describe(self) -> dict[str, Any]:
        """Return the text, the engine with its version, and what identifies each input."""
        found: dict[str, Any] = {
            "kind": "query",
            "verb": self._query.label,
            "text": self._query.text,
            "engine": f"{self._engine.name} {self._engine.version}",
        }
        paths: dict[str, None] = {}
        for each in self._inputs:
            found |= described(each.plan, each.name)
            paths |= dict.fromkeys(each.plan.source.describe().get("paths", ()))
        return {**found, "paths": list(paths)}

    def code(self) -> dict[str, str]:
        """Return the code of all inputs' steps, theirs first that come first."""
        found: dict[str, str] = {}
        for each in self._inputs:
            found |= code_of_input(each.plan, each.name)
        return found

    def schema(self) -> pa.Schema:
        """Return the columns of the result."""
        return self._schema

    def files(self) -> list[tuple[str, int, int]]:
        """Return the files of the inputs."""
        return [file for each in self._inputs for file in each.plan.source.files()]

    def splits(self) -> list[Split]:
        """Return one split: nobody knows how many rows there will be."""
        return [Split(0, 0, 0, -1, 0)]

    def read(self, *_: Any, **__: Any) -> Any:
        """Only the result can be read."""
        raise AssertionError("the result of a query is read once it is prepared")

    def locate(self, split: Split, row: int) -> Location:
        """Name the row of the result."""
        return Location(f"the result of {self._query.label}", row)

    def explained(self) -> list[str]:
        """Say who answers the query, and where the rows come from that it reads."""
        engine = self._engine
        lines = [f"query    {engine.name} {engine.version}: {self._query.shown}"]
        for each in self._inputs:
            steps = " → ".join(["read", *(step.label() for step in each.plan.steps)])
            kind = type(each.plan.source).__name__.removesuffix("Source")
            how = f"{engine.name} reads the files" if each.handed(engine) else f"written first: {steps}"
            files = len(each.plan.source.files())
            kind += f", {plural(files, 'file')}" if files else ""
            lines.append(f"  {each.name}: {kind}; {how}")
            lines += [f"    {line}" for line in each.plan.source.explained()]
        return [*lines, "         rows are numbered in its result, which is removed when the run has ended"]

    # ------------------------------------------------------------ its rows

    def prepared(self, preparation: Preparation) -> Source:
        """Have the query answered, unless an earlier driver has its result."""
        if preparation.options.memory_limit is not None and not self._engine.bounded:
            raise ArgumentError(
                f"memory_limit= with query_engine={self._engine.name!r}: {self._engine.name} takes as much memory as "
                "the query needs. Leave memory_limit out, or use query_engine='duckdb', which keeps to it."
            )
        state = state_of(self)
        folder = others_removed(preparation.folder, state)
        try:
            result = folder / "result"
            if not (result / ANSWER).exists():
                safe_files.make_folder(folder, 0o700)
                self._answer(folder, preparation, state)
            made = msgspec.json.decode(safe_files.content(result / ANSWER), type=list[InputMade])
            kept = [Path(place) for each in made for place in each.rejected]  # rows that failed before
            for other in folder.iterdir():
                if other != result and not any(place.is_relative_to(other) for place in kept):
                    shutil.rmtree(other, ignore_errors=True)
        except OSError as error:
            raise write_failed(error, folder, "write") from error
        finally:
            for place in (folder / "made", folder / "spill"):
                shutil.rmtree(place, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()  # nothing in it is worth to be kept
        name, lasting = f"the result of {self._query.label}", preparation.lasting
        return MadeRows(str(result / RESULT), self, name, made, self._schema, lasting=lasting)

    def few(self, rows: int) -> Source:
        """Return a query for so many rows of the answer; this one, where groups have to be whole."""
        text = f"SELECT * FROM ({self._query.text.strip().rstrip(';')}\n) AS few LIMIT {rows}"
        with contextlib.suppress(PlanError):  # an engine that does not take it answers all of it
            if self._packed is None:
                return QuerySource(replace(self._query, text=text), self._inputs, self._engine)
        return self

    def _answer(self, folder: Path, preparation: Preparation, state: str) -> None:
        begun, inputs, queries = time.monotonic(), {}, list[InputMade]()
        for i, each in enumerate(self._inputs):
            preparation.say(f"query: reading {each.name}")
            inputs[each.name], before = each.input(self._engine, folder / f"input-{i}", preparation)
            queries.extend(before)
        failpoints.hit("query.inputs")
        made, spill = folder / "made", folder / "spill"
        for place in (made, spill):
            shutil.rmtree(place, ignore_errors=True)
            safe_files.make_folder(place, 0o700)
        answering = f"query: {self._engine.name} is answering it"
        preparation.say(answering)
        say = lambda share: preparation.say(f"{answering}, {share:.0f} %")  # noqa: E731
        work = Work(inputs, made / RESULT, spill, preparation.memory, preparation.cores, say)
        try:
            answer = self._engine.answer(self._query, work)
        except SourceError:
            if preparation.options.show_data:
                raise
            raise SourceError(
                f"{self._query.label}: {self._engine.name} failed in the query. What it says is not shown, as values "
                "may be in it (show_data=False)."
            ) from None
        failpoints.hit("query.answered")
        self._check(answer.read, answer.rows, inputs, made / RESULT)
        if state_of(self) != state:
            raise InputChanged(
                f"{self._query.label}: a file that the query reads has changed while it ran, so its result may have "
                "rows of both. Nothing was written: run it again when nobody writes the input."
            )
        about = InputMade(
            f"{self._engine.name} {self._engine.version}",
            self._query.shown,
            {name: each.rows for name, each in inputs.items()},
            answer.rows,
            (made / RESULT).stat().st_size,
            round(time.monotonic() - begun - sum(each.seconds for each in queries), 3),
            answer.spilled,
            {
                str(folder / f"input-{i}"): each.rejected
                for i, each in enumerate(inputs.values())
                if each.rejected
            },
        )
        with safe_files.file(made / RESULT) as file:
            os.fsync(file.fileno())
        safe_files.write(made / ANSWER, msgspec.json.encode([*queries, about]))
        safe_files.sync_folder(made)
        failpoints.hit("query.synced")
        os.rename(made, folder / "result")
        safe_files.sync_folder(folder)
        failpoints.hit("query.done")

    def _check(self, read: Mapping[str, int], rows: int, inputs: Mapping[str, Input], result: Path) -> None:
        """Make groups of the result, if they are wanted; compare what the engine counted with what the files say."""
        import pyarrow.parquet as pq

        counts = {f"of {name}": (count, inputs[name].rows) for name, count in read.items()}
        counts["of the result"] = rows, pq.read_metadata(result).num_rows
        if self._packed is not None:
            counts["of its groups"] = rows, pack(result, self._packed)
        for what, (counted, there) in counts.items():
            if counted != there:
                raise LedgerMismatch(
                    f"{self._query.label}: {self._engine.name} counted {counted:,} rows {what}, and the files have "
                    f"{there:,}. The result is not used. Report it with the query."
                )


# ---------------------------------------------------------------- datasets of queries


def sql(text: str, /, *, query_engine: str = "duckdb", **datasets: Dataset) -> Dataset:
    """Return the result of a query as a dataset: joins, groups, sorts, windows, whatever SQL says.

    Nothing runs yet, but the query is looked at: its columns are known, and what is wrong with it is said at once.
    When a run begins, such as ``write_parquet``, the query is answered once, and the run reads its result. A run that
    was killed and goes on does not answer it again. docs/queries.md has the rest.

    Parameters
    ----------
    text
        One SELECT. Its tables are ``datasets``, and nothing else.
    query_engine
        ``"duckdb"``; ``"polars"``, for what fits into memory; or one that an installed package brings. DuckDB keeps
        to the memory of the run, and spills what does not fit.
    datasets
        The datasets that the text names. Parquet files are read by the engine itself, and those of Delta and Iceberg
        tables where that gives the same rows. What has steps, or is of another kind, is written as Parquet first.

    Raises
    ------
    PlanError
        The engine does not take the query; a name in it is not given; or a column is of a type whose values the
        engine would change. ``ArgumentError``: something that is given is no dataset, or is not in the text.
        ``MissingLibrary``: the engine's library is not installed.

    Examples
    --------
    >>> import headrace as hr
    >>> rides = hr.from_items([{"zone": 1, "fare": 5.0}, {"zone": 2, "fare": 7.5}, {"zone": 1, "fare": 6.0}])
    >>> zones = hr.from_items([{"zone": 1, "name": "Harbour"}, {"zone": 2, "name": "Hill"}])
    >>> query = "SELECT name, sum(fare) AS fares FROM rides JOIN zones USING (zone) GROUP BY name ORDER BY name"
    >>> hr.sql(query, rides=rides, zones=zones).take_all()
    [{'name': 'Harbour', 'fares': 11.0}, {'name': 'Hill', 'fares': 7.5}]
    """
    if not isinstance(text, str):
        raise ArgumentError(f"sql({short_repr(text)}): the query is a text, such as 'SELECT * FROM rides'.")
    return queried(text, datasets, engine=query_engine)


def queried(
    text: str,
    datasets: Mapping[str, Any],
    *,
    label: str = "sql",
    engine: str = "duckdb",
    numbered: bool = False,
    packed: tuple[str, ...] | None = None,
) -> Dataset:
    """Return the dataset of a query's rows. The primitive below every verb that is answered by an engine.

    ``label`` is what messages call it, such as ``sort``. ``numbered``: each dataset has the column ``_row`` besides,
    the number of the row in it, from 0. ``packed``: the keys that the result is sorted by, if each group of rows is
    to be one row, with a list for each column. Raises what ``sql`` raises.
    """
    answers = engine_named(engine)
    inputs = [QueryInput(name, *_checked(name, given, label)) for name, given in datasets.items()]
    for each in inputs:
        if not each.schema.names:
            raise PlanError(f"{label}: {each.name} has no columns. Give it one, as with with_column.")
        for field in each.schema:
            why = answers.refusal(field.type)
            if why:
                raise PlanError(
                    f"{label}: the column {field.name!r} of {each.name} is {type_text(field.type)}, and {why}. Leave "
                    f"it out with drop_columns([{field.name!r}]), or convert it in a step before."
                )
    query = Query(text, {each.name: each.schema for each in inputs}, label, numbered)
    source = QuerySource(query, inputs, answers, packed)
    unused = next((name for name in datasets if not re.search(rf"\b{re.escape(name)}\b", text, re.I)), None)
    if unused is not None:
        raise ArgumentError(f"{label}: {unused}= is given, and the query does not name it. Leave it out.")
    return Dataset(Plan(source), RunOptions.from_environment())


def _checked(name: str, given: Any, label: str) -> tuple[Plan, Any]:
    """Return the plan of a dataset and its columns; refuse what cannot come before a query."""
    if not isinstance(given, Dataset):
        raise ArgumentError(
            f"{label}: {name} is {type(given).__name__}, and no dataset; read_* and from_* make datasets."
        )
    given._check_unrequired(label)
    plan = given._plan
    if plan.accumulates:
        raise ArgumentError(
            f"{label}: {name} has {plan.accumulates[0].label()}, and metrics count the rows that are written. Put "
            f"accumulate behind {label}."
        )
    return plan, given._schema()
