"""Parts that workers on other machines have uploaded aside: looked at, journalled, then copied by the store.

It is what is done in a folder, with a copy in the place of a rename. What is copied is named by a record, so whoever
does it, and however late, puts the same bytes there; when all is done, what lay aside is removed before ``_SUCCESS``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.stores.writing import Found, StoreWriter
from headrace.core.uploading.names import CRC_NOTE, RUN_NOTE, is_uploaded, notes_of, uploaded_name
from headrace.core.work import REJECTED, StagedFile
from headrace.errors import OutputWriteFailed
from headrace.output.places.lease import Lease
from headrace.output.publishing import FileState

SAMPLES = 5  # files of rejected rows that are kept on this machine, for the report
_AT_ONCE = 32  # requests that move no bytes of ours
_MOST_WAITING = 256  # copies that have not ended
_REMOVED_AT_ONCE = 200


class AsidePlace(Protocol):
    """What is needed of an output in a store."""

    objects: StoreWriter
    lease: Lease
    there: dict[str, int]

    @property
    def root(self) -> Path: ...
    def remove(self, names: Collection[str]) -> None: ...


class UploadedParts:
    """Those of one run."""

    def __init__(self, place: AsidePlace, run: str) -> None:
        self._place = place
        self._store = place.objects
        self._run = run
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-copies")
        self._copying: deque[Future[None]] = deque()
        self._copied: deque[str] = deque()  # objects that are not needed any more
        self._published: set[str] = set()

    def check(self, file: StagedFile) -> None:
        """See that a worker's upload is what it says, before a record names it."""
        name = uploaded_name(self._run, file)
        found = self._store.look(name)
        if found is None or not self._is(file, found):
            how = "is gone" if found is None else "has other bytes"
            raise OutputWriteFailed(
                f"{self._store.url(name)}, which a worker has uploaded, {how}. Finished work is kept: run again, and "
                "its rows are processed once more."
            )
        self._place.there[name] = file.size
        if not file.is_part:
            self._keep_sample(file, name)

    def _keep_sample(self, file: StagedFile, name: str) -> None:
        """Fetch the first rejected rows, for the report."""
        rejected = self._place.root / REJECTED
        safe_files.make_folder(rejected)
        if len(os.listdir(rejected)) < SAMPLES:
            with safe_files.new_file(self._place.root / file.name) as opened:
                self._store.fetch(name, opened)

    def publish(self, file: StagedFile) -> None:
        """Have the store copy a part that a record names, meanwhile; raises what went wrong with others before."""
        name, there = uploaded_name(self._run, file), self._place.there
        if name not in there and there.get(file.name) == file.size:
            return
        while self._copying and (len(self._copying) >= _MOST_WAITING or self._copying[0].done()):
            self._copying.popleft().result()
        self._copying.append(self._threads.submit(self._copy, file, name))
        if len(self._copied) >= _REMOVED_AT_ONCE:
            self._remove_copied()

    def _copy(self, file: StagedFile, name: str) -> None:
        self._place.lease.ensure()
        failpoints.hit("publish.rename")
        if not self._store.duplicate_if_there(name, file.name):
            found = self._store.look(file.name)
            if found is None or not self._is(file, found):
                raise OutputWriteFailed(
                    f"{self._store.url(name)}, which a worker has uploaded, is gone, and was not copied to "
                    f"{file.name}. Run again: its rows are processed once more."
                )
        self._place.there[file.name] = file.size
        self._published.add(file.name)
        failpoints.hit("publish.renamed")
        self._copied.append(name)

    def settle(self) -> None:
        """Wait until all is copied, and remove what it was copied from."""
        while self._copying:
            self._copying.popleft().result()
        self._remove_copied()

    def _remove_copied(self) -> None:
        names = [self._copied.popleft() for _ in range(len(self._copied))]
        if names:
            self._place.remove(names)

    def state(self, file: StagedFile) -> FileState:
        """Say where a committed file is; what is aside still has to be copied, whatever has its name by now."""
        name, there = uploaded_name(self._run, file), self._place.there
        if there.get(name) == file.size:
            return "staged"
        if there.get(file.name) == file.size:
            return "published"
        for key, place in ((name, "staged"), (file.name, "published")):  # a listing may be old
            found = self._store.look(key)
            if found is not None and self._is(file, found):
                there[key] = file.size
                return "staged" if place == "staged" else "published"
        return "missing"

    def compare(self, files: Iterable[StagedFile]) -> None:
        """See that what an earlier driver has published has the bytes of its record, not only as many."""
        older = [file for file in files if is_uploaded(file) and file.name not in self._published]
        found = self._threads.map(lambda file: self._store.look(file.name), older)
        for file, there in zip(older, found, strict=True):
            if there is None or not self._is(file, there):
                raise OutputWriteFailed(
                    f"{self._store.url(file.name)} is not what was written. Remove it, and run again: its rows are "
                    "processed once more."
                )

    def _is(self, file: StagedFile, found: Found) -> bool:
        """Say whether an object is a file of the run; where a store notes nothing, by its size."""
        noted = {key: found.notes.get(key) for key in (RUN_NOTE, CRC_NOTE)}
        return found.size == file.size and (RUN_NOTE not in found.notes or noted == notes_of(self._run, file))

    def close(self) -> None:
        """Let copies that have begun end, and drop the others: the next driver makes them."""
        self._threads.shutdown(cancel_futures=True)
