"""What ``verify`` says of an output, and how it measures parts, metrics and tables again.

Metrics only if they are Headrace's own: others would need their code to be executed.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from headrace.core.door import annex, loaded
from headrace.core.files import safe_files
from headrace.core.files.formats import written_as
from headrace.core.human import plural
from headrace.core.metric_states import merged, plain
from headrace.core.model_ports import Accumulator
from headrace.core.stores.addresses import Options
from headrace.core.target_ports import Target
from headrace.core.terminal import one_line
from headrace.core.work import StagedFile
from headrace.errors import HeadraceError
from headrace.output.commit import DATABASE, LAKES, TABLES, parts_of
from headrace.output.places.place import Place
from headrace.output.runs import SavedRun

if TYPE_CHECKING:
    from headrace.core.work import Ledger
    from headrace.sinks.files import TableOfFiles


Verdict = Literal["good", "damaged", "unpublished", "unfinished", "running"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    ``kind`` is one of ``missing``, ``size``, ``damaged``, ``rows``, ``extra``, ``journal``, ``plan``, ``manifest``,
    ``success``, ``totals``, ``shards``, ``metrics``, ``table`` (which has not all rows), ``unpublished``
    and ``unfinished``.
    """

    kind: str
    file: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.file}: {self.message}")


@dataclass(frozen=True)
class Verification:
    """What ``verify`` found; ``print(verification)`` shows it.

    Attributes
    ----------
    path, run
        The folder, or the address, and the name of the run whose parts are in it.
    state
        ``"good"``; ``"damaged"``; ``"unfinished"``: the run can be resumed, and what is there is as it should be;
        ``"unpublished"``: all is there as it should be, and kept out of sight, as a requirement was not met;
        ``"running"``: another process is writing, and nothing was checked.
    findings
        What is wrong.
    files, rows, bytes, rejected
        Parts, rows and bytes that were checked, and rejected rows.
    metrics
        Results of metrics, merged again from the journal.
    unchecked
        Metrics that could not be merged, as they are not Headrace's own.
    note
        Who is writing, that an overwrite or a further run is under way, or that a Delta table was compacted, so that
        its rows are in other files; else an empty string.

    >>> import pathlib
    >>> Verification(pathlib.Path("out"), "k3f9a2xq", "unfinished").good
    False
    """

    path: Path | str
    run: str
    state: Verdict
    findings: tuple[Finding, ...] = ()
    files: int = 0
    rows: int = 0
    bytes: int = 0
    rejected: int = 0
    metrics: dict[str, Any] | None = None
    unchecked: tuple[str, ...] = ()
    note: str = ""

    @property
    def good(self) -> bool:
        """True if the output is complete and as it was written."""
        return self.state == "good"

    def _repr_html_(self) -> str:
        """Show in a notebook what was checked, and what is wrong."""
        from headrace.core.tables import Table, card

        first, *others = str(self).splitlines()
        others = others[len(self.findings) :]
        found = [(each.kind, each.file, each.message) for each in self.findings]
        tables = [Table(("kind", "file", "finding"), found)] if found else []
        return card(first, [("", line.strip()) for line in others], *tables)

    def __str__(self) -> str:
        from headrace.core.human import size

        if self.state == "running":
            return f"{self.path} is being written by {self.note}. Nothing was checked: verify it when that is done."
        words = f"{plural(self.files, 'file')}, {plural(self.rows, 'row')}, {size(self.bytes)}"
        aside = f", {plural(self.rejected, 'rejected row')}" if self.rejected else ""
        lines = [f"{self.path}: {self.state} ({words}{aside}; run {self.run})"]
        lines += [f"  {finding}" for finding in self.findings]
        if self.metrics:
            lines.append(f"  metrics merged again: {', '.join(self.metrics)}")
        if self.unchecked:
            lines.append(
                f"  metrics not checked, as only their own code can merge them: {', '.join(self.unchecked)}"
            )
        return "\n".join(map(one_line, [*lines, f"  {self.note}"] if self.note else lines))

    __repr__ = __str__


def steps_of(ledger: Ledger) -> Iterator[tuple[int, ...]]:
    """Yield the counts of each step, in the order in which ``_SUCCESS`` names them."""
    fates = zip(ledger.steps, ledger.rejects, ledger.dropped, ledger.added, ledger.unused, strict=True)
    for (taken, given), *others in fates:
        yield taken, given, *others


