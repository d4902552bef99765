"""``hr.runs``: finds all outputs below a place, or all runs of one output, and says how each is."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.annex.report.facts import Facts, facts
from headrace.annex.report.follow import Follower, told_by_record
from headrace.annex.report.run_rows import RunRow, Runs
from headrace.annex.report.writing import folder_of, folders_of
from headrace.core.arguments import known_arguments
from headrace.core.files import safe_files
from headrace.core.files.storage import output_at
from headrace.core.stores.addresses import Options, checked
from headrace.core.terminal import warn
from headrace.core.work import FLEET, HOME, SUCCESS
from headrace.errors import HeadraceError, NothingMatched, StoreFailed, UnreadableFile
from headrace.observers.record import EVENTS
from headrace.observers.record_reader import OutputRun, lines_of, replay, runs_in
from headrace.observers.run_state import RunState
from headrace.output.places.folder import Folder
from headrace.output.places.lease import Watch
from headrace.output.places.place import Place
from headrace.output.runs import check_is_folder, success_of
from headrace.plan.parameters import given_folder

# ----------------------------------------------------------------
# The outputs below a folder or an address: on a disk its folders are walked, in a store one listing is read.

_LAST = "\U0010ffff"  # behind all names


def outputs_below(path: str | os.PathLike[str], options: Options) -> tuple[str, list[Place]]:
    """Return the name of a folder or an address, and the outputs there; none is opened yet.

    What lies in an output is passed over, and so are links and folders whose names begin with a dot. Raises
    ``NothingMatched`` if there is no such folder.
    """
    storage = output_at(path, options)
    below: Callable[[str, Options], tuple[str, list[Place]]] = storage.pick(_folders, _stores)
    return below(storage.path, storage.options)


def _folders(path: str, options: Options) -> tuple[str, list[Place]]:
    root = Path(path)
    check_is_folder(root)
    return path, list(_folders_below(root))


def _folders_below(folder: Path) -> Iterator[Place]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError as error:
        warn(f"{folder} cannot be listed: {error.strerror}. Outputs in it are left out.")
        return
    if HOME in names:
        yield Folder(folder)
        return
    for name in names:
        if not name.startswith("."):
            yield from _folders_below(folder / name)


def _stores(address: str, options: Options) -> tuple[str, list[Place]]:
    """See what is there by a listing that passes over parts. Raises ``NothingMatched`` if there is nothing."""
    from headrace.core.stores.addresses import parse_output
    from headrace.core.stores.writing import PAGE, StoreWriter  # only where outputs lie in stores
    from headrace.output.places.store import Store

    objects = StoreWriter(parse_output(address), options)
    found: dict[str, dict[str, int]] = {}
    marks: dict[str, int] = {}
    page = objects.names_after("")
    if not page:
        raise NothingMatched(f"There is nothing in {objects.address}.")
    while page:
        for name, size in page:
            folder, home, rest = f"/{name}".partition(f"/{HOME}/")
            if home:
                found.setdefault(folder[1:], {})[f"{HOME}/{rest}"] = size
            elif name.rpartition("/")[2] == SUCCESS:
                marks[name.rpartition("/")[0]] = size
        page = objects.names_after(_behind(page[-1][0], found)) if len(page) == PAGE else []
    outputs: list[Place] = []
    for root, names in found.items():
        above = ["", *("/".join(root.split("/")[:i]) for i in range(1, root.count("/") + 1))]
        if not root or not any(each in found for each in above):
            there = names | ({SUCCESS: marks[root]} if root in marks else {})
            outputs.append(Store(objects.url(root).rstrip("/"), options, listed=there))
    return str(objects.address), outputs


def _behind(last: str, outputs: Collection[str]) -> str:
    """Return where a listing goes on that ``last`` has ended: behind the folder of a run, such as its journal, or
    behind the output, if that is where it is.

    >>> _behind("a/_headrace/k3f9a2xq/journal/0000000007", {"a"}), _behind("a/part-1", {"a"}), _behind("b/x", {"a"})
    ('a/_headrace/k3f9a2xq/journal/\U0010ffff', 'a/\U0010ffff', 'b/x')
    """
    root = next((each for each in outputs if last.startswith(f"{each}/" if each else "")), None)
    if root is None:
        return last
    inside = last.removeprefix(f"{root}/").split("/")
    if inside[0] != HOME:
        return f"{root}/{_LAST}".lstrip("/")
    return f"{last[: -len('/'.join(inside[3:]))]}{_LAST}" if len(inside) > 3 else last


_AT_ONCE = 16  # outputs of a store that are asked for


@known_arguments
def runs(place: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> Runs:
    """Return all outputs below a folder or an address, each with its last run; of one output, all its runs.

    Only small files are read: ``_SUCCESS`` and the record of a run; of one that is not complete, its journal. A
    store is listed as far as its outputs, and what lies in them is passed over. An output that is damaged, or that
    you may not read, has a row that says so; ``hr.verify`` looks at the parts. Folders whose names begin with a dot,
    and links, are left out.

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
    name, outputs = outputs_below(given_folder(place), options)
    history = [output.name for output in outputs] == [name]
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-runs") as threads:
        found = threads.map(lambda output: _rows_of(output, options, history=history), outputs)
        rows = [row for each in found for row in each]
    rows.sort(key=lambda row: (row.began, row.number, row.output), reverse=True)
    return Runs(name, history, tuple(rows), time.time())


def _rows_of(output: Place, options: Options, *, history: bool) -> list[RunRow]:
    """Return the row of an output's last run, with ``history`` those of all; of one that cannot be read, why."""
    rows: list[RunRow] = []
    try:
        with contextlib.closing(output), output.naming():
            output.look()
            watch = Watch(output.sign)
            alive = watch.wait()
            try:
                last = folder_of(output.root)
            except NothingMatched as error:
                alive = alive or (FLEET in output.folders(HOME) and _by_machines(output))
                return [RunRow(output.name, "under way" if alive else "stopped", error=str(error))]
            for folder in folders_of(output.root) if history else [last]:
                found = told_by_record(_read(folder / EVENTS), folder, output, alive=alive)
                ended = found.facts.status in ("complete", "under way")
                if output.copied and folder == last and not ended:
                    found = Follower(output.name, options, watch=watch).poll()  # with its journal
                rows.append(_made(found.state, found.facts, found.gone))
                if history:
                    rows += _before(found.facts.number, folder, output)
    except (HeadraceError, OSError) as error:
        denied = isinstance(error, UnreadableFile | StoreFailed | PermissionError)
        rows.append(RunRow(output.name, "unreadable" if denied else "damaged", error=str(error)))
    return rows


def _by_machines(output: Place) -> bool:
    """Say whether machines of a fleet work on an output in a folder."""
    names = output.folders(f"{HOME}/{FLEET}")
    return any(Folder(output.root / HOME / FLEET / name).writer() for name in names)


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
