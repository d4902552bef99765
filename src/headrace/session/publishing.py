"""Asking whether an output is as it was required, and what becomes of one that is not: published, or discarded.

A run with requirements is revealed at its end, like one that takes the place of another. Before that stands one
question. If the answer is no, the journal notes with what the run would be finished, and it stays out of sight.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.arguments import known_arguments
from headrace.core.asked import Figure, RequirementsAsked
from headrace.core.door import annex
from headrace.core.events import InputMade
from headrace.core.files.staged import PARTS, is_uploaded, uploaded_name
from headrace.core.human import plural
from headrace.core.stores.addresses import checked
from headrace.core.terminal import encodable
from headrace.core.work import HOME
from headrace.errors import (
    ArgumentError,
    HeadraceError,
    MissingLibrary,
    NothingMatched,
    PlanError,
    RequirementNotMet,
)
from headrace.observers.record import EVENTS, Record
from headrace.observers.record_reader import listed
from headrace.output.commit import with_files_of
from headrace.output.layout import open_output
from headrace.output.names import REPORT
from headrace.output.recover import recover
from headrace.output.runs import begun_runs, check_is_output, load, shown_run, success_of
from headrace.output.verification import Reached, table_of
from headrace.plan.logical import column_of, compared
from headrace.plan.parameters import given_folder
from headrace.result import Metrics, Result
from headrace.session import job_events
from headrace.session.event_bus import EventBus

if TYPE_CHECKING:
    from headrace.core.stores.addresses import Options
    from headrace.output.commit import ShardCommitter
    from headrace.output.job import Job
    from headrace.output.journal_state import JournalState
    from headrace.output.layout import Output
    from headrace.output.runs import SavedRun
    from headrace.plan.logical import Against, Plan


def ask(job: Job, metrics: Metrics, events: EventBus, seconds: float, summary: dict[str, Any]) -> None:
    """Raise ``RequirementNotMet``, and keep the run out of sight, if a figure of it is not as it was required.

    All shards are committed. What was found is added to ``summary``, and sent as an event. A run that was asked
    before keeps the time and the cost that it had then.
    """
    withheld, state = job.committer.state.withheld, events.state
    cost = state.models.paid().total.cost if state.models.priced else None
    if withheld is not None:
        seconds, cost = withheld.seconds, withheld.summary.get("cost")
    if cost is not None:
        summary["cost"] = cost
    figures, met = _figures(job, metrics, seconds, cost)
    events.on_event(RequirementsAsked("met" if met else "not met", figures))
    summary["requirements"] = msgspec.to_builtins(figures)
    if not met:
        job.committer.withhold(seconds, summary)
        out = shlex.quote(str(job.output))
        raise _not_met(
            job,
            figures,
            "is not as required, so it was not published",
            f"All its rows are computed and kept, and no reader sees them. `headrace publish {out} --because …` "
            f"publishes them all the same, `headrace discard {out}` drops them (hr.publish and hr.discard in "
            "Python). The same run with other requirements asks again, and computes nothing.",
        )


def ask_finished(job: Job, metrics: Metrics) -> None:
    """Raise ``RequirementNotMet`` for an output that was published before, and is not as it is required now.

    A figure with which somebody has published it all the same is accepted, as long as the same is asked of it.
    """
    success = success_of(job.output.root, job.committer.plan.run) or {}
    figures, met = _figures(job, metrics, job.committer.state.seconds, success.get("cost"))
    if met:
        return
    before = RequirementsAsked.of(success)
    if before is not None and before.verdict == "published":
        accepted = {(each.name, each.asked) for each in before.figures if not each.met}
        if accepted.issuperset((each.name, each.asked) for each in figures if not each.met):
            return
    raise _not_met(
        job,
        figures,
        "is not as required now, and was published before",
        "Nothing was changed: readers see it. mode='overwrite' makes all rows again, and publishes them if they meet "
        "the requirements.",
    )


def _figures(
    job: Job, metrics: Metrics, seconds: float, cost: float | None
) -> tuple[tuple[Figure, ...], bool]:
    """Return the figures of all rows of an output, and whether all are as required.

    Rows that failed in what was made first are rejected rows.
    """
    ledger, asked = job.committer.state.ledger, job.plan.requirements
    success = success_of(job.output.root, job.committer.plan.run) or {}
    made = job.plan.source.preparations() or msgspec.convert(listed(success, "queries"), list[InputMade])
    failed = sum(rows for each in made for rows in each.rejected.values())
    ledger = msgspec.structs.replace(ledger, read=ledger.read + failed, rejected=ledger.rejected + failed)
    others = {each.against: _compared_with(job, each.against) for each in asked if each.against is not None}
    found = compared(
        asked, metrics, metrics.notes, ledger, seconds=round(seconds, 3), cost=cost, comparisons=others
    )
    return found, all(figure.met for figure in found)


def check_others(plan: Plan) -> None:
    """Refuse a plan whose output is to be compared with what is not there, or cannot be compared."""
    for each in plan.requirements:
        if each.against is not None and plan.sink is not None:
            _comparing().check_against(each.against, plan.sink.describe(), column_of(each.name))


def _comparing() -> ModuleType:
    found = annex("compare.comparing")
    if found is None:
        raise MissingLibrary("require(against=…): this installation of Headrace cannot compare outputs.")
    return found


def _compared_with(job: Job, against: Against) -> tuple[Mapping[str, Any], str]:
    """Return how the output differs from another one, and a note; nothing, and why, where they do not compare."""
    run = load(job.output.root, job.committer.plan.run)
    try:
        found = _comparing().compare_against(against, job.output.place, run)
    except HeadraceError as error:
        words = str(error)  # without values of rows: what is said here is kept
        return {}, f"as {words.replace(error.row, '') if error.row else words}"
    return found.data(), f"compared with {against.path}"


def _not_met(job: Job, figures: tuple[Figure, ...], what: str, then: str) -> RequirementNotMet:
    unmet = "; ".join(str(each) for each in figures if not each.met)
    met = "; ".join(str(each) for each in figures if each.met)
    error = RequirementNotMet(
        f"The output {job.output} {what}: {unmet}. {f'Met: {met}. ' if met else ''}{then}"
    )
    error.figures, error.output = figures, str(job.output)
    return error


# ------------------------------------------------------------ somebody decides


_AGAIN = "it makes the rows that are missing, and asks for what is required."


@known_arguments
def publish(
    path: str | os.PathLike[str],
    *,
    because: str,
    storage_options: Mapping[str, Any] | None = None,
    catalog: str | Mapping[str, Any] | None = None,
    uri: str | None = None,
) -> Result:
    """Publish an output that was kept back as a requirement was not met; return its result.

    Its parts appear, or its rows go into the table or database, as they would have at the end of the run. Killed at
    any moment and called again, it goes on. What is published already stays as it is.

    Parameters
    ----------
    path
        The folder, or the address, that was written to; of a table, its ``output=``.
    because
        Why, in your words. It stands in ``_SUCCESS``, in the record of the run and in its report.
    storage_options, catalog, uri
        As in ``verify``: what is needed to reach the place, an Iceberg table, or PostgreSQL.

    Raises
    ------
    NothingMatched
        No run has written there. ``PlanError``: there is nothing complete to be published. ``ArgumentError``: no
        reason, or the table cannot be reached without another argument. ``RunLocked``, ``SinkError``: as in a run.

    Examples
    --------
    >>> import tempfile, headrace as hr
    >>> out = f"{tempfile.mkdtemp()}/out"
    >>> data = hr.range(3).require(rows=hr.at_least(10)).with_options(engine="inline", progress=False)
    >>> try:
    ...     data.write_parquet(out)
    ... except hr.errors.RequirementNotMet as error:
    ...     print(error.figures[0])
    rows is 3 (asked: at least 10)
    >>> print(hr.publish(out, because="the shop was closed that day"))
    3 rows in ...out, published although rows is 3 (asked: at least 10), because: the shop was closed that day
    """
    if not isinstance(because, str) or not because.strip():
        raise ArgumentError(f"publish: because={because!r}: say in a few words why.")
    with _opened(path, storage_options) as (output, runs):
        for run in runs:
            if run.waits or (run.state.swapping and not run.finished):
                with _recovered(output, run, checked(storage_options), Reached(catalog, uri)) as committer:
                    return _published(output, committer, encodable(because.strip()))
        shown = shown_run(output.root)
        if shown is not None:
            return _result(output, shown.name, shown.state, success_of(output.root, shown.name) or {})
        raise PlanError(f"publish: the run in {output} is not complete. Run the same command again: {_AGAIN}")


@known_arguments
def discard(
    path: str | os.PathLike[str],
    *,
    because: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Drop the rows of an output that was kept back as a requirement was not met; what readers see stays.

    The record and the report in ``path`` stay until another run begins, with ``because``, your reason. The same
    command makes the rows again. Killed at any moment and called again, it goes on. ``storage_options`` are as in
    ``verify``.

    Raises ``NothingMatched`` where no run has written, and ``PlanError`` where nothing waits to be published.

    >>> import tempfile, headrace as hr
    >>> out = f"{tempfile.mkdtemp()}/out"
    >>> data = hr.range(3).require(rows=hr.at_least(10)).with_options(engine="inline", progress=False)
    >>> try:
    ...     data.write_parquet(out)
    ... except hr.errors.RequirementNotMet:
    ...     hr.discard(out, because="half of the input was missing")
    """
    if not isinstance(because, str):
        raise ArgumentError(f"discard: because={because!r}: it is a text.")
    with _opened(path, storage_options) as (output, runs):
        for run in runs:
            name = run.state.runs[-1].name(run.name)
            dropped = not any(with_files_of(name, record).files for record in run.records)
            if run.waits or (dropped and not run.finished):
                with _recovered(output, run, checked(storage_options)) as committer:
                    _drop(output, committer)
                    _note(output, run.name, RequirementsAsked("discarded", because=because))
                return
        raise PlanError(
            f"discard: no run in {output} waits to be published, so nothing was dropped. `headrace clean` removes a "
            "run that is not complete; mode='overwrite' replaces a complete output."
        )


