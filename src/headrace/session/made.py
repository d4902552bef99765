"""Datasets that are made first: run into a hidden output of the run that reads them, whose parts are then a source.

::

    OUT/_headrace/queries/0/<state>/     the output of one such dataset, with a journal of its own

``<state>`` is a digest of the plan, of the code in it, and of its files. What is there and whole is not made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

from headrace.core.events import InputMade
from headrace.core.files import safe_files
from headrace.core.human import plural
from headrace.core.source_ports import Keys, Location, Numbers, Preparation, Source, row_keys
from headrace.core.terminal import warn
from headrace.core.work import SUCCESS, Split
from headrace.errors import ArgumentError
from headrace.options import RunOptions
from headrace.plan.compile import carried_columns, columns_at
from headrace.plan.identity import code_of_plan
from headrace.plan.logical import Plan
from headrace.plan.steps.selection import Limit
from headrace.session import read
from headrace.sources.parquet.source import ParquetSource

if TYPE_CHECKING:
    import pyarrow as pa

# Options that are about the run behind, and not about those that write its inputs.
_OF_THE_RUN = (
    *("mode", "on_change", "incremental", "refresh", "fix", "key", "shard_rows"),
    *("observers", "keep_queries", "progress", "report", "watch", "fleet"),
)
_PLAIN = RunOptions(progress=False, report=False)
_SMALL = 16 << 20  # bytes of files that this process writes faster than it starts a worker


def described(plan: Plan, name: str) -> dict[str, Any]:
    """Return what identifies an input of a name: its source, its steps, and the state of its files."""
    source = plan.source
    with contextlib.suppress(Exception):  # what is wrong with them is said when they are read
        source.splits()  # which lists the files anew
    files = source.files()
    state = hashlib.sha256(repr(files).encode()).hexdigest()[:16]
    found = {
        f"{name}, the source": source.describe(),
        f"{name}, the steps": [step.shape() for step in plan.steps],
        f"{name}, its files": f"{plural(len(files), 'file')}, state {state}" if files else None,
    }
    return {key: value for key, value in found.items() if value}


def code_of_input(plan: Plan, name: str) -> dict[str, str]:
    """Return the code of an input's steps, as ``Source.code`` has it."""
    return {f"input {name}, {place}": print_ for place, print_ in code_of_plan(plan).items()}


def state_of(source: Source) -> str:
    """Return a digest of what a source's rows are made from, and by which code."""
    about = msgspec.json.encode([source.describe(), source.code()], order="sorted")
    return hashlib.sha256(about).hexdigest()[:24]


def others_removed(folder: Path, state: str) -> Path:
    """Remove what was made for other states, and return the folder for this one."""
    with contextlib.suppress(FileNotFoundError):
        for other in folder.iterdir():
            if other.is_dir() and other.name != state:
                shutil.rmtree(other, ignore_errors=True)
    return folder / state


def write_first(plan: Plan, name: str, folder: Path, preparation: Preparation) -> list[InputMade]:
    """Write the rows of a plan into an output, or complete it; return what was done, and before it what it reads."""
    from headrace.observers.progress import RowsSoFar
    from headrace.session.context import RunContext
    from headrace.session.write import write
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet

    began = time.monotonic()
    options = replace(preparation.options, **{each: getattr(_PLAIN, each) for each in _OF_THE_RUN})
    options = replace(options, observers=(RowsSoFar(preparation.say, f"reading {name}"),))
    if not preparation.lasting:  # made again, it has the same parts
        options = replace(options, commit_every=None)
    if not plan.steps and sum(size for _, size, _ in plan.source.files()) <= _SMALL:
        options = replace(options, engine="inline", batch_timeout=None)
    with RunContext.open(plan, options, sink="headrace.sinks.parquet") as context:
        result = write(context, lambda plan: plan.into(FileSink(str(folder), Parquet())), began)
    if result.rejected:
        warn(f"{plural(result.rejected, 'row')} of {name} failed before, and are not in it.")
    told = msgspec.json.decode(safe_files.content(folder / SUCCESS))
    made = InputMade(
        "headrace",
        " → ".join(["read", *(step.label() for step in plan.steps)]),
        {name: result.ledger.read},
        result.rows,
        result.bytes,
        round(result.seconds, 3),
        0,
        {str(folder): result.rejected} if result.rejected else {},
    )
    return [*msgspec.convert(told.get("queries", []), list[InputMade]), made]


