"""An output in an object store: its driver holds a lease, and parts are put under their names before their record.

::

    s3://bucket/out/_headrace/<run>/journal/0000000001   the journal, in numbered objects
    s3://bucket/out/_headrace/<run>/parts/               parts of mode="overwrite", hidden until all are there

All else is as in a folder. The small files are copied to a folder of this machine, and written to both. Each driver
makes that folder anew, from what is in the store, and nothing is lost with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.staged import PARTS, Uploads, of_machine
from headrace.core.metric_states import STATES
from headrace.core.stores.addresses import Options, parse_output
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken, Version
from headrace.core.target_ports import Moment, Sink
from headrace.core.uploader import LocalFolder
from headrace.core.work import HOME, SUCCESS, Durability, StagedFile
from headrace.errors import HeadraceError, NothingMatched, RunLocked
from headrace.output.journal import MAGIC, Contents, Journal
from headrace.output.names import REPORT, check_foreign, read_pointer
from headrace.output.places.lease import Lease, NumberedObjects, StoreNotes, sign_of, writer_of
from headrace.output.places.store_parts import StorePublisher
from headrace.output.publishing import Notes, Publisher, remove_tree

_POINTERS = ("current", "next")
_SMALL = re.compile(rf"(?!events-\d)[A-Za-z0-9_-][A-Za-z0-9_.-]*|{STATES}/[0-9a-f]{{64}}")
_TELLS = re.compile(rf"{SUCCESS}|{HOME}/(?:current|next|[a-z0-9]{{8}}/events(?:-\d+)?\.jsonl)")
_ALWAYS = ("plan", "manifest", "events.jsonl")  # asked for whatever a listing says: it may be old
_AT_ONCE = 16
_KEPT_APART = ("plan", "manifest", "journal")  # which are written on conditions
_RECORDED = 5.0  # seconds between two uploads of the record, at least
_SHARE = 0.02  # of the time may go into writing the record again, for people who follow the run

_log = logging.getLogger("headrace")


class Store:
    """A ``Place`` in an object store. ``there``: the names and sizes of its objects, as far as this driver knows.

    ``listed``: such names. The output is only looked at, and no more is copied than tells how its runs are.
    """

    copied = True
    renames = False

    def __init__(self, address: str, options: Options, *, listed: Mapping[str, int] | None = None) -> None:
        self.objects = StoreWriter(parse_output(address), options)
        self.name = str(self.objects.address)
        self.lease = Lease(self.objects)
        self.there: dict[str, int] = dict(listed or {})
        self._listed = listed is not None
        self._options = options
        self._versions: dict[str, Version] = {}
        self._journals: dict[str, NumberedObjects] = {}
        self._copy: LocalFolder | None = None
        self._shown: str | None = None  # the run whose record is uploaded now and then
        self._uploaded: dict[str, tuple[int, int]] = {}  # when what people read was changed, and its size
        self._uploading = threading.Lock()
        self._over = threading.Event()
        self._recorder: threading.Thread | None = None

    @property
    def root(self) -> Path:
        assert self._copy is not None
        return self._copy.root

    # ------------------------------------------------------------ who holds it

    def look(self) -> None:
        """Copy pointers, ``_SUCCESS``, and the plan, journal, record and states of the runs that pointers name."""
        if self._listed:
            self._copy_told()
            return
        self.list_again()
        if not any(name.startswith(f"{HOME}/") for name in self.there):
            raise NothingMatched(f"There is no output of Headrace in {self.name}: no run has written there.")
        self._copy_small()

    def take(self) -> None:
        self._check_foreign()
        try:
            self.lease.take()
            self.list_again()
            self._copy_small(but=REPORT)
            self._recorder = threading.Thread(target=self._record, name="headrace-record", daemon=True)
            self._recorder.start()
        except BaseException:
            self.close()
            raise

    def _check_foreign(self) -> None:
        """Refuse a place where objects are that no run of ours has written, before anything is written there."""
        if self.objects.names(f"{HOME}/", few=True):
            return
        check_foreign(self.name, (name for name, _ in self.objects.names(few=True)))

    def writer(self) -> str | None:
        return writer_of(self.objects)

    def sign(self) -> str:
        return sign_of(self.objects)

    def close(self, *, forget: bool = False) -> None:
        """Upload what people read, give the lease back, and remove the folder of this machine."""
        if self._over.is_set():
            return
        self._over.set()
        if self._recorder is not None:
            self._recorder.join()  # nothing is uploaded any more when the next driver begins
        try:
            if self._recorder is not None and not self.lease.lost:
                if forget:
                    self.remove([name for name in self.listed(HOME) if name != f"{HOME}/lock"])
                else:
                    self._upload_record()
        except HeadraceError as error:
            _log.warning("headrace: the record of %s could not be uploaded: %s", self.name, error)
        finally:
            self.lease.release(forget=forget)
            if self._copy is not None:
                self._copy.close()

    # ------------------------------------------------------------ copies

    def list_again(self) -> None:
        """Look at what is there now: a driver that was replaced may have put something since."""
        self.there = dict(self.objects.names(""))

    def _copy_small(self, *, but: str = "") -> None:
        """Copy small files. What is in the listing and gone by now is left out, as is what has the name ``but``."""
        self._copy = LocalFolder()
        with self.naming():
            safe_files.make_folder(self.root / HOME, 0o700)
            for name in (*(f"{HOME}/{pointer}" for pointer in _POINTERS), SUCCESS):
                self._fetch(name)
            for run in filter(None, [read_pointer(self.root / HOME / pointer) for pointer in _POINTERS]):
                self._copy_run(run, but)

    def _copy_told(self) -> None:
        self._copy = LocalFolder()
        with self.naming():
            names = list(filter(_TELLS.fullmatch, self.there))
            for folder in [HOME, *{os.path.dirname(name) for name in names} - {HOME, ""}]:
                safe_files.make_folder(self.root / folder, 0o700)
            for name in names:
                self._fetch(name)

    def _copy_run(self, run: str, but: str) -> None:
        prefix, folder = f"{HOME}/{run}/", self.root / HOME / run
        safe_files.make_folder(folder, 0o700)
        names = [name.removeprefix(prefix) for name in self.listed(prefix[:-1])]
        small = [name for name in {*names, *_ALWAYS} if _SMALL.fullmatch(name) and name != but]
        if any("/" in name for name in small):
            safe_files.make_folder(folder / STATES, 0o700)
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-copies") as threads:
            list(threads.map(self._fetch, [prefix + name for name in small]))
        listed = sum(1 for name in names if name.startswith("journal/"))
        self._journals[run] = NumberedObjects(self.objects, run, self.lease)
        frames = self._journals[run].read(listed=listed)
        safe_files.write(folder / "journal", MAGIC + frames, lasting=False)

    def _fetch(self, name: str) -> None:
        found = self.objects.get(name)
        if found is not None:
            safe_files.write(self.root / name, found[0], lasting=False)
            self._versions[name] = found[1].version

    # ------------------------------------------------------------ names

    def at(self, name: str = "") -> Path | str:
        return self.objects.url(name) if name else self.name

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        """Let errors name the address, not the folder of this machine."""
        try:
            yield
        except HeadraceError as error:
            if str(self.root) in str(error):
                error.args = (str(error).replace(str(self.root), self.name),)
            raise

    def visible(self) -> list[str]:
        return [
            name
            for name in list(self.there)
            if not any(part.startswith(("_", ".")) for part in name.split("/"))
        ]

    def listed(self, folder: str) -> Mapping[str, int]:
        return {name: size for name, size in list(self.there.items()) if name.startswith(f"{folder}/")}

    def folders(self, folder: str) -> set[str]:
        inside = [name.removeprefix(f"{folder}/") for name in self.listed(folder)]
        return {name.split("/")[0] for name in inside if "/" in name}

    def size_of(self, name: str) -> int:
        return self.there.get(name, -1)

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[Path]:
        path = self.root.parent / f"{os.urandom(8).hex()}-{name.rpartition('/')[2]}"
        try:
            with safe_files.new_file(path) as file:
                found = self.objects.fetch(name, file)
            if not found:
                path.unlink()
            yield path
        finally:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    # ------------------------------------------------------------ small files

    def write(self, name: str, data: bytes, *, named: bool = True) -> None:
        """Put an object on the condition that it is as this driver knows it, then write the copy."""
        self.lease.check()
        try:
            version = self.objects.put_once(name, data, when=self._versions.get(name, ABSENT))
        except Taken:
            self.lease.check()
            raise RunLocked(
                f"{self.objects.url(name)} was changed by another program while this run wrote to the output. "
                "Nothing more was written; run again."
            ) from None
        self._versions[name], self.there[name] = version, len(data)
        safe_files.write(self.root / name, data, lasting=False)
        failpoints.hit("plan.written")
        if name.endswith("/manifest"):  # all is done: a driver that dies from here on leaves its record
            self._upload_record()

    def remove(self, names: Collection[str]) -> None:
        gone = [name for name in names if name in self.there]
        if gone:
            self.lease.check()
            self.objects.remove(gone)
        for name in names:
            self.there.pop(name, None)
            self._versions.pop(name, None)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # few have a copy
                os.unlink(self.root / name)

    def remove_below(self, folder: str) -> None:
        self.remove(self.listed(folder))
        remove_tree(self.root / folder)

    def sync_names(self) -> None:
        """What a store has answered for is there."""

    def sync_made(self) -> None:
        """A store has no folders."""

    def notes(self, folder: str) -> Notes:
        self._check_foreign()
        return StoreNotes(self.objects, folder)

    # ------------------------------------------------------------ a run

    def create_journal(self, run: str, durability: Durability) -> Journal:
        self._journals[run] = NumberedObjects(self.objects, run, self.lease)
        return Journal.create(self._journal(run), "process", first=self._journals[run].append)

    def open_journal(self, run: str, durability: Durability) -> tuple[Journal, Contents]:
        """Claim the objects: from now on no earlier driver can append to them."""
        self.show(run)
        late = self._journals[run].claim()
        if late:
            path = self._journal(run)
            safe_files.write(path, safe_files.content(path) + late, lasting=False)
        return Journal.open(self._journal(run), "process", first=self._journals[run].append)

    def _journal(self, run: str) -> Path:
        return self.root / HOME / run / "journal"

    def publisher(self, sink: Sink, run: str, moment: Moment) -> Publisher:
        return StorePublisher(self, sink, run, moment)

    def adopted(self, run: str, machine: str, file: StagedFile, name: str) -> StagedFile:
        return of_machine(machine, file, name)

    def uploads(self, run: str) -> Uploads:
        """Put the mark there by which workers on other machines know the store."""
        mark = f"{HOME}/{run}/{PARTS}/seen-{os.urandom(8).hex()}"
        self.objects.put(mark, b"")
        self.there[mark] = 0
        return Uploads(self.name, self._options, run, mark)

    def show(self, run: str) -> None:
        self._shown = run

    def _record(self) -> None:
        """Upload the record as it is, seldom enough that it does not slow the run down."""
        pause = _RECORDED
        while not self._over.wait(pause):
            began = time.monotonic()
            with contextlib.suppress(HeadraceError):  # tried again with the next
                self._upload_record()
            pause = max(_RECORDED, (time.monotonic() - began) / _SHARE)

    def _upload_record(self) -> None:
        """Upload what the run's folder has besides plan and journal: record, report, command."""
        if self._shown is None or self.lease.lost:
            return
        folder = f"{HOME}/{self._shown}"
        with self._uploading, contextlib.suppress(OSError):  # one after the other: the store keeps the last
            for path in sorted((self.root / folder).iterdir()):
                status = path.lstat()
                stamp = status.st_mtime_ns, status.st_size
                if (
                    safe_files.is_folder(path)
                    or path.name in _KEPT_APART
                    or path.suffix == safe_files.TEMPORARY
                    or self._uploaded.get(path.name) == stamp
                ):
                    continue
                data = safe_files.read(path)
                self.objects.put(f"{folder}/{path.name}", data)
                self.there[f"{folder}/{path.name}"] = len(data)
                self._uploaded[path.name] = stamp