@contextlib.contextmanager
def _opened(
    path: str | os.PathLike[str], options: Mapping[str, Any] | None
) -> Iterator[tuple[Output, list[SavedRun]]]:
    """Hold an output; yield it with its runs. Raises ``NothingMatched`` if none has begun."""
    from headrace.output.places.place import looked_at

    place, known = given_folder(path), checked(options)
    with looked_at(place, known) as looked:
        check_is_output(looked.root)
    output = open_output(place, known)
    try:
        with output.place.naming():
            runs = begun_runs(output.root)
            if not runs:
                raise NothingMatched(f"No run has begun in {output}.")
            yield output, runs
    finally:
        output.close()


@contextlib.contextmanager
def _recovered(
    output: Output, run: SavedRun, options: Options, reached: Reached | None = None
) -> Iterator[ShardCommitter]:
    """Open a run for going on; ``reached``: with the table that its plan describes, without what is secret."""
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet

    place, about = str(output.place.at()), run.plan.sink
    found = None if reached is None else table_of(about, place, options, reached)
    if isinstance(found, str):
        raise ArgumentError(f"publish: {found}.")
    # Parts of any format are made already.
    sink = found.sink() if found is not None else FileSink(place, Parquet(), storage_options=options)
    opened = recover(output, run.name, run.plan, sink, durability="power", hidden=run.hidden)
    with contextlib.closing(opened) as committer:
        yield committer


