"""Objects of an output in a store that no run needs any more, and their removal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.core.work import REJECTED
from headrace.errors import RunLocked
from headrace.output.clean import Leftover, check_no_table
from headrace.output.folder import HOME, SUCCESS, is_part
from headrace.output.runs import SavedRun, current_run, next_run
from headrace.output.stores.copies import Listing
from headrace.output.stores.folder import StoreFolder
from headrace.output.stores.snapshots import Looked, looked_at


def leftovers(address: str, *, unfinished: bool = False, everything: bool = False) -> list[Leftover]:
    """List what may go, as ``headrace.output.clean.leftovers`` does it for a folder; nothing is touched."""
    with looked_at(address) as output:
        if output.writer is not None:
            raise RunLocked(f"{output.name} is being written by {output.writer}. Clean it when that is done.")
        if unfinished or everything:
            check_no_table(output.root, output.name)
        found = _all(output.there) if everything else _unneeded(output, unfinished=unfinished)
        return [Leftover(name, output.there[name], why) for name, why in sorted(set(found))]


def remove(
    address: str, found: Sequence[Leftover], *, unfinished: bool = False, everything: bool = False
) -> None:
    """Remove what ``leftovers`` listed, on the output's lease; ``_SUCCESS`` and pointers before what they name.

    Raises ``RunLocked`` if objects of other names have become leftovers since: the output was written to.
    """
    now = {each.path for each in leftovers(address, unfinished=unfinished, everything=everything)}
    shown = {each.path for each in found}
    if not now <= shown:
        raise RunLocked(
            f"{address} was written to since its leftovers were listed ({min(now - shown)} is new). Nothing "
            "was removed: run `headrace clean` again, and look at what it lists now."
        )
    output = StoreFolder(address, ())
    try:
        runs = [run for run in (next_run(output.root), current_run(output.root)) if run is not None]
        names = [name for name in (output.next(), output.current()) if name is not None]
        drop = [run.name for run in runs if not run.standing(output.root)]
        for name in names if everything else drop if unfinished else ():
            output.forget(name)
        output.remove_named([name for name in now if name != f"{HOME}/lock"])
    finally:
        output.close(forget=everything or unfinished)


def _all(there: Listing) -> Iterator[tuple[str, str]]:
    runs = _runs(there)
    for name in there:
        if name.startswith(f"{HOME}/"):
            yield name, "plans and journals"
        elif name == SUCCESS:
            yield name, "the mark that the output is complete"
        elif _is_part(name, runs):
            yield name, "rejected rows" if name.startswith(f"{REJECTED}/") else "a part"


def _unneeded(output: Looked, *, unfinished: bool) -> Iterator[tuple[str, str]]:
    there = output.there
    runs = [run for run in (current_run(output.root), next_run(output.root)) if run is not None]
    dropped = {run.name for run in runs if unfinished and not run.standing(output.root)}
    for name in there:
        run = name.split("/")[1] if name.startswith(f"{HOME}/") and name.count("/") > 1 else ""
        if run in dropped or _is_part(name, dropped):
            yield name, "of a run that is not complete"
        elif run == "uploads":
            yield name, "an upload that did not end"
        elif run and run not in {each.name for each in runs}:
            yield name, "a run that was abandoned, or replaced"
    for each in runs:
        if each.name not in dropped and _is_complete(there, each):
            published = {file.name for record in each.records for file in record.files}
            for name in there:
                if _is_part(name, {each.name}) and name not in published:
                    yield name, "a part that no record names"
                elif name.startswith(f"{HOME}/{each.name}/parts/"):
                    yield name, "a part that was hidden until all were there, or that no record names"


def _is_complete(there: Listing, run: SavedRun) -> bool:
    return run.finished and not run.hidden and SUCCESS in there


def _is_part(name: str, runs: set[str]) -> bool:
    return is_part(name.removeprefix(f"{REJECTED}/"), runs)


def _runs(there: Listing) -> set[str]:
    return {name.split("/")[1] for name in there if name.startswith(f"{HOME}/") and name.count("/") > 1}
