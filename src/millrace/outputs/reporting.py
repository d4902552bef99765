"""The report of a run: read what is known of it, and write the page."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.core import regular
from millrace.core.work import REJECTED, Ledger
from millrace.errors import MillraceError, NothingMatched
from millrace.version import __version__
from millrace.watchers import EVENTS

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.observers.report.facts import Committed, Facts, Sample
    from millrace.observers.report.history import History

REPORT = "report.html"

_MOMENT = 0.02  # seconds, in which a driver starts what it then waits for
_FILES = 5  # of rejected rows that are looked into
_LOOKED_AT = 1_000  # rows of each
_OF_A_KIND = 3
_SAMPLES = 20
_WORDS = 500

_log = logging.getLogger("millrace")


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """Import and read what a page takes beside a driver that has had time to tell its workers what to do."""
    timer = threading.Timer(_MOMENT, _prepare)
    timer.name = "millrace-report"
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


def _prepare() -> None:
    with contextlib.suppress(Exception):  # it will be told of when it is missed
        from millrace.observers.report import page

        page.prepare()


def keep(root: Path, folder: Path) -> None:
    """Write the report of a finished run if it is not there."""
    if not (folder / REPORT).exists():
        leave(root, folder, values=False)


def leave(root: Path, folder: Path, *, values: bool) -> None:
    """Write the report of a run whose lock we hold. What goes wrong is logged, and never hurts the run."""
    try:
        for left in folder.glob(f"{REPORT}.*.tmp"):  # of a driver that was killed just here
            left.unlink(missing_ok=True)
        found, known = read(root, folder, alive=False, values=values)
        write(folder / REPORT, rendered(found, known))
    except OSError as error:  # a full disk is no defect
        _log.warning(
            "The report of %s could not be written: %s. Its rows are not touched.", root, error.strerror
        )
    except Exception:
        _log.exception("The report of %s could not be written; the output is not touched by that.", root)


def read(root: Path, folder: Path, *, alive: bool, values: bool = False) -> tuple[History, Facts]:
    """Read what is known of the run in ``folder``, whose output is ``root``. ``alive``: a driver is at work."""
    from millrace.observers.report.facts import facts
    from millrace.observers.report.history import history, lines_of

    success = success_of(root, folder.name)
    known = history(lines_of(regular.read(folder / EVENTS)))
    options = known.last.described.get("options") if known.last is not None else None
    shown = isinstance(options, dict) and options.get("show_data") != "False"  # unknown: hidden
    samples = _samples(root, folder, values=values, words=values or shown)
    committed = committed_in(folder) if success is None and not alive else None
    return known, facts(
        known, output=str(root), success=success, alive=alive, committed=committed, samples=samples
    )


def folder_of(root: Path) -> Path:
    """Return the folder of the run that is told of: one that is to take the place of another, else the one in force.

    Raises ``NothingMatched`` where there is none.
    """
    home = root / "_millrace"
    for pointer in ("next", "current"):
        with contextlib.suppress(OSError, ValueError):  # no name, or no text
            folder = home / regular.content(home / pointer, 200).decode().strip()
            if folder.parent == home and regular.is_folder(folder):
                return folder
    raise NothingMatched(
        f"There is no output of Millrace in {root}: name the folder that a run writes, or has written, to."
    )


def committed_in(folder: Path) -> Committed | None:
    """Return what the journal of a run says; None if it cannot be read."""
    from millrace.observers.report.facts import Committed
    from millrace.run import journal

    ledger, shards, files, size = Ledger(), 0, 0, 0
    try:
        for record in journal.read(folder / "journal").in_force():
            parts = [file for file in record.files if file.is_part]
            ledger = ledger + record.ledger if shards else record.ledger
            shards += 1
            files += len(parts)
            size += sum(file.size for file in parts)
    except (MillraceError, msgspec.DecodeError):
        return None
    return Committed(ledger, shards, files, size)


def rendered(found: History, known: Facts) -> str:
    """Return the page."""
    from millrace.observers.report.page import page

    return page(found, known, made=time.time(), version=__version__)


def write(path: Path, page: str) -> None:
    """Put a page in its place, all of it or nothing; only its owner may read it."""
    regular.write(path, page.encode(), lasting=False)


def success_of(root: Path, run: str) -> Mapping[str, Any] | None:
    """Return what ``_SUCCESS`` says, if it is there and speaks of this run."""
    try:
        told = msgspec.json.decode(regular.read(root / "_SUCCESS"))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return told if isinstance(told, dict) and told.get("run") == run else None


def _samples(root: Path, folder: Path, *, values: bool, words: bool) -> list[Sample]:
    """Return some of the rejected rows, of each kind a few.

    ``values``, ``words``: the values of rows, and what errors say, which may be about values, may be shown.
    """
    paths = sorted(path for path in (root / REJECTED).glob("*.arrow") if f"-{folder.name}." in path.name)
    if not paths or not regular.is_folder(root / REJECTED):
        return []
    from millrace.core.artifacts import shortened
    from millrace.observers.human import row_text
    from millrace.observers.report.facts import Sample

    found: list[Sample] = []
    seen: Counter[tuple[str, str]] = Counter()
    for path in paths[:_FILES]:
        for why, row in _set_aside(path):
            kind = str(why["_step"]), str(why["_error_type"])
            seen[kind] += 1
            if seen[kind] > _OF_A_KIND:
                continue
            where = str(why["_file"]) + (f", row {why['_row']:,}" if why["_row"] is not None else "")
            error = f"{why['_error_type']}: {why['_error']}" if words else str(why["_error_type"])
            told = row_text(row.to_pylist()[0]) if values else ""
            found.append(Sample(where, kind[0], shortened(error, _WORDS), shortened(told, _WORDS)))
            if len(found) >= _SAMPLES:
                return found
    return found


def _set_aside(path: Path) -> Iterator[tuple[dict[str, Any], pa.RecordBatch]]:
    """Yield why the first rows of a file of rejected ones are there, and each row; none if it is damaged, as
    `verify` tells of that."""
    import pyarrow as pa

    from millrace.core.rejected import ERROR_FIELDS

    ours = [field.name for field in ERROR_FIELDS]
    try:
        with pa.BufferReader(regular.mapped(path)) as source:
            reader = pa.ipc.open_file(source)
            if not reader.num_record_batches:
                return
            batch = reader.get_batch(0).slice(0, _LOOKED_AT)
        batch.validate(full=True)  # a wrong offset would be followed out of the file
        why = batch.select(ours).to_pylist()
    except (OSError, pa.ArrowException, KeyError, ValueError):
        return
    own = batch.select([name for name in batch.schema.names if name not in ours])
    for i, each in enumerate(why):
        yield each, own.slice(i, 1)
