"""Files of an output that no run needs any more, and their removal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.core.files import safe_files
from headrace.core.files.staged import PARTS
from headrace.core.metric_states import STATES, side_files
from headrace.core.work import FLEET, HOME, NOTES, RATES, REJECTED, SUCCESS
from headrace.errors import ForeignOutput, JournalDamaged, RunLocked
from headrace.output.commit import LAKES
from headrace.output.layout import QUERIES, Output
from headrace.output.names import parts_there
from headrace.output.places.lease import Watch
from headrace.output.places.place import Place, looked_at, place_at
from headrace.output.runs import SavedRun, begun_runs, check_is_output, pointer


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or folder that may go: its path from the output on, its bytes, and what it is."""

    path: str
    bytes: int
    why: str


def leftovers(
    path: str | os.PathLike[str], *, unfinished: bool = False, everything: bool = False
) -> list[Leftover]:
    """List what may go; nothing is touched.

    By default that is what no run needs, not even to be resumed. ``unfinished``: also runs that are not complete,
    with their parts. ``everything``: all that is ours, the complete output included; files of others never.

    Raises ``NothingMatched`` for a place that is no output, ``RunLocked`` while a driver writes it, and
    ``JournalDamaged`` where it is not known what is needed; ``everything`` needs no journal.
    """
    with looked_at(path) as output:
        check_is_output(output.root)
        _check_idle(output, output.writer() or _machine_of(output))
        if unfinished or everything:
            _check_no_table(output)
        return _listed(output, unfinished=unfinished, everything=everything)


def _check_idle(output: Place, writer: str | None) -> None:
    if writer is not None:
        raise RunLocked(f"{output.name} is being written by {writer}. Clean it when that is done.")


def _machine_of(output: Place) -> str | None:
    """Return who writes a part of an output that machines make together; None if there is none at work."""
    if FLEET not in output.folders(HOME):
        return None
    names = sorted(output.folders(f"{HOME}/{FLEET}") - {NOTES, RATES})
    places = [place_at(str(output.at(f"{HOME}/{FLEET}/{name}"))) for name in names]
    watched = [(place, watch) for place in places if (watch := Watch(place.sign)).lives() is not False]
    alive = (place for place, watch in watched if watch.wait())
    return next((place.writer() or f"the machine of {place.name}" for place in alive), None)


def _check_no_table(output: Place) -> None:
    """Refuse to remove runs whose parts may be rows of a table: only the table itself knows which are."""
    with contextlib.suppress(JournalDamaged):
        for run in begun_runs(output.root):
            kind = run.plan.sink.get("kind")
            if kind in LAKES:
                raise ForeignOutput(
                    f"The files in {output.name} may hold rows of the {kind} table that contains this "
                    "folder, so nothing was removed. Use the table's own clean-up, such as VACUUM or the removal of "
                    "orphan files: it removes the files that the table does not use."
                )


def _listed(output: Place, *, unfinished: bool, everything: bool) -> list[Leftover]:
    found = _all(output) if everything else _unneeded(output, unfinished=unfinished)
    return [
        Leftover(path, max(0, output.size_of(path)) + sum(output.listed(path).values()), why)
        for path, why in found
    ]


def remove(
    path: str | os.PathLike[str],
    found: Sequence[Leftover],
    *,
    unfinished: bool = False,
    everything: bool = False,
) -> None:
    """Remove what ``leftovers`` listed, as the output's driver; ``_SUCCESS`` and pointers before what they name.

    Raises ``RunLocked``, and removes nothing, if the output has changed: a run may have been resumed since it was
    listed, and what was a leftover then may be its committed rows now.
    """
    place = place_at(path)
    place.take()
    emptied = False
    try:
        with place.naming():
            _check_idle(place, _machine_of(place))
            _check_same(place, found, _listed(place, unfinished=unfinished, everything=everything))
            output = Output(place)
            runs = [name for name in (output.next(), output.current()) if name is not None]
            if not everything:
                begun = begun_runs(output.root) if unfinished else []
                runs = [run.name for run in begun if not run.standing]
            for name in runs:
                output.forget(name)
            names = [each.path for each in found if each.path != HOME]
            for name in names:
                if name.startswith(f"{HOME}/"):
                    place.remove_below(name)
            place.remove(names)
            emptied = output.current() is None and output.next() is None
    finally:
        place.close(forget=(everything or unfinished) and emptied)
    if everything:
        with contextlib.suppress(OSError):
            place.root.rmdir()


