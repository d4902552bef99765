"""The report of a run: read what is known of it, and write the page."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from headrace.core.files import safe_files
from headrace.core.process import importing
from headrace.core.work import FLEET, HOME, REJECTED, Ledger
from headrace.errors import HeadraceError, NothingMatched, nearest
from headrace.observers.record import EVENTS
from headrace.observers.record_reader import runs_in
from headrace.output.names import REPORT, run_of
from headrace.output.runs import pointer, success_of

if TYPE_CHECKING:
    from headrace.annex.report.facts import Facts, History, JournalTotals, RejectedSample
    from headrace.observers.run_state import RunState
    from headrace.output.places.place import Place

COMPARISON = "comparison.html"

_PRELOAD_AFTER = 0.02  # seconds: by then the driver waits for its workers
_FILES = 5  # of rejected rows that are looked into
_SAMPLES_PER_KIND = 3
_SAMPLES = 20
_WORDS = 500

_log = logging.getLogger("headrace")


@contextlib.contextmanager
def assets_loaded() -> Iterator[None]:
    """Load what a page needs in a thread, once the driver has had time to give its workers their first tasks."""
    timer = threading.Timer(_PRELOAD_AFTER, _load_assets)
    timer.name = "headrace-report"
    try:
        timer.start()
    except RuntimeError:  # no more threads: it is imported when it is needed
        yield
        return
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _load_assets() -> None:
    with contextlib.suppress(Exception), importing():  # the page raises it again when it is needed
        import headrace.annex.report.page  # noqa: F401
        from headrace.annex.report import template
        from headrace.observers import record_reader

        template.load_assets()
        record_reader.prepare()


def write_missing_report(place: Place, folder: Path) -> None:
    """Write the report of a finished run if it is not there."""
    if not (folder / REPORT).exists():
        write_report(place, folder)


def write_report(place: Place, folder: Path) -> None:
    """Write the report of a run whose lock we hold. An error is logged, and does not affect the run."""
    try:
        from headrace.annex.report import template
        from headrace.annex.report.page import page

        for name in os.listdir(folder):  # those of a driver that was killed while it wrote one
            if name.startswith(f"{REPORT}.") and name.endswith(".tmp"):
                (folder / name).unlink(missing_ok=True)
        found, known = read(place, folder, alive=False)
        template.write_page(folder / REPORT, page(found, known))
    except (OSError, HeadraceError) as error:  # a full disk is no defect
        _log.warning("%s Rows of %s are not affected.", error, place.name)
    except Exception:
        _log.exception("The report of %s could not be written; the output is not affected.", place.name)


def read(place: Place, folder: Path, *, alive: bool, values: bool = False) -> tuple[History, Facts]:
    """Read what is known of the run in ``folder``. ``alive``: a driver is at work."""
    from headrace.annex.report.facts import history
    from headrace.observers.record_reader import lines_of

    known = history(lines_of(safe_files.read(folder / EVENTS)))
    described = known.described
    shown = described is not None and described.options.get("show_data") != "False"  # unknown: hidden
    samples = rejected_samples(place, folder, values=values, words=values or shown)
    return known, facts_in(known, folder, place, alive=alive, samples=samples, values=values)


def facts_in(
    state: RunState,
    folder: Path,
    place: Place,
    *,
    alive: bool,
    samples: Sequence[RejectedSample] = (),
    values: bool = False,
) -> Facts:
    """Return how the run in ``folder`` is, by its record and ``_SUCCESS``. No part is looked for.

    Of a run that is not complete, the journal has the last word.
    """
    from headrace.annex.report.facts import facts

    number = state.started.number if state.started is not None else 1
    success = success_of(place.root, folder.name, number)
    if alive and state.last is not None and state.last.finished is None:
        success = None  # it is about to end
    return facts(
        state,
        output=place.name,
        success=success,
        alive=alive,
        committed=committed_in(folder) if success is None and not alive else None,
        samples=samples,
        values=values,
        runs=runs_in(success_of(place.root, folder.name) or {}),
        number=number,
    )


def folder_of(root: Path) -> Path:
    """Return the folder of the run to report: an overwrite that is not complete, else the current run.

    Raises ``NothingMatched`` where there is none, and ``JournalDamaged`` where nobody can tell.
    """
    for folder in folders_of(root):
        return folder
    if safe_files.is_folder(root / HOME / FLEET):
        raise NothingMatched(
            f"Machines of a fleet work on {root}, or have: `headrace status` lists them, and `headrace watch` shows "
            "them as a page. A report is there once their rows are one output."
        )
    if safe_files.is_folder(root / HOME):
        raise NothingMatched(
            f"No run has begun in {root}: what comes before it is under way, or its driver has ended meanwhile. The "
            "same program goes on from there."
        )
    others = os.listdir(root.parent) if root.parent.is_dir() and not root.exists() else []
    raise NothingMatched(
        f"There is no output of Headrace in {root}: give the folder that a run writes, or has written, "
        f"to.{nearest(root.name, others)}"
    )


def folders_of(root: Path) -> Iterator[Path]:
    """Yield the folders of the runs of an output: of an overwrite that is not complete, and of the current run."""
    for name in ("next", "current"):
        run = pointer(root, name)
        if run is not None and safe_files.is_folder(root / HOME / run):
            yield root / HOME / run


def committed_in(folder: Path) -> JournalTotals | None:
    """Return the totals of a run's journal; None if it cannot be read."""
    from headrace.annex.report.facts import JournalTotals
    from headrace.output import journal

    ledger, shards, files, size = Ledger(), 0, 0, 0
    try:
        for record in journal.read(folder / "journal").lasting():
            parts = [file for file in record.files if file.is_part]
            ledger = ledger + record.ledger if shards else record.ledger
            shards += 1
            files += len(parts)
            size += sum(file.size for file in parts)
    except (HeadraceError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return JournalTotals(ledger, shards, files, size)


def rejected_samples(place: Place, folder: Path, *, values: bool, words: bool) -> list[RejectedSample]:
    """Return some of the rejected rows, of each kind a few.

    ``values``, ``words``: the values of rows, and what errors say, which may be about values, may be shown.
    """
    names: list[str] = []
    with contextlib.suppress(OSError):  # it may not be listed, or is gone
        names = sorted(name for name in place.listed(REJECTED) if name.endswith(".arrow"))
    ours = [name for name in names if run_of(name.removeprefix(f"{REJECTED}/")) == folder.name]
    if not ours:
        return []
    from headrace.annex.report.facts import RejectedSample
    from headrace.core.files.artifacts import shortened
    from headrace.core.human import row_text
    from headrace.core.rejected import first_rows, reason

    found: list[RejectedSample] = []
    seen: Counter[tuple[str, str]] = Counter()
    for name in ours[:_FILES]:
        with place.opened(name) as path:
            rows = list(first_rows(path))
        for why, row in rows:
            kind = str(why["_step"]), str(why["_error_type"])
            seen[kind] += 1
            if seen[kind] > _SAMPLES_PER_KIND:
                continue
            where, raised = reason(why)
            error = raised if words else str(why["_error_type"])
            shown = row_text(row.to_pylist()[0]) if values else ""
            found.append(RejectedSample(where, kind[0], shortened(error, _WORDS), shortened(shown, _WORDS)))
            if len(found) >= _SAMPLES:
                return found
    return found
