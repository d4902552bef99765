"""A shard's files on their way into a store: uploaded first, journalled then.

A part of a run whose parts are shown at once has its final name from the start. It is put on the condition that there
is none of its name. Where there is one, what is noted with it decides: the same bytes of the same run are ours, be it
that an answer was lost, or that an earlier driver ended before it could journal them. Other bytes of the same run, of
an attempt that was never committed, are replaced on the condition that they are still those.

All others lie *aside*, in ``_headrace/<run>/parts/``: what is to be hidden until all is there, and what workers on
other machines have uploaded. It is what is done in a folder, with a copy in the place of a rename. What is copied is
named by a record, so whoever does it, and however late, puts the same bytes there. When all is done, what lay aside
is removed before ``_SUCCESS``.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import zlib
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.staged import CRC_NOTE, PARTS, RUN_NOTE, is_uploaded, notes_of, uploaded_name
from headrace.core.metric_states import STATES, side_files
from headrace.core.stores.writing import ABSENT, Found, StoreWriter, Taken, Version
from headrace.core.target_ports import Moment, Sink
from headrace.core.work import HOME, REJECTED, SUCCESS, CommitRecord, StagedFile
from headrace.errors import ForeignOutput, OutputWriteFailed
from headrace.output import journal as journals
from headrace.output.names import Listed, parts_there
from headrace.output.places.lease import Lease
from headrace.output.publishing import FileState, Publisher

_AT_ONCE = 8  # uploads
_COPIES_AT_ONCE = 32  # and other requests that move no bytes of ours
_MOST_COPYING = 256  # copies that have not ended
_REMOVED_AT_ONCE = 200
_SAMPLES = 5  # files of rejected rows that are kept on this machine, for the report
_TRIES = 5


class StorePlace(Listed, Protocol):
    """What a publisher needs of an output in a store."""

    objects: StoreWriter
    lease: Lease
    there: dict[str, int]

    @property
    def root(self) -> Path: ...
    def list_again(self) -> None: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, names: Collection[str]) -> None: ...


class StorePublisher(Publisher):
    """Uploads files of one run; those to be revealed at the end aside, from where the store copies them then."""

    pause = 0.25  # records that come faster share one object of the journal

    def __init__(self, place: StorePlace, sink: Sink, run: str, moment: Moment) -> None:
        super().__init__(sink)
        self._place = place
        self._store = place.objects
        self._run = run
        self._hidden = moment is Moment.END
        self._parts = f"{HOME}/{run}/{PARTS}"
        self._copiers = ThreadPoolExecutor(_COPIES_AT_ONCE, thread_name_prefix="headrace-copies")
        self._copying: deque[Future[None]] = deque()
        self._copied: deque[str] = deque()  # objects that are not needed any more
        self._published: set[str] = set()
        self._fetching = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-uploads")

    def arriving(self, record: CommitRecord) -> list[Future[None]]:
        staged = [file for file in record.files if is_uploaded(file) or os.path.lexists(self._staged(file))]
        uploads = [self._threads.submit(self._upload, file) for file in staged]
        states = side_files(record)
        if states:
            uploads.append(self._threads.submit(self._upload_states, states))
        return uploads

    def publish(self, records: Iterable[CommitRecord]) -> None:
        """Have the store copy what lies aside, meanwhile; raises what went wrong with others before."""
        there = self._place.there
        for file in (file for record in records for file in record.files):
            aside = self._aside(file)
            if aside not in there and there.get(file.name) == file.size:
                continue
            while self._copying and (len(self._copying) >= _MOST_COPYING or self._copying[0].done()):
                self._copying.popleft().result()
            self._copying.append(self._copiers.submit(self._copy, file, aside))
            if len(self._copied) >= _REMOVED_AT_ONCE:
                self._remove_copied()

    def settle(self) -> None:
        while self._copying:
            self._copying.popleft().result()
        self._remove_copied()

    def _remove_copied(self) -> None:
        names = [self._copied.popleft() for _ in range(len(self._copied))]
        if names:
            self._place.remove(names)

    def _aside(self, file: StagedFile) -> str:
        """Return the name under which a file lies, if it does, before it is copied to its own."""
        return uploaded_name(self._run, file) if is_uploaded(file) else f"{self._parts}/{file.name}"

    def state(self, file: StagedFile) -> FileState:
        """Say where a committed file is; what is aside still has to be copied, whatever has its name by now."""
        there, aside = self._place.there, self._aside(file)
        if there.get(aside) == file.size:
            return "staged"
        if there.get(file.name) == file.size:
            return "published"
        if (is_uploaded(file) or self._hidden) and self._is_there(file, aside):  # a listing may be old
            return "staged"
        return "published" if self._is_there(file, file.name) else "missing"

    def _is_there(self, file: StagedFile, name: str) -> bool:
        """Say whether a file has this name, by the listing; what is not so in it is looked at again."""
        there = self._place.there
        if there.get(name) != file.size:
            if not self._is(file, self._store.look(name)):
                return False
            there[name] = file.size
        return True

    def _is(self, file: StagedFile, found: Found | None) -> bool:
        """Say whether an object is there and is a file of the run; where a store notes nothing, by its size."""
        if found is None:
            return False
        noted = {key: found.notes.get(key) for key in (RUN_NOTE, CRC_NOTE)}
        return found.size == file.size and (RUN_NOTE not in found.notes or noted == notes_of(self._run, file))

    def finish(self, success: bytes, *, lasting: bool = True) -> None:
        """Put ``_SUCCESS`` in place, once nothing lies aside any more."""
        place = self._place
        self.settle()
        # Before the mark: what lies aside could be copied by a driver that was replaced and does not know it.
        place.remove([*place.listed(self._parts), *place.listed(f"{HOME}/uploads")])
        failpoints.hit("finish.success")
        place.write(SUCCESS, success)

    def check_complete(self, records: Iterable[CommitRecord]) -> None:
        """See that every file of these records is there, and remove others of this run."""
        self.settle()
        place = self._place
        place.list_again()
        contents = journals.read(place.root / HOME / self._run / "journal")
        named = {file.name for record in contents.in_force() for file in record.files}
        files = [file for record in records for file in record.files]
        for file in files:
            if not self._is_there(file, file.name):
                raise OutputWriteFailed(
                    f"{self._store.url(file.name)} is gone, or has another size than when it was written. Run again: "
                    "its rows are processed once more."
                )
        self._compare(file for file in files if is_uploaded(file))
        place.remove(parts_there(place, {self._run}, but=named))

    def _compare(self, files: Iterable[StagedFile]) -> None:
        """See that what an earlier driver has copied has the bytes of its record, not only as many."""
        older = [file for file in files if file.name not in self._published]
        found = self._copiers.map(lambda file: self._store.look(file.name), older)
        for file, there in zip(older, found, strict=True):
            if not self._is(file, there):
                raise OutputWriteFailed(
                    f"{self._store.url(file.name)} is not what was written. Remove it, and run again: its rows are "
                    "processed once more."
                )

    def close(self) -> None:
        """Let requests that have begun end, and drop the others: the next driver makes them."""
        self._threads.shutdown(cancel_futures=True)
        self._copiers.shutdown(cancel_futures=True)

    # ------------------------------------------------------------ one file

    def _copy(self, file: StagedFile, aside: str) -> None:
        self._place.lease.ensure()
        failpoints.hit("publish.rename")
        copied = self._store.duplicate_if_there(aside, file.name)
        if not copied and not self._is(file, self._store.look(file.name)):
            raise OutputWriteFailed(
                f"{self._store.url(aside)} is gone, and was not copied to {file.name}. Run again: its rows are "
                "processed once more."
            )
        self._place.there[file.name] = file.size
        self._published.add(file.name)
        failpoints.hit("publish.renamed")
        self._copied.append(aside)

    def _staged(self, file: StagedFile) -> str:
        return os.path.join(self._staging, file.staged)

    def _upload(self, file: StagedFile) -> None:
        path = self._staged(file)
        name = self._aside(file) if self._hidden or is_uploaded(file) else file.name
        try:
            failpoints.hit("store.upload")
            if is_uploaded(file):
                self._check(file, name)
            else:
                self._put(name, path, file)
            failpoints.hit("store.uploaded")
            self._place.there[name] = file.size
            sample = self._place.root / file.name if self._is_sample(file) else None
            if sample is None and not is_uploaded(file):
                os.unlink(path)  # to make room for the next: the store has it
            elif sample is not None and not is_uploaded(file):
                os.rename(path, sample)
            elif sample is not None:
                with safe_files.new_file(sample) as opened:
                    self._store.fetch(name, opened)
        except OSError as error:
            raise OutputWriteFailed(
                f"Cannot upload {path} to {self._store.url(name)}: {error.strerror}. Finished work is kept: fix the "
                "cause, then run the same command again."
            ) from error

    def _check(self, file: StagedFile, name: str) -> None:
        """See that a worker's upload is what it says, before a record names it."""
        found = self._store.look(name)
        if not self._is(file, found):
            how = "is gone" if found is None else "has other bytes"
            raise OutputWriteFailed(
                f"{self._store.url(name)}, which a worker has uploaded, {how}. Finished work is kept: run again, and "
                "its rows are processed once more."
            )

    def _is_sample(self, file: StagedFile) -> bool:
        """Say whether a file is kept on this machine, for the report: the first rejected rows are."""
        rejected = self._place.root / REJECTED
        if file.is_part:
            return False
        safe_files.make_folder(rejected)
        return len(os.listdir(rejected)) < _SAMPLES

    def _upload_states(self, names: Collection[str]) -> None:
        """Upload big states of metrics, which are named by what is in them; fetch those that workers uploaded."""
        for name in names:
            key = f"{HOME}/{self._run}/{STATES}/{name}"
            path = self._place.root / key
            with self._fetching:  # two shards may have the same
                if not path.exists():
                    self._fetch_state(key, path)
            if key not in self._place.there:
                data = safe_files.content(path)
                with contextlib.suppress(Taken):
                    self._store.put(key, data, when=ABSENT)
                self._place.there[key] = len(data)

    def _fetch_state(self, key: str, path: Path) -> None:
        """Fetch a state that a worker on another machine has uploaded."""
        found = self._store.content(key)
        if found is None or hashlib.sha256(found).hexdigest() != path.name:
            how = "gone" if found is None else "damaged"
            raise OutputWriteFailed(
                f"{self._store.url(key)}, the state of a metric that a worker has uploaded, is {how}. Remove it and "
                "run again: its rows are processed once more."
            )
        safe_files.make_folder(path.parent, 0o700)
        safe_files.write(path, found, lasting=False)
        self._place.there[key] = len(found)

    def _put(self, name: str, path: str, file: StagedFile) -> None:
        notes = notes_of(self._run, file)
        when = ABSENT
        for _ in range(_TRIES):
            with contextlib.suppress(Taken):
                with safe_files.file(path) as opened:
                    self._store.put_file(name, opened, file.size, when=when, notes=notes)
                return
            version = self._other(name, file)
            if version is None:
                return
            when = version
        raise OutputWriteFailed(
            f"{self._store.url(name)} is written by another program again and again. Run again when no other program "
            "writes to this output."
        )

    def _other(self, name: str, file: StagedFile) -> Version | None:
        """Return the version of an object that is to be replaced, ``ABSENT`` if it is gone; None: it is this file."""
        found = self._store.look(name)
        if found is None:
            return ABSENT
        if found.size == file.size and found.notes.get(CRC_NOTE) == f"{file.crc32:08x}":
            return None
        if RUN_NOTE not in found.notes:  # a store that notes nothing, or an object of somebody else
            there = self._store.content(name)
            if there is not None and (zlib.crc32(there), len(there)) == (file.crc32, file.size):
                return None
        if found.notes.get(RUN_NOTE) != self._run:
            raise ForeignOutput(
                f"{self._store.url(name)} is there already, and was not written by this run. It was not touched: "
                "remove it, or write to another place, then run again."
            )
        self._place.lease.check()  # after looking: who replaced us since then has changed the version, too
        return found.version
