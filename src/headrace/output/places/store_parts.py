"""A shard's files on their way into a store: uploaded first, journalled then.

A part has its final name from the start: there is nothing to rename. It is put on the condition that there is none of
its name. Where there is one, what is noted with it decides: the same bytes of the same run are ours, be it that an
answer was lost, or that an earlier driver ended before it could journal them. Other bytes of the same run, of an
attempt that was never committed, are replaced on the condition that they are still those.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import zlib
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.metric_states import STATES, side_files
from headrace.core.ports import Sink
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken, Version
from headrace.core.uploading.names import CRC_NOTE, PARTS, RUN_NOTE, is_uploaded, notes_of
from headrace.core.work import HOME, REJECTED, SUCCESS, CommitRecord, StagedFile
from headrace.errors import ForeignOutput, OutputWriteFailed
from headrace.output import journal as journals
from headrace.output.names import is_part
from headrace.output.places.lease import Lease
from headrace.output.places.uploaded import SAMPLES, UploadedParts
from headrace.output.publishing import FileState

_AT_ONCE = 8  # uploads
_MOST_WAITING = 64  # records whose files are not uploaded yet
_GROUP = 0.25  # seconds: records that come faster than this share one object of the journal
_TRIES = 5


class StorePlace(Protocol):
    """What a publisher needs of an output in a store."""

    objects: StoreWriter
    lease: Lease
    there: dict[str, int]

    @property
    def root(self) -> Path: ...
    def list_again(self) -> None: ...
    def visible(self) -> list[str]: ...
    def listed(self, folder: str) -> Mapping[str, int]: ...
    def write(self, name: str, data: bytes) -> None: ...
    def remove(self, names: Collection[str]) -> None: ...


class StorePublisher:
    """Uploads files of one run; ``hidden`` ones aside, from where the store copies them when all are there."""

    def __init__(self, place: StorePlace, sink: Sink, run: str, *, hidden: bool) -> None:
        self._place = place
        self._store = place.objects
        self._staging = sink.staging
        self._run = run
        self._hidden = hidden
        self._aside = f"{HOME}/{run}/{PARTS}/"
        self._uploaded = UploadedParts(place, run)
        self._fetching = threading.Lock()
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-uploads")
        self._waiting: deque[tuple[CommitRecord, list[Future[None]]]] = deque()
        self._journalled = 0.0

    def add(self, record: CommitRecord) -> None:
        """Begin to upload a record's files; waits where too many have not arrived yet."""
        uploads = [self._threads.submit(self._upload, file) for file in record.files]
        states = side_files(record)
        if states:
            uploads.append(self._threads.submit(self._upload_states, states))
        self._waiting.append((record, uploads))
        if len(self._waiting) > _MOST_WAITING:
            wait(self._waiting[0][1])

    def ready(self, *, wait: bool) -> list[CommitRecord]:
        """Return the records whose files are in the store, in the order in which they came."""
        records: list[CommitRecord] = []
        if not wait and time.monotonic() - self._journalled < _GROUP:
            return records
        while self._waiting:
            record, uploads = self._waiting[0]
            if not wait and not all(upload.done() for upload in uploads):
                break
            try:
                for upload in uploads:
                    upload.result()
            except Exception:
                if records:  # these are journalled first; the next call raises it
                    break
                raise
            records.append(record)
            self._waiting.popleft()
        self._journalled = time.monotonic()
        return records

    @property
    def pending(self) -> bool:
        """True while files are on their way."""
        return bool(self._waiting)

    def publish(self, records: Iterable[CommitRecord]) -> None:
        """Have the store copy what is hidden, or was uploaded by workers; all else has its name from the start."""
        there = self._place.there
        hidden = []
        for record in records:
            for file in record.files:
                if is_uploaded(file):
                    self._uploaded.publish(file)
                elif there.get(file.name) != file.size:
                    hidden.append(file)
        for _ in self._threads.map(self._copy, hidden):
            pass

    def settle(self) -> None:
        """Wait until what workers have uploaded has its name."""
        self._uploaded.settle()

    def state(self, file: StagedFile) -> FileState:
        """Say where a committed file is, by the listing; what is not so in it is looked at again."""
        if is_uploaded(file):
            return self._uploaded.state(file)
        if self._is_there(file.name, file.size):
            return "published"
        return "staged" if self._is_there(self._aside + file.name, file.size) else "missing"

    def _is_there(self, name: str, size: int) -> bool:
        there = self._place.there
        if there.get(name) == size:
            return True
        if name.startswith(self._aside) and not self._hidden and name not in there:
            return False
        found = self._store.look(name)
        if found is None or found.size != size:
            return False
        there[name] = size
        return True

    def finish(self, success: bytes) -> None:
        """Put ``_SUCCESS`` in place, once nothing lies aside any more."""
        place = self._place
        self.settle()
        place.list_again()
        # Before the mark: what lies aside could be copied by a driver that was replaced and does not know it.
        place.remove([*place.listed(self._aside[:-1]), *place.listed(f"{HOME}/uploads")])
        place.lease.check()
        failpoints.hit("finish.success")
        place.write(SUCCESS, success)

    def check_complete(self, *, since: int = 0) -> None:
        """See that every part of the shards from number ``since`` on is there, and remove others of this run."""
        self.settle()
        place = self._place
        place.list_again()
        contents = journals.read(place.root / HOME / self._run / "journal")
        named = {
            file.name: (record.shard, file.size) for record in contents.in_force() for file in record.files
        }
        for name, (shard, size) in named.items():
            if shard >= since and not self._is_there(name, size):
                raise OutputWriteFailed(
                    f"{self._store.url(name)} is gone, or has another size than when it was written. Run again: its "
                    "rows are processed once more."
                )
        records = (record for record in contents.in_force() if record.shard >= since)
        self._uploaded.compare(file for record in records for file in record.files)
        ours = [name for name in (*place.visible(), *place.listed(REJECTED)) if is_part(name, {self._run})]
        place.remove([name for name in ours if name not in named])

    def close(self) -> None:
        """Let uploads that have begun end, and drop the others."""
        self._threads.shutdown(cancel_futures=True)
        self._uploaded.close()

    # ------------------------------------------------------------ one file

    def _copy(self, file: StagedFile) -> None:
        failpoints.hit("publish.rename")
        self._store.duplicate(self._aside + file.name, file.name)
        self._place.there[file.name] = file.size
        failpoints.hit("publish.renamed")

    def _upload(self, file: StagedFile) -> None:
        path = os.path.join(self._staging, file.staged)
        name = self._aside + file.name if self._hidden else file.name
        try:
            failpoints.hit("store.upload")
            if is_uploaded(file):
                self._uploaded.check(file)
            else:
                self._put(name, path, file)
            failpoints.hit("store.uploaded")
            if not is_uploaded(file):
                self._place.there[name] = file.size
                self._drop(path, file)
        except OSError as error:
            raise OutputWriteFailed(
                f"Cannot upload {path} to {self._store.url(name)}: {error.strerror}. Finished work is kept: fix the "
                "cause, then run the same command again."
            ) from error

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
        found = self._store.get(key)
        if found is None or hashlib.sha256(found[0]).hexdigest() != path.name:
            how = "gone" if found is None else "damaged"
            raise OutputWriteFailed(
                f"{self._store.url(key)}, the state of a metric that a worker has uploaded, is {how}. Remove it and "
                "run again: its rows are processed once more."
            )
        safe_files.make_folder(path.parent, 0o700)
        safe_files.write(path, found[0], lasting=False)
        self._place.there[key] = len(found[0])

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
            there = self._store.get(name)
            if there is not None and zlib.crc32(there[0]) == file.crc32 and len(there[0]) == file.size:
                return None
        if found.notes.get(RUN_NOTE) != self._run:
            raise ForeignOutput(
                f"{self._store.url(name)} is there already, and was not written by this run. It was not touched: "
                "remove it, or write to another place, then run again."
            )
        self._place.lease.check()  # after looking: who replaced us since then has changed the version, too
        return found.version

    def _drop(self, path: str, file: StagedFile) -> None:
        """Make room for the next: the store has it. The first rejected rows are kept for the report."""
        rejected = self._place.root / REJECTED
        if not file.is_part:
            safe_files.make_folder(rejected)
            if len(os.listdir(rejected)) < SAMPLES:
                os.rename(path, self._place.root / file.name)
                return
        os.unlink(path)
