"""What becomes of a committed shard's files: where they are, and when a record may count on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from headrace.core.foreign import errors_of_publishing
from headrace.core.ports import Sink
from headrace.core.uploading.names import is_uploaded
from headrace.core.work import CommitRecord, StagedFile

FileState = Literal["published", "staged", "missing"]


class Publisher(Protocol):
    """Brings the files of one run from where workers stage them to where readers find them."""

    def add(self, record: CommitRecord) -> None:
        """Take a record that is to be journalled, and begin what must be done with its files before that."""
        ...

    def ready(self, *, wait: bool) -> list[CommitRecord]:
        """Return the records that may be journalled now, in the order in which they came; with ``wait`` all."""
        ...

    @property
    def pending(self) -> bool:
        """True while records wait for their files."""
        ...

    def publish(self, records: Iterable[CommitRecord]) -> None:
        """Begin to give the files of journalled records their final names. Doing it again changes nothing."""
        ...

    def settle(self) -> None:
        """Wait until all that ``publish`` was asked for is done, or raise why it is not."""
        ...

    def state(self, file: StagedFile) -> FileState:
        """Say where a committed file is. A file of another size than recorded is missing."""
        ...

    def check_complete(self, *, since: int = 0) -> None:
        """See that every part of the shards from number ``since`` on is there, under its final name, to last."""
        ...

    def finish(self, success: bytes) -> None:
        """Put ``_SUCCESS`` in place, at once or not at all, after everything else."""
        ...

    def close(self) -> None:
        """End what is under way."""
        ...


class FilePublisher:
    """Publishes by the sink itself: by renames, in a folder of this machine."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._records: list[CommitRecord] = []

    def add(self, record: CommitRecord) -> None:
        """Queue the record; its files need nothing more: they are staged on the disk that they stay on."""
        self._records.append(record)

    def ready(self, *, wait: bool) -> list[CommitRecord]:
        """Return all records."""
        records, self._records = self._records, []
        return records

    @property
    def pending(self) -> bool:
        """True while ``ready`` was not asked."""
        return bool(self._records)

    def publish(self, records: Iterable[CommitRecord]) -> None:
        """Rename each file; what workers have uploaded into a store is not in this folder."""
        with errors_of_publishing(self._sink):
            for record in records:
                for file in record.files:
                    if not is_uploaded(file):
                        self._sink.publish(file)

    def settle(self) -> None:
        """What was renamed has its name."""

    def state(self, file: StagedFile) -> FileState:
        """Ask the sink."""
        found = self._sink.state(file)
        return "missing" if found == "staged" and is_uploaded(file) else found

    def check_complete(self, *, since: int = 0) -> None:
        """Nothing is to see: what is published is there."""

    def finish(self, success: bytes) -> None:
        """Have the sink sync what is there, and write ``_SUCCESS``."""
        with errors_of_publishing(self._sink):
            self._sink.finish(success)

    def close(self) -> None:
        """Have the sink let go of what it holds."""
        with errors_of_publishing(self._sink):
            self._sink.close()