def _published(output: Output, committer: ShardCommitter, reason: str) -> Result:
    state, run = committer.state, committer.plan.run
    ends = state.swapping or state.withheld
    if ends is None:
        raise PlanError(
            f"publish: files of the run in {output} are gone. Run the same command again: {_AGAIN}"
        )
    summary = ends.summary
    if state.swapping is None:  # else it has been decided
        summary = {**summary, "published": {"because": reason, "at": round(time.time(), 3)}}
    committer.finish(ends.seconds, summary)
    decided = RequirementsAsked.of(summary)
    if decided is not None:
        _note(output, run, decided)
    return _result(output, run, state, summary)


def _result(output: Output, run: str, state: JournalState, success: Mapping[str, Any]) -> Result:
    """Return what a run that is published has come to; ``success`` is what its ``_SUCCESS`` says, or is to say."""
    recorded, ledger = success_of(output.root, run) or {}, state.ledger
    required = RequirementsAsked.of(success)
    return Result(
        rows=ledger.written,
        rejected=ledger.rejected,
        metrics=Metrics(success.get("metrics") or {}, notes=success.get("metrics_notes") or {}),
        ledger=ledger,
        report=output.place.at(f"{HOME}/{run}/{REPORT}"),
        path=output.place.at(),
        run=run,
        files=state.files,
        bytes=state.bytes,
        seconds=sum(each.get("seconds", 0.0) for each in recorded.get("runs", ())),
        resumed=True,
        runs=tuple(recorded.get("runs", ())),
        summary=f"{plural(ledger.written, 'row')} in {output}, {required or 'published before'}",
    )


def _drop(output: Output, committer: ShardCommitter) -> None:
    """Take back what the last run has committed, and remove its files."""
    records, run = list(committer.of_last_run()), committer.plan.run
    committer.revoke_unread(records)
    uploaded = [file for record in records for file in record.files if is_uploaded(file)]
    output.place.remove([uploaded_name(run, file) for file in uploaded])
    output.place.remove_below(f"{HOME}/{run}/{PARTS}")


def _note(output: Output, run: str, event: RequirementsAsked) -> None:
    """Write what was decided into the run's record, and the report anew."""
    folder = output.folder(run)
    with contextlib.closing(EventBus([Record(folder / EVENTS)])) as events:
        events.on_event(event)
    job_events.report(output, folder)
