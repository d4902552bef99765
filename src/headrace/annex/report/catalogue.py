"""``hr.runs``: finds all outputs below a place, or all runs of one output, and says how each is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.annex.report.below import outputs_below
from headrace.annex.report.facts import Facts, facts
from headrace.annex.report.follow import Follower, told_by_record
from headrace.annex.report.run_rows import RunRow, Runs
from headrace.annex.report.writing import folder_of, folders_of
from headrace.core.arguments import known_arguments
from headrace.core.files import safe_files
from headrace.core.stores.options import Options, checked
from headrace.errors import HeadraceError
from headrace.observers.output_runs import OutputRun, runs_in
from headrace.observers.record import EVENTS
from headrace.observers.record_reader import lines_of, replay
from headrace.observers.run_state import RunState
from headrace.output.runs import success_of

if TYPE_CHECKING:
    from headrace.output.places.place import Place

_AT_ONCE = 16  # outputs of a store that are asked for


@known_arguments
def runs(place: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Runs:
    """Return all outputs below a folder or an address, each with its last run; of one output, all its runs.

    Only small files are read: ``_SUCCESS`` and the record of a run; of one that is not complete, its journal. A
    store is listed as far as its outputs, and what lies in them is passed over. An output that is damaged has a row
    that says so; ``hr.verify`` looks at the parts. Folders whose names begin with a dot, and links, are left out.

    Parameters
    ----------
    place
        A folder or an address with outputs at any depth, or one output.
    storage_options
        As in ``read_parquet``.

    Raises
    ------
    NothingMatched
        There is no such folder.
    ArgumentError, StoreFailed
        The options make no sense, or the store does not answer.

    Examples
    --------
    >>> import tempfile, headrace as hr
    >>> folder = tempfile.mkdtemp()
    >>> data = hr.range(3).with_options(engine="inline", progress=False)
    >>> for day in ("monday", "tuesday"):
    ...     result = data.accumulate(mean=hr.Mean("id")).write_parquet(f"{folder}/{day}")
    >>> print(hr.runs(folder))
    /...: 2 outputs: 2 complete
    <BLANKLINE>
    Output   Status    Rows  Rejected  mean  ...Age
    -------  --------  ----  --------  ----  ...---
    tuesday  complete     3         0     1  ...
    monday   complete     3         0     1  ...
    >>> hr.runs(folder)[0].metrics
    {'mean': 1.0}
    """
    options = checked(storage_options)
    name, outputs = outputs_below(place, options)
    history = [output.name for output in outputs] == [name]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-runs") as threads:
        found = threads.map(lambda output: _rows_of(output, options, history=history), outputs)
        rows = [row for each in found for row in each]
    rows.sort(key=lambda row: (row.began, row.number, row.output), reverse=True)
    return Runs(name, history, tuple(rows), time.time())


def _rows_of(output: Place, options: Options, *, history: bool) -> list[RunRow]:
    """Return the row of an output's last run, with ``history`` those of all; of a damaged one, what is wrong."""
    rows: list[RunRow] = []
    try:
        with contextlib.closing(output), output.naming():
            output.look()
            last = folder_of(output.root)
            for folder in folders_of(output.root) if history else [last]:
                found = told_by_record(_read(folder / EVENTS), folder, output)
                ended = found.facts.status in ("complete", "under way")
                if output.copied and folder == last and not ended:
                    found = Follower(output.name, options).poll()  # with its journal
                rows.append(_made(found.state, found.facts, found.gone))
                if history:
                    rows += _before(found.facts.number, folder, output)
    except (HeadraceError, OSError) as error:
        rows.append(RunRow(output.name, "damaged", error=str(error)))
    return rows


def _before(last: int, folder: Path, output: Place) -> Iterator[RunRow]:
    """Yield the runs that have the same folder and are complete, by the records that they have left."""
    named = runs_in(success_of(output.root, folder.name) or {})
    for number in range(1, last):
        state = _read(folder / f"events-{number}.jsonl")
        known = facts(state, output=output.name, success={}, runs=named[:number], number=number)
        yield _made(state, known, counted=bool(state.drivers))


def _read(record: Path) -> RunState:
    state = RunState()
    replay(state, lines_of(safe_files.read(record)))
    return state


def _made(state: RunState, known: Facts, gone: str = "", *, counted: bool = True) -> RunRow:
    """Return a row of what ``headrace status`` and the report say of a run; ``counted``: its rows are known."""
    entry = known.runs[known.number - 1] if known.number <= len(known.runs) else OutputRun()
    last, described = state.last, state.described
    paid = state.models.paid(ended=known.status != "under way")
    return RunRow(
        known.output,
        "damaged" if gone else known.status,
        entry.name or known.run,
        known.number,
        known.ledger.written if counted else None,
        known.ledger.rejected if counted else None,
        known.bytes or entry.bytes,
        known.metrics,
        paid.total.cost if paid.priced else None,
        known.required or state.required,
        entry.code,
        described.models if described is not None else (),
        described.version if described is not None else "",
        described.commit if described is not None else "",
        state.drivers[0].began if state.drivers else _seconds(entry.began),
        last.began + last.seconds if last is not None else _seconds(entry.ended),
        state.seconds or entry.seconds,
        gone or known.error,
    )


def _seconds(text: str) -> float:
    """Return a moment that ``_SUCCESS`` has as text in seconds since 1970; 0 if it is none.

    >>> _seconds("2026-09-21T14:13:20Z"), _seconds("")
    (1790000000.0, 0.0)
    """
    with contextlib.suppress(ValueError):
        return datetime.fromisoformat(text).timestamp()
    return 0.0
