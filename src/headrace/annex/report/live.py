"""The page of a run while it goes on, made again and again, and what may be asked of the run there."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.annex.report.facts import History
from headrace.annex.report.follow import Follower, RunStatus
from headrace.annex.report.page import page
from headrace.annex.report.writing import rejected_samples
from headrace.core.asked import EVERY_ROW, RunAsked
from headrace.core.files import hive, safe_files
from headrace.core.process import importing
from headrace.output.names import ASKED, run_of
from headrace.output.places.place import place_at

if TYPE_CHECKING:
    from headrace.annex.report.template import Value
    from headrace.core.tables import Table

_LEAST, _MOST = 1.0, 3.0  # seconds between two pages that cost little
_OF_AGE = 1 / 30  # of a run: a long one is looked at less often
_SHARE = 0.005  # of the time that making pages may take, by one core
_SAMPLE_EVERY = 10.0  # seconds between two looks at parts
_SAMPLE = 5  # rows

_MOST_BYTES = 10_000  # of what is asked for
_NOT_YET = "The run has not begun yet: ask again in a moment."
_ELSEWHERE = "This run can be changed only from a machine that sees its folder."


class Pages:
    """Makes the page of an output's run, again and again, as cheaply as the run deserves."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self._lock = threading.Lock()
        self._page = b""
        self._made = self._sampled = 0.0
        self._cost = self._took = 0.0  # seconds of a core, and by the clock, for the last page
        self._age = 0.0  # seconds of the run
        self._samples: tuple[str, Table | None] = "", None  # of the part that has them
        self._ended = False
        self._file: Path | None = None  # by which the run can be asked
        self._why = ""  # it cannot be
        self._every_row = False

    @property
    def pause(self) -> float:
        """The seconds between two pages: as many as keep the share of time that making them takes."""
        seldom = max(self._age * _OF_AGE, self._took / _SHARE)  # on a busy machine it takes longer
        return max(_LEAST, min(_MOST, seldom), self._cost / _SHARE)

    def page(self, *, anew: bool = False) -> tuple[bytes, bool]:
        """Return the page as it is now, or was a moment ago, and whether the run has ended."""
        with self._lock:
            is_due = time.monotonic() - self._made >= self.pause or (anew and not self._ended)
            if is_due or not self._page:
                began, since, is_first = time.thread_time(), time.monotonic(), not self._page
                with importing():  # what is first looked at brings modules
                    status = self._follower.poll()
                    self._page, self._ended, self._age = self._of(status), status.ended, status.seconds
                self._made = time.monotonic()
                if not is_first:  # that one imports what later ones have
                    self._cost, self._took = time.thread_time() - began, self._made - since
            return self._page, self._ended

    def ask(self, wanted: bytes) -> str:
        """Ask the run for a change, given as JSON; return why that cannot be, "" if it can."""
        with self._lock:
            if self._file is None:
                return self._why or _ELSEWHERE
            try:
                changes = msgspec.json.decode(wanted, type=dict[str, Any])
                if unknown := [name for name in changes if name not in RunAsked.__struct_fields__]:
                    return f"There is no {unknown[0]!r} to change."
                asked = msgspec.convert({**msgspec.to_builtins(self._asked()), **changes}, RunAsked)
                if self._every_row and asked.on_error == "reject":
                    return EVERY_ROW
                safe_files.write(self._file, msgspec.json.encode(asked), lasting=False)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                return f"That cannot be asked for: {error}"
            except OSError as error:
                return f"The run cannot be asked: {error.strerror}"
            self._made = 0.0
            return ""

    def _asked(self) -> RunAsked:
        """Return what was asked of the run, whether it has heard it or not."""
        if self._file is not None:
            with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
                return msgspec.json.decode(safe_files.content(self._file, _MOST_BYTES), type=RunAsked)
        return RunAsked()

    def _of(self, status: RunStatus) -> bytes:
        history = status.state
        assert isinstance(history, History)
        described = history.described
        shown = described is not None and described.options.get("show_data") != "False"
        self._every_row = described is not None and described.every_row
        known, predictions = status.facts, None
        self._file = None
        if (root := self._follower.root) is not None:
            folder = root / "_headrace" / known.run
            samples = rejected_samples(place_at(root), folder, values=shown, words=shown)
            known = msgspec.structs.replace(known, samples=samples)
            predictions = self._predictions(root, known.run) if shown else None
            self._file = folder / ASKED if known.run and not status.ended else None
            self._why = "" if known.run else _NOT_YET
        else:
            self._why = _ELSEWHERE
        history.at = max(history.at, status.now)  # it is later than its last event
        live: Value = {
            "state": "ended" if status.ended else "under way",
            "controls": None if status.ended else self._controls(history),
        }
        return page(history, known, live=live, written=predictions)

    def _controls(self, history: History) -> Value:
        """Return what one may ask of the run, and what was asked."""
        asked, heard = self._asked(), msgspec.structs.replace(history.asked, held=False)
        options = history.described.options if history.described is not None else {}
        heard_now = asked == heard or self._file is None
        return {
            "paused": asked.paused,
            "ends": asked.ends,
            "workers": str(heard.workers or max(history.stage_workers, default=1)),
            "on_error": heard.on_error or options.get("on_error", "raise"),
            "choices": ["raise", "null"] if self._every_row else ["raise", "reject", "null"],
            "max_errors": f"{heard.max_errors:g}" if heard.max_errors else options.get("max_errors", ""),
            "why": self._why,
            "told": (f"Asked: {history.asked}." if heard != RunAsked() else "")
            if heard_now
            else "Asked. The run has not heard it yet.",
        }

    def _predictions(self, root: Path, run: str) -> Table | None:
        """Return some rows of the part that was written last."""
        if time.monotonic() - self._sampled >= _SAMPLE_EVERY:
            with contextlib.suppress(Exception):  # it is gone, or half copied: there are others
                part = max(_parts(root, run), key=lambda path: path.stat().st_mtime)
                self._sampled = time.monotonic()
                if str(part) != self._samples[0]:
                    self._samples = str(part), _first_rows(part)
        return self._samples[1]


def _parts(root: Path, run: str) -> Iterator[Path]:
    return (root / name for name in hive.entries(root) if run_of(name) == run)


def _first_rows(part: Path) -> Table:
    """Return the first rows of a part, as its source reads them: a run of them would take ten times as long."""
    from headrace.core.arrow.views import output_rows
    from headrace.core.tables import rows_table
    from headrace.readers.by_name import dataset_of

    with contextlib.closing(dataset_of([str(part)], None, {})._plan.source) as source:
        read = (batch for split in source.splits() for batch in source.read(split, None, _SAMPLE))
        batch = next(read).slice(0, _SAMPLE)
        return rows_table(list(output_rows(batch, live=source.shares_memory)), [batch.schema])