class MadeSource(Source):
    """The rows of a plan, called ``name`` in messages, which are made when a run begins that reads them."""

    unprepared = True

    def __init__(self, plan: Plan, name: str) -> None:
        self.plan, self.name = plan, name
        self._schema: pa.Schema | None = None

    def describe(self) -> dict[str, Any]:
        """Return what identifies the plan."""
        paths = self.plan.source.describe().get("paths", ())
        return {"kind": "made", **described(self.plan, self.name), "paths": list(paths)}

    def code(self) -> dict[str, str]:
        """Return the code of the plan."""
        return code_of_input(self.plan, self.name)

    def known_schema(self) -> pa.Schema | None:
        """Return the columns, if no function has to run for them."""
        if self._schema is None:
            self._schema = read.known_schema(self.plan)
        return self._schema

    def schema(self) -> pa.Schema:
        """Return the columns: a few rows are made, if only that tells."""
        if self.known_schema() is None:
            self._schema = self.first_rows(16, _PLAIN).schema()
        assert self._schema is not None
        return self._schema

    def files(self) -> list[tuple[str, int, int]]:
        """Return the files of the plan's source."""
        return self.plan.source.files()

    def splits(self) -> list[Split]:
        """Return one split, with the number of rows if no row has to be made for it."""
        rows = read.known_count(self.plan, _PLAIN)
        return [Split(0, 0, 0, -1 if rows is None else rows)]

    def read(self, *_: Any, **__: Any) -> Any:
        """Only what was made can be read."""
        raise AssertionError(f"{self.name} is read once it is made")

    def locate(self, split: Split, row: int) -> Location:
        """Name the row of what will be made."""
        return Location(self.name, row)

    def explained(self) -> list[str]:
        """Say what is made first."""
        steps = " → ".join(["read", *(step.label() for step in self.plan.steps), "write"])
        lines = [f"first    {self.name}: {steps}; kept until the run ends"]
        return [*lines, *(f"  {line}" for line in self.plan.source.explained())]

    def first_rows(self, rows: int, options: Any) -> Source:
        """Return the first rows, which are made now and stay in memory."""
        import pyarrow as pa

        from headrace.core.arrow.widening import widened
        from headrace.sources.memory import MemorySource

        batches = list(head(self.plan, rows, options))
        table = (
            pa.Table.from_batches(widened(batches))
            if batches
            else read.static_schema(self.plan).empty_table()
        )
        return MemorySource(table, "first rows")

    def prepared(self, preparation: Preparation) -> Source:
        """Have the plan run, unless an earlier driver did."""
        folder = others_removed(preparation.folder, state_of(self))
        made = write_first(self.plan, self.name, folder, preparation)
        return MadeRows(str(folder), self, self.name, made, lasting=preparation.lasting)