def verbs(shape: dict[str, Any]) -> set[str]:
    """Return the verbs of a plan."""
    return {step.get("verb", "") for step in shape.get("steps", ())}


# ------------------------------------------------------------ measured again


_CHUNK = 1 << 20
WRONG = (HeadraceError, IndexError, ValueError, msgspec.MsgspecError)


def bytes_of(path: Path) -> tuple[int, int]:
    """Return a file's size and CRC-32, by reading all of it."""
    size = crc = 0
    with safe_files.file(path) as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return size, crc


def rows_of(path: Path, name: str, sink: Mapping[str, Any]) -> int | None:
    """Count the rows of a file that is whole, as its format does; None for a format that is not ours."""
    found = written_as(str(sink.get("kind")))
    writer = "" if found is None else found.writer
    if name.endswith(".arrow"):
        writer = "headrace.sinks.files:Arrow"
    rows: int | None = loaded(writer).rows_in(path, sink) if writer else None
    return rows


class Remeasured(NamedTuple):
    """Metrics that were merged again, what is wrong with them, and which were not checked."""

    results: dict[str, Any] | None = None
    findings: tuple[Finding, ...] = ()
    unchecked: tuple[str, ...] = ()


def remeasured(run: SavedRun, recorded: Any) -> Remeasured:
    """Merge the metric states of all shards again, and compare with ``recorded``, what ``_SUCCESS`` says."""
    steps = run.plan.described.get("steps", ())
    planned = {name: each for step in steps for name, each in (step.get("metrics") or {}).items()}
    if not isinstance(recorded, dict) or recorded.keys() != planned.keys():
        has = sorted(recorded) if isinstance(recorded, dict) else recorded
        return Remeasured(findings=(_wrong(f"it has metrics {has!r}, and the plan {sorted(planned)}."),))
    if not planned:
        return Remeasured()
    results: dict[str, Any] = {}
    findings: list[Finding] = []
    unchecked: list[str] = []
    for i, name in enumerate(recorded):
        metric = _metric_from(planned[name])
        if metric is None:
            unchecked.append(name)
            continue
        try:
            results[name] = again = _merged(run, i, name, metric)
            if recorded[name] != again:
                findings.append(
                    _wrong(f"{name} is {recorded[name]!r}, and the journal's states give {again!r}.")
                )
        except WRONG as error:
            findings.append(_wrong(f"{name} cannot be merged again: {error}"))
    return Remeasured(results, tuple(findings), tuple(unchecked))


def _wrong(message: str) -> Finding:
    return Finding("metrics", "_SUCCESS", message)


def _merged(run: SavedRun, number: int, name: str, metric: Accumulator) -> Any:
    """Return a metric's result by the states of all shards, in plain values; ``number`` is its place in them."""
    records = (record for record in run.in_order() if record.states)
    totals = merged([(name, metric)], ((record.states[number],) for record in records), run.folder)
    return msgspec.json.decode(msgspec.json.encode(plain(totals[0].result())))


def _metric_from(shape: Any) -> Any:
    """Return one of Headrace's metrics from its description; None for any other."""
    import inspect

    from headrace.accumulators import METRICS

    kind: Any = shape.get("kind") if isinstance(shape, dict) else None
    cls = METRICS.get(kind) if kind in METRICS.ours and kind != "TorchMetric" else None
    if cls is None:
        return None
    settings = {name: value for name, value in shape.items() if name != "kind"}
    if kind == "By":
        settings["metric"] = _metric_from(settings.get("metric"))
        if settings["metric"] is None:
            return None
    taken = inspect.signature(cls.__init__).parameters
    try:
        metric = cls(**{name: value for name, value in settings.items() if name in taken})
    except (HeadraceError, TypeError):
        return None
    described = msgspec.json.decode(msgspec.json.encode(metric.describe(), enc_hook=str))
    return metric if described == shape else None


# ------------------------------------------------------------ rows of a table


Findings = list[Finding]

# Modules with a function ``saved``.
_OPENED_BY = {DATABASE: "databases.verbs", **dict.fromkeys(LAKES, "lakes.verbs")}


class Reached(NamedTuple):
    """What opens a table that an output is in, as the caller gave it: its catalogue, or the database's address."""

    catalog: str | Mapping[str, Any] | None = None
    uri: str | None = None


