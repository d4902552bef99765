"""The events and the result of a run that writes, from the state of its journal."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.asked import RequirementsAsked
from headrace.core.door import annex
from headrace.core.events import Event, MetricsCounted, RunFinished, RunStarted
from headrace.core.human import plural
from headrace.core.table_changes import position_text, taken_in
from headrace.core.work import HOME, Ledger
from headrace.observers.pace import LAST_SHARDS
from headrace.observers.record_reader import listed, table, whole
from headrace.output.inputs import files_in
from headrace.output.names import REPORT
from headrace.output.runs import success_of
from headrace.output.seen_keys import key_step
from headrace.result import Metrics, Result
from headrace.session.read import likely_rows, rows_expected, sizes_of

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.output.job import Job
    from headrace.output.journal_state import RunEntry
    from headrace.output.layout import Output


def started(job: Job, workers: int) -> RunStarted:
    """Return the event that a driver begins: what the run has to do, and what earlier drivers did of it."""
    state, planned = job.committer.state, job.planned
    before = state.ledger
    expected = rows_expected(job.plan, planned)
    sizes = sizes_of(job.plan, planned, expected)
    left = {index: size for index, size in sizes.items() if not state.done[index]}
    return RunStarted(
        job.committer.plan.run,
        str(job.output),
        len(planned),
        state.shards,
        before.read,
        expected,
        workers,
        before.written,
        before.rejected,
        before.nulled,
        state.bytes,
        tuple(sizes.get(shard.index, shard.rows) for shard in planned[-LAST_SHARDS:]),
        len(state.runs),
        before.answered,
        sum(sizes.values()),
        sum(sizes.values()) - sum(left.values()),
        left,
        state.faults,
        likely_rows(job.plan, expected),
    )


def finished(job: Job, seconds: float, **found: Any) -> RunFinished:
    """Return the event that the run ended; ``found`` are fields that are not in the journal."""
    from headrace.core.arrow.batch import schema_from

    state, schema = job.committer.state, job.committer.state.schema
    return RunFinished(
        job.committer.plan.run,
        str(job.output),
        _whole_ledger(job),
        state.timings,
        state.bytes,
        state.files,
        seconds or state.seconds,
        faults=state.faults,
        columns={each.name: str(each.type) for each in schema_from(schema)} if schema is not None else {},
        **found,
    )


def ledger_of(job: Job) -> dict[str, Any]:
    """Return the ledger for `_SUCCESS`: rows in sum, and of each step."""
    from headrace.observers.summary import ledger_data

    return ledger_data(_whole_ledger(job), [step.label() for step in job.plan.steps])


def _whole_ledger(job: Job) -> Ledger:
    """Return the ledger of all shards, with the rows that were read before the run, for what was made first."""
    gathered = sum(sum(made.inputs.values()) for made in job.plan.source.preparations())
    if job.plan.source.unprepared:  # the run had ended before
        gathered = whole(
            table(success_of(job.output.root, job.committer.plan.run) or {}, "ledger"), "gathered"
        )
    return msgspec.structs.replace(job.committer.state.ledger, gathered=gathered)


class OlderRows(msgspec.Struct, frozen=True):
    """Rows of an output that were made by other code than what is asked for now: of how many input files, by what."""

    files: int
    rows: int
    steps: tuple[str, ...]

    def __str__(self) -> str:
        """Say it in one line.

        >>> print(OlderRows(31, 12_000, ("predict(Model)",)))
        rows of 31 files (12,000 rows) were made by an older predict(Model)
        """
        return f"rows of {plural(self.files, 'file')} ({plural(self.rows, 'row')}) were made by an older {self._of}"

    @property
    def _of(self) -> str:
        return " and ".join(self.steps) or "plan"

    def data(self) -> dict[str, Any]:
        """Return it as ``_SUCCESS`` has it."""
        return {"input_files": self.files, "rows": self.rows, "steps": list(self.steps)}


def older_of(job: Job) -> OlderRows | None:
    """Return which rows of the output other code has made than that of the plan as it is; None: there are none."""
    codes, shards = job.committer.state.codes, job.shards
    others = {number for number, known in codes.items() if known != job.code}
    if job.recorded is not None or not others:
        return None
    files, made, rows = set[int](), set[int](), 0
    for record in job.committer.committed():
        if record.revision in others and record.shard < len(shards):
            made.add(record.revision)
            rows += record.ledger.written
            files |= files_in(job.plan.source, [shards[record.shard]])
    steps = sorted(
        (int(place.partition(":")[0]), place.partition(" of ")[2])
        for number in made
        for place, mark in codes[number].items()
        if job.code.get(place) != mark
    )
    return OlderRows(len(files), rows, tuple(dict.fromkeys(name for _, name in steps))) if made else None


def notes_of(job: Job) -> list[str]:
    """Return lines on an output of several runs: which one this was, and what of the others is not as it would be."""
    state, lines = job.committer.state, [f"made first: {made}" for made in job.plan.source.preparations()]
    if job.machines is not None:
        lines.append(f"a fleet of {plural(len(job.machines.machines), 'machine')}")
    if len(state.runs) > 1 and job.recorded is None:
        last = state.runs[-1]
        lines.append(f"run {last.number} of this output, of {_taken_in(last)}")
    if job.committer.gone:
        gone = plural(len(job.committer.gone), "input file")
        lines.append(f"read by an earlier run and gone since: {gone}; the rows stay")
    if job.recorded is None and key_step(job.plan) is not None and state.ledger.dropped[:1] not in ((), (0,)):
        lines.append(f"{plural(state.ledger.dropped[0], 'row')} left out, as runs before had seen their keys")
    older = older_of(job)
    return [*lines, str(older)] if older is not None else lines


def _taken_in(run: RunEntry) -> str:
    new = plural(run.files, "new input file")
    again = f"{plural(run.again, 'input file')} that {'was' if run.again == 1 else 'were'} done before"
    if not (run.files or run.again):
        return "rejected rows that were tried again"
    words = f"{new} and {again}" if run.files and run.again else again if run.again else new
    return taken_in(words, position_text(run.input))


def metrics_of(job: Job) -> tuple[Metrics, dict[str, Any]]:
    """Merge the states of all committed shards; return the metrics and the data of their charts."""
    if job.recorded is not None:
        return Metrics(job.recorded.get("metrics") or {}, notes=job.recorded.get("metrics_notes") or {}), {}
    metrics, committer = job.plan.metrics, job.committer
    if not metrics:
        return Metrics(notes={}), {}
    from headrace.core.metric_states import merged
    from headrace.output.journal import read
    from headrace.session.read import charts, collected

    records = read(committer.folder / "journal").in_order([shard.place for shard in job.shards])
    states = (record.states for record in records if record.states)
    totals = merged(metrics, states, committer.folder)
    return collected(metrics, totals), charts(metrics, totals)


def counted(metrics: Metrics, charts: dict[str, Any]) -> MetricsCounted:
    """Return the event that the metrics are computed."""
    from headrace.core.metric_states import plain

    return MetricsCounted(plain(metrics), metrics.notes, charts)


_FIRST, _SHARE = (
    10.0,
    0.005,
)  # seconds until metrics are counted, and the share of the time that this may take
_LONGEST = 1.0  # seconds: what takes longer would be noticed
_CHARS = 20_000  # of the data of charts: the record has them each time


class MetricsSoFar:
    """An observer that now and then counts the metrics of what is committed, and says what they are."""

    def __init__(self, job: Job, say: Callable[[Event], None]) -> None:
        self._job, self._say = job, say
        self._began = time.monotonic()
        self._due = self._began + _FIRST
        self._counted = 0

    def on_event(self, event: Event) -> None:
        """See no event."""

    def tick(self) -> None:
        """Count, if it is time."""
        now, done = time.monotonic(), self._job.committer.state.shards
        if now < self._due or done == self._counted:
            return
        metrics, charts = metrics_of(self._job)
        took = time.monotonic() - now
        self._due = now + max(_FIRST, (now - self._began) / 50, took / _SHARE)
        if took > _LONGEST:
            self._due = math.inf
        self._counted = done
        small = len(repr(charts)) < _CHARS
        self._say(msgspec.structs.replace(counted(metrics, charts if small else {}), shards=done))


def result_of(job: Job, event: RunFinished, metrics: Metrics, rows_before: int = 0) -> Result:
    """Return what the verb returns. ``rows_before``: rows that earlier drivers read."""
    from headrace.observers.summary import summary
    from headrace.session.read import lines

    success = success_of(job.output.root, job.committer.plan.run) or {}
    required = RequirementsAsked.of(success)
    return Result(
        rows=event.ledger.written,
        rejected=event.ledger.rejected,
        metrics=metrics,
        ledger=event.ledger,
        report=job.output.place.at(f"{HOME}/{event.run}/{REPORT}"),
        path=job.output.place.at(),
        run=event.run,
        files=event.files,
        bytes=event.bytes,
        seconds=event.seconds,
        resumed=job.resumed,
        left_out=job.committer.left_out,
        runs=tuple(each for each in listed(success, "runs") if isinstance(each, dict)),
        summary=summary(
            event,
            steps=job.labels,
            rows_before=rows_before,
            left_out=job.committer.left_out,
            metrics=lines(metrics),
            notes=[*notes_of(job), *([] if required is None else [f"required: {required}"])],
        ),
    )


def report(output: Output, folder: Path, *, missing: bool = False) -> None:
    """Let the annex that makes reports write that of a run; with ``missing``, only if it is not there."""
    reports = annex("report.writing")
    if reports is not None:
        write = reports.write_missing_report if missing else reports.write_report
        write(output.place, folder)