class MadeRows(ParquetSource):
    """Rows that were made for a run, in files that belong to it: they are described as ``source`` is."""

    def __init__(
        self,
        path: str,
        source: Source,
        name: str,
        made: Sequence[InputMade],
        schema: pa.Schema | None = None,
        *,
        lasting: bool,
    ) -> None:
        super().__init__([path], partitioning=None, schema=schema)
        self._described, self._code = source.describe(), source.code()
        self._name, self._made = name, made
        self._contents: list[tuple[str, int, int]] = []
        if not lasting:
            for number, (file, size, _) in enumerate(super().files()):
                digest = hashlib.sha256()
                with safe_files.file(Path(file)) as opened:
                    while chunk := opened.read(1 << 20):
                        digest.update(chunk)
                self._contents.append((f"{name}, part {number}", size, int(digest.hexdigest()[:15], 16)))

    def files(self) -> list[tuple[str, int, int]]:
        """Return the files; where they do not outlive this process, by what is in them, wherever they lie."""
        return self._contents or super().files()

    def pinned(self, paths: Sequence[str]) -> Self:
        """Return this source: there are no other files."""
        return self if self._contents else super().pinned(paths)

    def describe(self) -> dict[str, Any]:
        """Return what made them."""
        return self._described

    def code(self) -> dict[str, str]:
        """Return the code that made them."""
        return self._code

    def preparations(self) -> Sequence[InputMade]:
        """Return how they were made."""
        return self._made

    def explained(self) -> list[str]:
        """Say what was done."""
        return [f"made     {made}: {made.what}" for made in self._made]

    def locate(self, split: Split, row: int) -> Location:
        """Number the rows of all files."""
        return Location(self._name, self._before(split) + row)

    def row_keys(self, split: Split, numbers: Numbers) -> Keys:
        """Return keys that depend neither on where the files are nor on how many."""
        return row_keys(self._name, numbers + self._before(split))

    def _before(self, split: Split) -> int:
        return sum(self.inspected().counts[: split.file]) + max(split.first, 0)


# ---------------------------------------------------------------- only the first rows

_MORE = 64  # times as many rows are made if those that were asked for do not come out of the steps behind


def head(plan: Plan, rows: int, options: RunOptions, *, told: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the first ``rows`` rows as ``read.head`` does; of what would be made first, no more than that takes."""
    for most in (rows, _MORE * rows) if plan.source.unprepared else ():
        first = plan.source.first_rows(most, options)
        if first is None:
            break
        start = replace(plan, source=first, steps=(Limit(most), *plan.without_metrics().steps))
        found = list(read.head(start, rows, options, told=told))
        counts = [split.rows for split in first.splits()]
        whole = min(counts, default=0) >= 0 and sum(counts) < most
        if whole or sum(batch.num_rows for batch in found) >= rows:
            yield from found
            return
    yield from read.head(plan, rows, options, told=told)


# ---------------------------------------------------------------- ``zip``


def zipped(plans: Sequence[Plan]) -> Plan:
    """Return the plan whose rows are those of ``plans`` side by side.

    Where steps only choose and rename columns, these are read. What has other steps, or does not know how many rows
    it has, is made first. Raises ``ArgumentError`` for metrics, and for numbers of rows that are known to differ.
    """
    from headrace.sources.zipped import ZipSource

    sources: list[Source] = []
    chosen: list[dict[str, str] | None] = []
    for number, plan in enumerate(plans, 1):
        for step in plan.accumulates:
            raise ArgumentError(
                f"zip: dataset {number} has {step.label()}, and metrics count all rows that are written. Put "
                "accumulate after zip."
            )
        columns = _chosen(plan)
        known = plan.source.unprepared or all(split.rows >= 0 for split in plan.source.splits())
        plain = known and (columns is not None or not plan.steps)
        sources.append(plan.source if plain else MadeSource(plan, f"dataset {number} of the zip"))
        chosen.append(columns if plain and plan.steps else None)
    whole = ZipSource(sources, chosen)
    whole.rows()  # what does not fit is refused here
    return Plan(whole)


def _chosen(plan: Plan) -> dict[str, str] | None:
    """Return the columns, and what they are called in the source, if the steps do nothing but choose and rename."""
    schema = plan.source.known_schema()
    names = columns_at(plan.steps, schema)[-1]  # what cannot work is refused here
    if schema is None or names is None or not all(step.one_to_one for step in plan.steps):
        return None
    carried = carried_columns(plan.steps, schema)
    alike = set(carried) == set(names) and len(set(carried.values())) == len(carried)
    return {name: carried[name] for name in names} if alike else None