def _check_same(output: Place, found: Sequence[Leftover], now: Sequence[Leftover]) -> None:
    """Refuse if what may go is not what was shown, but for what was removed as the output was taken."""
    shown, may_go = {each.path for each in found}, {each.path for each in now}
    kept = {path for path in shown - may_go if output.size_of(path) >= 0 or output.listed(path)}
    if kept or may_go - shown:
        raise RunLocked(
            f"{output.name} was written to since its leftovers were listed ({min(kept or may_go - shown)} is not as "
            "it was). Nothing that was listed was removed: run `headrace clean` again, and look at what it lists now."
        )


def _unneeded(output: Place, *, unfinished: bool) -> Iterator[tuple[str, str]]:
    runs = begun_runs(output.root)
    named = {run.name for run in runs}
    if unfinished:
        for run in runs:
            if not run.standing:
                parts = "the plan, records and unfinished parts of a run that is not complete"
                report = "the record and report of a run that ended before it had written anything"
                yield f"{HOME}/{run.name}", parts if run.records else report
                yield from (
                    (name, "a part of a run that is not complete") for name in parts_there(output, {run.name})
                )
        runs = [run for run in runs if run.standing]
    folders = output.folders(HOME)
    for entry in sorted({*_within(output, HOME), *folders} - named):
        if entry == FLEET:
            if unfinished:
                yield f"{HOME}/{entry}", "what machines have made together of an output that is not complete"
        elif entry == QUERIES:
            if unfinished or (runs and all(run.finished for run in runs)):
                yield f"{HOME}/{entry}", "results of queries, and what was made for them"
        elif entry in folders:
            yield f"{HOME}/{entry}", "a run that was abandoned, or replaced"
            yield from ((name, "a part of that run") for name in parts_there(output, {entry}))
        elif entry.endswith(safe_files.TEMPORARY):
            yield f"{HOME}/{entry}", "a file that was being written"
    for run in runs:
        yield from _leftovers_of(output, run)


def _leftovers_of(output: Place, run: SavedRun) -> Iterator[tuple[str, str]]:
    """Yield what a run itself does not need of its folder and parts."""
    home = f"{HOME}/{run.name}"
    folders = output.folders(home)
    if run.complete:
        for name, why in (
            ("staging", "files of work that was begun"),
            (safe_files.KEPT, "what models kept while the run went on"),
            (PARTS, "parts that were hidden until all were there, or that no record names"),
        ):
            if name in folders:
                yield f"{home}/{name}", why
    else:
        staged = {file.staged for record in run.records for file in record.files}
        for name in sorted(_within(output, f"{home}/staging") - staged):
            yield f"{home}/staging/{name}", "work that was begun and not finished"
    named = {name for record in run.records for name in side_files(record)}
    for name in sorted(_within(output, f"{home}/{STATES}") - named):
        yield f"{home}/{STATES}/{name}", "what a metric counted in work that was begun and not finished"
    for name in sorted(_within(output, home)):
        if name.endswith(safe_files.TEMPORARY):
            yield f"{home}/{name}", "a file that was being written"
    if not run.hidden and (run.complete or output.renames):  # else a record may be about to name it
        published = {file.name for record in run.records for file in record.files} | run.leaving
        for name in parts_there(output, {run.name}):
            if name not in published:
                yield name, "a part that no record names"


def _all(output: Place) -> Iterator[tuple[str, str]]:
    pointers = {pointer(output.root, "current"), pointer(output.root, "next")}
    if output.size_of(SUCCESS) >= 0:
        yield SUCCESS, "the file that marks the output as complete"
    for name in parts_there(output, {*output.folders(HOME), *filter(None, pointers)}):
        yield name, "rejected rows" if name.startswith(f"{REJECTED}/") else "a part"
    yield HOME, "plans and records of runs"


def _within(output: Place, folder: str) -> set[str]:
    """Return the names of what is in a folder: files, and folders that are not empty."""
    return {name.removeprefix(f"{folder}/").split("/")[0] for name in output.listed(folder)}