def in_table(
    about: Mapping[str, Any],
    place: str,
    options: Options,
    run: SavedRun,
    reached: Reached,
    missing: Collection[StagedFile],
) -> tuple[Findings, list[str], set[str]]:
    """Look whether a table has the rows of each run of an output; return what it has not, and notes.

    And the names of those among ``missing`` files whose rows a table has in others, by its history. ``about``: what
    the plan says of the sink. Of a run that is not finished, a database may have rows already.
    """
    kind, elsewhere = about.get("kind"), set[str]()
    if kind not in TABLES or not (run.finished or kind == DATABASE):
        return [], [], elsewhere
    findings, notes = [], []
    try:
        target = _target_of(about, place, options, run, reached)
        if isinstance(target, str):
            return [], [f"it was not checked whether the table has the rows: {target}"], elsewhere
        for name, parts in _parts_by_run(target, run):
            absent = [file for file in parts if file in missing]
            found = target.rows_lost(parts, absent, name)
            if found is None and absent and not (target.by_part or target.every_row):
                elsewhere |= {file.name for file in absent}
                rows = sum(file.rows for file in absent)
                notes.append(
                    f"{plural(len(absent), 'part')} with {plural(rows, 'row')} are not there any more, and the "
                    f"{kind} does not need them: it has their rows"
                )
            elif found is not None and (found.left == "unknown" or found.by_run):
                notes.append(found.why)
            elif found is not None:
                findings.append(Finding("table", name, f"{found.why}."))
    except HeadraceError as error:
        notes.append(f"it could not be checked whether the table has the rows: {error}")
    return findings, notes, elsewhere


def gone(output: Place, run: SavedRun, options: Options = ()) -> str:
    """Say what is gone of a finished output, as far as names, sizes and tables tell; "" if nothing is.

    No part is read, and no row of a database is compared: ``verify`` does.
    """
    about = run.plan.sink
    files = [file for record in run.records for file in record.files]
    missing = [file for file in files if output.size_of(file.name) != file.size]
    if about.get("kind") not in TABLES:
        if not missing:
            return ""
        others = f", {missing[0].name} the first" if len(missing) > 1 else f": {missing[0].name}"
        return (
            f"{len(missing):,} of {plural(len(files), 'file')} {'is' if len(missing) == 1 else 'are'} gone, or of "
            f"another size{others}"
        )
    try:
        target = _target_of(about, str(output.at()), options, run, Reached())
        if isinstance(target, str):
            return ""
        for name, parts in _parts_by_run(target, run):
            found = target.gone(parts, [file for file in parts if file in missing], name)
            if found is not None and found.left != "unknown" and not found.by_run:
                return found.why
    except HeadraceError:  # the table cannot be looked at from here
        return ""
    return ""


def _parts_by_run(target: Target, run: SavedRun) -> Iterator[tuple[str, Sequence[StagedFile]]]:
    """Yield the name and the parts of each run that the table must have; of a database, of all runs at once."""
    if target.by_part:
        parts = [file for file in parts_of(run.records) if file.rows]
        yield run.name, parts if run.finished else target.has_parts(parts)
        return
    for name in (entry.name(run.name) for entry in run.state.runs):
        yield name, parts_of(run.records, name)


def _target_of(
    about: Mapping[str, Any], place: str, options: Options, run: SavedRun, reached: Reached
) -> Target | str:
    """Return what looks into the table of a run; or why nothing does."""
    found = table_of(about, place, options, reached)
    if isinstance(found, str):
        return found
    assert found is not None
    staging = str(run.folder / "staging")
    return found.of(found.files.bind(run=run.name, staging=staging, digits=0, durability="process"))


def table_of(
    about: Mapping[str, Any], place: str, options: Options, reached: Reached
) -> TableOfFiles | str | None:
    """Return the table that a plan describes, with its files at ``place``; None if it describes files alone.

    Or why there is none: no server is connected to because an output names it.
    """
    if about.get("kind") not in TABLES:
        return None
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet

    parts = FileSink(
        place, Parquet(), storage_options=options, partition_by=tuple(about.get("partition_by", ()))
    )
    opened = annex(_OPENED_BY[about["kind"]])
    return opened.saved(about, parts, options, reached) if opened else "its annex is not there"
