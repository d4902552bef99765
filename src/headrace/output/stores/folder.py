"""An output in an object store: its small files are copied to a folder of this machine, and written to both.

::

    s3://bucket/out/part-00007-k3f9a2xq.parquet     parts, put before the record that names them
    s3://bucket/out/_SUCCESS                        the output is complete
    s3://bucket/out/_headrace/lock                  who works here, renewed every few seconds
    s3://bucket/out/_headrace/current, next         as in a folder
    s3://bucket/out/_headrace/<run>/plan, manifest, events.jsonl, report.html, states/
    s3://bucket/out/_headrace/<run>/journal/0000000001   the journal, in numbered objects
    s3://bucket/out/_headrace/<run>/parts/          parts of mode="overwrite", hidden until all are there

The folder on this machine is made anew by each driver, from what is in the store, and nothing is lost with it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import threading
import time
from collections.abc import Collection, Container
from contextlib import AbstractContextManager
from pathlib import Path

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.metric_states import STATES
from headrace.core.ports import Sink
from headrace.core.stores.addresses import parse_output
from headrace.core.stores.options import Options
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken
from headrace.core.uploading.local import LocalFolder
from headrace.core.uploading.names import PARTS, Uploads
from headrace.core.work import REJECTED, Durability
from headrace.errors import ForeignOutput, HeadraceError, OutputWriteFailed, RunLocked
from headrace.output.folder import HOME, SUCCESS, OutputFolder, is_part
from headrace.output.journal import Contents, Journal
from headrace.output.names import check_run
from headrace.output.publishing import Publisher
from headrace.output.reporting import REPORT
from headrace.output.small_files import remove_file, remove_tree, write_whole
from headrace.output.stores.copies import Listing, copy_home, listing_of, naming
from headrace.output.stores.lease import Lease
from headrace.output.stores.numbered import NumberedObjects, StoreJournal
from headrace.output.stores.publishing import StorePublisher

_KEPT_APART = ("plan", "manifest", "journal")  # which are written on conditions
_RECORDED = 5.0  # seconds between two uploads of the record, at least
_SHARE = 0.02  # of the time may go into writing the record again, for people who follow the run

_log = logging.getLogger("headrace")


class StoreFolder(OutputFolder):
    """An output in a store, on our lease. Close it, or the next driver waits for signs of life."""

    def __init__(self, address: str, options: Options) -> None:
        self.store = StoreWriter(parse_output(address), options)
        self._options = options
        self.address = str(self.store.address)
        self._people: dict[str, tuple[int, int]] = {}
        self._fetching = threading.Lock()
        self._running: str | None = None
        self._check_foreign()
        self.lease = Lease(self.store)
        self._uploading = threading.Lock()
        self._over = threading.Event()
        self._recorder = threading.Thread(
            target=self._upload_now_and_then, name="headrace-record", daemon=True
        )
        self._copy: LocalFolder | None = None
        try:
            self.lease.take()
            self._copy = LocalFolder()
            self.there: Listing = listing_of(self.store)
            with naming(self._copy.root, self.address):
                copied = copy_home(self.store, self._copy.root, self.there, self.lease, but=REPORT)
                self._versions, self._journals = copied.versions, copied.journals
                super().__init__(self._copy.root)
                self._remove_abandoned_runs()
            self._recorder.start()
        except BaseException:
            self.lease.release()
            if self._copy is not None:
                self._copy.close()
            raise

    def __str__(self) -> str:
        return self.address

    def named(self) -> AbstractContextManager[None]:
        """Let errors name the address, not the folder of this machine."""
        return naming(self.root, self.address)

    def place(self, name: str = "") -> Path | str:
        """Return the address of an object of the output; without a name, that of the output."""
        return self.store.url(name) if name else self.address

    def _check_foreign(self) -> None:
        """Refuse a place where objects are that no run of ours has written, before anything is written there."""
        if self.store.names(f"{HOME}/", few=True):
            return
        others = [name for name, _ in self.store.names(few=True) if not name.startswith(".")][:3]
        if others:
            raise ForeignOutput(
                f"The output {self.address} holds objects that Headrace did not write ({', '.join(others)}, …). "
                "Nothing was touched: choose an empty or a new place."
            )

    def _remove_abandoned_runs(self) -> None:
        """Remove runs that no pointer names: their driver ended before it began, or after it was replaced."""
        named = {self.current(), self.next()}
        runs = {
            name.split("/")[1]
            for name in list(self.there)
            if name.startswith(f"{HOME}/") and name.count("/") > 1
        }
        if named == {None}:
            self._check_pointer(runs)
        for run in runs - named:
            self._remove_objects([name for name in list(self.there) if name.startswith(f"{HOME}/{run}/")])

    def _remove_objects(self, gone: Collection[str]) -> None:
        """Remove objects, unless another driver has the output."""
        if gone:
            self.lease.check()
            self.store.remove(gone)
        for name in gone:
            self.there.pop(name, None)
            self._versions.pop(name, None)

    def list_again(self) -> None:
        """Look at what is there now: a driver that was replaced may have put something since."""
        self.there = listing_of(self.store)

    def sync_made(self) -> None:
        """A store has no folders."""

    def sync_published(self) -> None:
        """What a store has answered for is there."""

    # ------------------------------------------------------------ pointers

    def point(self, pointer: str, run: str | None) -> None:
        """Make ``pointer`` name ``run`` (None: remove it), if it is what this driver knows."""
        name = f"{HOME}/{pointer}"
        if run is not None:
            self.lease.check()
            self._put(name, f"{run}\n".encode())
        elif name in self.there:
            self._remove_objects([name])
        super().point(pointer, run)

    def _put(self, name: str, data: bytes) -> None:
        """Write a small object, on the condition that it is as this driver knows it."""
        self.lease.ensure()
        try:
            version = self.store.put(name, data, when=self._versions.get(name, ABSENT))
        except Taken:
            there = self.store.get(name)
            if there is None or there[0] != data:  # ours, if only the answer was lost
                self.lease.check()
                raise RunLocked(
                    f"{self.store.url(name)} was changed by another program while this run wrote to the output. "
                    "Nothing more was written; run again."
                ) from None
            version = there[1].version
        self._versions[name], self.there[name] = version, len(data)

    # ------------------------------------------------------------ runs

    def make(self, run: str) -> Path:
        """Make a run's folder on this machine."""
        self._running = check_run(run, self.home)
        return super().make(run)

    def save(self, run: str, name: str, data: bytes, *, named: bool = True) -> None:
        """Write a small file of a run, here and in the store."""
        write_whole(self.folder(run) / name, data, named=False)
        self._put(f"{HOME}/{run}/{name}", data)
        # All is done: a driver that dies from here on does not take the record with it.
        if name == "manifest":
            self._upload_records()

    def create_journal(self, run: str, durability: Durability) -> Journal:
        """Make the journal of a new run."""
        self._journals[run] = NumberedObjects(self.store, run, self.lease)
        return StoreJournal.begin(self.folder(run) / "journal", self._journals[run])

    def open_journal(self, run: str, durability: Durability) -> tuple[Journal, Contents]:
        """Open a run's journal for going on: from now on no earlier driver can append to it."""
        self._running = run
        return StoreJournal.go_on(self.folder(run) / "journal", self._journals[run])

    def publisher(self, sink: Sink, run: str, *, hidden: bool) -> Publisher:
        """Return what uploads the files of a run."""
        return StorePublisher(self, sink, run, hidden=hidden)

    def uploads(self, run: str) -> Uploads:
        """Return what workers on other machines have to know, and put the mark there by which they know the store."""
        mark = f"{HOME}/{run}/{PARTS}/seen-{os.urandom(8).hex()}"
        self.store.put(mark, b"")
        self.there[mark] = 0
        return Uploads(self.address, self._options, run, mark)

    def remove_run(self, run: str) -> None:
        """Remove a run's objects and its folder."""
        self._remove_objects([name for name in list(self.there) if name.startswith(f"{HOME}/{run}/")])
        remove_tree(self.folder(run))

    def sweep_parts(self, run: str, named: Container[str], *, finished: bool) -> None:
        """Remove parts that no record names, of a finished run. Those of others are replaced, or removed at its end:
        a driver that was replaced and does not know it could else remove what its successor has just put there."""
        if finished:
            self.remove_parts(run, but=named)
            self.remove_named(
                [name for name in list(self.there) if name.startswith(f"{HOME}/{run}/{PARTS}/")]
            )

    def parts(self) -> list[str]:
        """Names that readers find: those of which no part is hidden."""
        hidden = ("_", ".")
        return [
            name for name in list(self.there) if not any(part.startswith(hidden) for part in name.split("/"))
        ]

    def rejected(self) -> list[str]:
        """Names of objects that may hold rejected rows."""
        return [name for name in list(self.there) if name.startswith(f"{REJECTED}/")]

    def remove_success(self) -> None:
        """Remove ``_SUCCESS``, before what it covers."""
        if SUCCESS in self.there:
            self._remove_objects([SUCCESS])
        remove_file(self.root / SUCCESS)

    def remove_named(self, names: Collection[str]) -> None:
        """Remove objects of these names, as far as they are there."""
        self._remove_objects([name for name in names if name in self.there])

    def remove_parts(self, run: str, *, but: Container[str] = ()) -> None:
        """Remove what a run has published, except what is named in ``but``."""
        found = [*self.parts(), *self.rejected()]
        found = [name for name in found if is_part(name.removeprefix(f"{REJECTED}/"), {run})]
        self.remove_named([name for name in found if name not in but])

    def write_success(self, data: bytes) -> None:
        """Put ``_SUCCESS`` in place."""
        self.lease.check()
        failpoints.hit("finish.success")
        self._put(SUCCESS, data)
        safe_files.write(self.root / SUCCESS, data, lasting=False)

    # ------------------------------------------------------------ what people read

    def _upload_now_and_then(self) -> None:
        """Upload the record as it is, seldom enough that it does not slow the run down."""
        pause = _RECORDED
        while not self._over.wait(pause):
            began = time.monotonic()
            with contextlib.suppress(HeadraceError):  # tried again with the next
                self._upload_records()
            pause = max(_RECORDED, (time.monotonic() - began) / _SHARE)

    def _upload_records(self) -> None:
        """Upload what the run's folder has besides plan and journal: record, report, command."""
        run = self._running
        if run is None or self.lease.lost:
            return
        with self._uploading, contextlib.suppress(OSError):  # one after the other: the store keeps the last
            for path in sorted(self.folder(run).iterdir()):
                status = path.lstat()
                stamp = status.st_mtime_ns, status.st_size
                if (
                    safe_files.is_folder(path)
                    or path.name in _KEPT_APART
                    or path.suffix == safe_files.TEMPORARY
                    or self._people.get(path.name) == stamp
                ):
                    continue
                data = safe_files.read(path)
                self.store.put(f"{HOME}/{run}/{path.name}", data)
                self.there[f"{HOME}/{run}/{path.name}"] = len(data)
                self._people[path.name] = stamp

    def upload_states(self, run: str, names: Collection[str]) -> None:
        """Upload big states of metrics, which are named by what is in them; fetch those that workers uploaded."""
        for name in names:
            key, path = f"{HOME}/{run}/{STATES}/{name}", self.folder(run) / STATES / name
            with self._fetching:  # two shards may have the same
                if not path.exists():
                    self._fetch_state(key, path)
            if key not in self.there:
                data = safe_files.content(path)
                with contextlib.suppress(Taken):
                    self.store.put(key, data, when=ABSENT)
                self.there[key] = len(data)

    def _fetch_state(self, key: str, path: Path) -> None:
        """Fetch a state that a worker on another machine has uploaded."""
        found = self.store.get(key)
        if found is None or hashlib.sha256(found[0]).hexdigest() != path.name:
            how = "gone" if found is None else "damaged"
            raise OutputWriteFailed(
                f"{self.store.url(key)}, the state of a metric that a worker has uploaded, is {how}. Remove it and "
                "run again: its rows are processed once more."
            )
        safe_files.make_folder(path.parent, 0o700)
        safe_files.write(path, found[0], lasting=False)
        self.there[key] = len(found[0])

    def close(self, *, forget: bool = False) -> None:
        """Upload what people read, give the lease back, and remove the folder of this machine."""
        if self._lock < 0:
            return
        forget = forget and self.current() is None and self.next() is None
        self._over.set()
        try:
            if not self.lease.lost:
                if forget:
                    self._remove_objects(
                        [n for n in list(self.there) if n.startswith(f"{HOME}/") and n != f"{HOME}/lock"]
                    )
                elif self._running is not None and self.folder(self._running).exists():
                    self._upload_records()
        except HeadraceError as error:
            _log.warning("headrace: the record of %s could not be uploaded: %s", self.address, error)
        finally:
            with self._uploading:  # nothing is uploaded any more when the next driver begins
                self.lease.release(forget=forget)
            super().close()
            if self._copy is not None:
                self._copy.close()
