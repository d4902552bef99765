"""Files of an output that no run needs any more, and their removal."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.core.files import hive, safe_files
from headrace.core.metric_states import STATES, side_files
from headrace.core.work import REJECTED
from headrace.errors import ForeignOutput, JournalDamaged, RunLocked
from headrace.output.folder import HOME, SUCCESS, OutputFolder, is_part
from headrace.output.lock import holder
from headrace.output.runs import SavedRun, check_is_output, current_run, next_run, pointer
from headrace.output.small_files import remove_tree

TABLES = ("Delta table", "Iceberg table", "Lance table")  # kinds of sinks


@dataclass(frozen=True, slots=True)
class Leftover:
    """A file or folder that may go: its path from the output on, its bytes, and what it is."""

    path: str
    bytes: int
    why: str


def leftovers(root: Path, *, unfinished: bool = False, everything: bool = False) -> list[Leftover]:
    """List what may go; nothing is touched.

    By default that is what no run needs, not even to be resumed. ``unfinished``: also runs that are not complete,
    with their parts. ``everything``: all that is ours, the complete output included; files of others never.

    Raises ``NothingMatched`` for a folder that is no output, ``RunLocked`` while a driver writes it, and
    ``JournalDamaged`` where it is not known what is needed; ``everything`` needs no journal.
    """
    check_is_output(root)
    writer = holder(root)
    if writer is not None:
        raise RunLocked(f"{root} is being written by {writer}. Clean it when that is done.")
    if unfinished or everything:
        check_no_table(root, str(root))
    return _listed(root, unfinished=unfinished, everything=everything)


def check_no_table(root: Path, name: str) -> None:
    """Refuse to remove runs whose parts may be rows of a table: only the table itself knows which are."""
    with contextlib.suppress(JournalDamaged):
        for run in filter(None, (current_run(root), next_run(root))):
            about = msgspec.json.decode(run.plan.shape).get("sink") or {}
            if about.get("kind") in TABLES:
                raise ForeignOutput(
                    f"The files in {name} may hold rows of the {about['kind']} table that contains this folder, so "
                    "nothing was removed. Use the table's own clean-up, such as VACUUM or the removal of orphan "
                    "files: it removes the files that the table does not use."
                )


def _listed(root: Path, *, unfinished: bool, everything: bool) -> list[Leftover]:
    found = _all(root) if everything else _unneeded(root, unfinished=unfinished)
    return [Leftover(path, _size(root / path), why) for path, why in found]


def remove(
    root: Path, found: Sequence[Leftover], *, unfinished: bool = False, everything: bool = False
) -> None:
    """Remove what ``leftovers`` listed, under the output's lock; ``_SUCCESS`` and pointers before what they name.

    Raises ``RunLocked``, and removes nothing, if the output has changed: a run may have been resumed since it was
    listed, and what was a leftover then may be its committed rows now.
    """
    output = OutputFolder(root)
    changed = True
    try:
        _check_same(root, found, _listed(root, unfinished=unfinished, everything=everything))
        changed = False
        drop = [name for name in (output.next(), output.current()) if name is not None]
        if unfinished and not everything:
            drop = [
                run.name
                for run in (next_run(root), current_run(root))
                if run is not None and not run.standing(root)
            ]
        if unfinished or everything:
            for name in drop:
                output.forget(name)
        for each in found:
            path = root / each.path
            if safe_files.is_folder(path):
                remove_tree(path)
            elif each.path != HOME:
                path.unlink(missing_ok=True)
        _remove_empty(root / REJECTED)
        hive.remove_empty(root, [each.path for each in found])
    finally:
        output.close(forget=(everything or unfinished) and not changed)
    if everything:
        _remove_empty(root)


def _check_same(root: Path, found: Sequence[Leftover], now: Sequence[Leftover]) -> None:
    """Refuse if what may go is not what was shown; opening the output has removed some of it already."""
    shown, may_go = {each.path for each in found}, {each.path for each in now}
    kept = {path for path in shown - may_go if os.path.lexists(root / path)}
    if kept or may_go - shown:
        raise RunLocked(
            f"{root} was written to since its leftovers were listed ({min(kept or may_go - shown)} is not as it "
            "was). Nothing that was listed was removed: run `headrace clean` again, and look at what it lists now."
        )


def _unneeded(root: Path, *, unfinished: bool) -> Iterator[tuple[str, str]]:
    runs = [run for run in (current_run(root), next_run(root)) if run is not None]
    if unfinished:
        for run in runs:
            if not run.standing(root):
                parts = "the plan, journal and staged parts of a run that is not complete"
                report = "the record and report of a run that ended before it committed anything"
                yield f"{HOME}/{run.name}", parts if run.records else report
                yield from (
                    (name, "a part of a run that is not complete") for name in _parts(root, {run.name})
                )
        runs = [run for run in runs if run.standing(root)]
    named = {pointer(root, "current"), pointer(root, "next")}
    for entry in sorted((root / HOME).iterdir()):
        path = f"{HOME}/{entry.name}"
        if safe_files.is_folder(entry) and entry.name not in named:
            yield path, "a run that was abandoned, or replaced"
            yield from ((name, "a part of that run") for name in _parts(root, {entry.name}))
        elif entry.suffix == safe_files.TEMPORARY:
            yield path, "a file that was being written"
    for run in runs:
        yield from _leftovers_of(root, run)


def _leftovers_of(root: Path, run: SavedRun) -> Iterator[tuple[str, str]]:
    """Yield what a run itself does not need of its folder and parts."""
    home = f"{HOME}/{run.name}"
    staging, states = run.folder / "staging", run.folder / STATES
    staged = {file.staged for record in run.records for file in record.files}
    if safe_files.is_folder(staging):
        if _is_complete(root, run):
            yield f"{home}/staging", "files of work that was begun"
        else:
            for name in sorted(set(os.listdir(staging)) - staged):
                yield f"{home}/staging/{name}", "work that was begun and not finished"
    if _is_complete(root, run) and safe_files.is_folder(run.folder / safe_files.KEPT):
        yield f"{home}/{safe_files.KEPT}", "what models kept while the run went on"
    if safe_files.is_folder(states):
        named = {name for record in run.records for name in side_files(record)}
        for name in sorted(set(os.listdir(states)) - named):
            yield f"{home}/{STATES}/{name}", "what a metric counted in work that was begun and not finished"
    for path in sorted(run.folder.glob(f"*{safe_files.TEMPORARY}")):
        yield f"{home}/{path.name}", "a file that was being written"
    if not run.hidden:
        published = {file.name for record in run.records for file in record.files} | run.leaving
        for name in _parts(root, {run.name}):
            if name not in published:
                yield name, "a part that no record names"


def _all(root: Path) -> Iterator[tuple[str, str]]:
    known = {entry.name for entry in (root / HOME).iterdir() if safe_files.is_folder(entry)}
    known |= {name for name in (pointer(root, "current"), pointer(root, "next")) if name is not None}
    if (root / SUCCESS).exists():
        yield SUCCESS, "the file that marks the output as complete"
    for name in _parts(root, known):
        yield name, "rejected rows" if name.startswith(f"{REJECTED}/") else "a part"
    yield HOME, "plans and journals"


def _is_complete(root: Path, run: SavedRun) -> bool:
    return run.finished and not run.hidden and (root / SUCCESS).exists()


def _parts(root: Path, runs: set[str]) -> list[str]:
    """Return the parts of some runs that are in the folder, and their rejected rows."""
    found = [name for name in hive.entries(root) if is_part(name, runs)]
    rejected = root / REJECTED
    if safe_files.is_folder(rejected):
        found += [f"{REJECTED}/{name}" for name in os.listdir(rejected) if is_part(name, runs)]
    return sorted(found)


def _size(path: Path) -> int:
    if not safe_files.is_folder(path):
        return max(0, safe_files.size(path))
    return sum((Path(folder) / name).lstat().st_size for folder, _, names in os.walk(path) for name in names)


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
