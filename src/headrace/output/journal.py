"""The journal: the durable list of commit records, and the only truth about what is done.

Layout of the file: an 8-byte magic, then frames. A frame is ``<u32 length> <u32 crc32> <u64 synced>`` in little
endian, followed by ``length`` bytes of msgpack. The checksum covers everything after itself. ``synced`` is
the length of the file that was known to be on disk when the frame was made; it distinguishes a torn tail (never
synced, so never acted upon: cut off) from damage to records that were acted upon (refused).
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import zlib
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Self

import msgspec

from headrace.core import failpoints
from headrace.core.files import safe_files
from headrace.core.files.safe_files import sync_fd
from headrace.core.work import CommitRecord, Durability
from headrace.errors import JournalDamaged, OutputWriteFailed
from headrace.output.journal_state import FORMAT, Finished, Grown, Opened, Record, Renewed, Revoked, Swapping
from headrace.output.names import other_version

# ------------------------------------------------------------ frames


MAGIC = b"HEADRJ1\n"
HEAD = struct.Struct("<IIQ")

_CHUNK = 1 << 20


def valid_length(path: Path, data: memoryview) -> int:
    """Return where valid frames end; refuse damage to what was once synced.

    Whatever follows them was never synced, so never acted upon: part of a frame, or the zeros, gigabytes of them if
    need be, by which some file systems show what did not reach the disk.
    """
    if data[: len(MAGIC)] != MAGIC:
        if MAGIC.startswith(bytes(data[: len(MAGIC)])):
            return 0
        raise JournalDamaged(_damaged(path, 0, "It does not begin like a journal."))
    at = len(MAGIC)
    while (frame := _frame(data, at)) is not None:
        at = frame[0]
    for start in _chunks(path, at + 1, len(data) - HEAD.size + 1):
        for later in _candidates(data, start, at):
            frame = _frame(data, later)
            if frame is not None and frame[1] > at:
                raise JournalDamaged(_damaged(path, at, f"Valid records follow at byte {later:,}."))
    return at


def frames(data: memoryview) -> Iterator[tuple[int, int]]:
    """Yield where each frame begins and ends, up to the first that is not valid."""
    at = len(MAGIC)
    while data[: len(MAGIC)] == MAGIC and (frame := _frame(data, at)) is not None:
        yield at, frame[0]
        at = frame[0]


def _chunks(path: Path, start: int, end: int) -> Iterator[int]:
    """Yield where chunks begin that may hold anything: holes in a file are passed over at once."""
    if start >= end:
        return
    with safe_files.file(path) as file:
        while start < end:
            try:
                start = max(start, os.lseek(file.fileno(), start, os.SEEK_DATA))
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                    return
            yield start
            start += _CHUNK


def _candidates(data: memoryview, start: int, at: int) -> list[int]:
    """Return where, in the chunk from ``start`` on, a frame may begin that was made after what ends at ``at`` was
    synced: millions of bytes at a time, most of them are none."""
    import numpy as np

    if not np.frombuffer(data, np.uint8, min(_CHUNK, len(data) - start), start).any():
        return []  # no frame has a length of zero
    start = max(at + 1, start - 3)  # three bytes of a length may be zeros, at the end of the chunk before
    end = min(start + _CHUNK + 3, len(data) - HEAD.size + 1)
    found: list[int] = []
    for shift in range(min(8, end - start)):
        first = start + shift
        count = (end - first + 7) // 8
        lengths = np.frombuffer(data, "<u8", count, first) & 0xFFFFFFFF
        synced = np.frombuffer(data, "<u8", count, first + 8)
        places = np.arange(first, first + 8 * count, 8, dtype=np.uint64)
        ends = places + lengths.astype(np.uint64) + np.uint64(HEAD.size)
        fits = (lengths > 0) & (synced > at) & (synced <= places) & (ends <= len(data))
        found += places[fits].tolist()
    return sorted(found)


def _frame(data: memoryview, at: int) -> tuple[int, int] | None:
    """Return ``(end, synced)`` of a valid frame at ``at``, else None."""
    if at + HEAD.size > len(data):
        return None
    length, crc, synced = HEAD.unpack_from(data, at)
    end = at + HEAD.size + length
    if length == 0 or end > len(data) or synced > at:
        return None
    return (end, synced) if zlib.crc32(data[at + 8 : end]) == crc else None


def _damaged(path: Path, at: int, why: str) -> str:
    return (
        f"The journal {path} is damaged at byte {at:,}. {why} What it says about finished work cannot be trusted, so "
        "nothing was changed. Restore the file from a copy, or write to a new folder."
    )


_COVERED = struct.Struct("<Q")

Append = Callable[[bytes], None]
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_COMMIT = _encoder.encode("commit")


class _ShardOf(msgspec.Struct, tag="commit", array_like=True):
    """The beginning of a commit record."""

    shard: int


_shard_decoder = msgspec.msgpack.Decoder(_ShardOf)


class Contents:
    """The valid records of a journal, as they were when it was read. Decoded on the way, never all at once."""

    def __init__(self, path: Path, data: memoryview, end: int) -> None:
        self._path = path
        self._data = data
        self._end = end
        self._known: dict[bool, dict[int, int]] = {}  # what ``_counting`` has found
        self._others: list[memoryview] | None = None  # what is no commit record

    def __len__(self) -> int:
        """Return how many bytes it has; a journal only grows, so of two readings of one these tell whether it has."""
        return self._end

    @property
    def torn(self) -> int:
        """How many bytes follow it, of a driver that was killed while it wrote."""
        return len(self._data) - self._end

    def __iter__(self) -> Iterator[Record]:
        for payload in self._payloads():
            yield self._decoded(payload)

    def notes(self) -> Iterator[Record]:
        """Yield everything but the commit records."""
        if self._others is None:
            self._others = [payload for payload in self._payloads() if not _is_commit(payload)]
        yield from map(self._decoded, self._others)

    def before(self, run: int) -> Contents:
        """Return the records from before the output's run of this number began."""
        at = len(MAGIC)
        for payload in self._payloads():
            if not _is_commit(payload):
                record = self._decoded(payload)
                if isinstance(record, Grown) and record.number == run:
                    return Contents(self._path, self._data[:at], at)
            at += HEAD.size + len(payload)
        return self

    def lasting(self) -> Iterator[CommitRecord]:
        """Yield the records in force without those of shards that a further run replaces, once it is complete."""
        yield from map(self._commit_at, self._counting(lasting=True).values())

    @property
    def taking_over(self) -> bool:
        """True if a run was taking the place of what was there, and has not ended."""
        ends: list[Record] = [note for note in self.notes() if isinstance(note, Swapping | Finished)]
        return bool(ends) and isinstance(ends[-1], Swapping)

    def leaving(self) -> frozenset[str]:
        """Return the files of records that count no more; of a run that has not ended, they may be there still."""
        last: Record | None = None
        for note in self.notes():
            last = note if isinstance(note, Finished | Swapping | Grown | Revoked) else last
        if last is None or isinstance(last, Finished):
            return frozenset()
        ever = (record for record in self if isinstance(record, CommitRecord))
        kept = {file.name for record in self.in_force() for file in record.files}
        return frozenset(file.name for record in ever for file in record.files) - kept

    def in_force(self) -> Iterator[CommitRecord]:
        """Yield the commit records that were not revoked, in the order in which they were made.

        A shard is committed once. Two equal records, as a copy may leave them, count once; two that differ are
        damage.
        """
        yield from map(self._commit_at, self._counting(lasting=False).values())

    def last_of(self, shards: Container[int]) -> dict[int, CommitRecord]:
        """Return the last record that each of these shards ever had, be it in force or not."""
        ever = (record for record in self if isinstance(record, CommitRecord))
        return {record.shard: record for record in ever if record.shard in shards}

    def in_order(self, places: Sequence[tuple[int, ...]]) -> Iterator[CommitRecord]:
        """Yield the records that ``lasting`` has, in the order of their shards, whose places are these."""
        found = self._counting(lasting=True)
        for shard in sorted(found, key=lambda shard: places[shard] if shard < len(places) else (shard,)):
            yield self._commit_at(found[shard])

    def _counting(self, *, lasting: bool) -> dict[int, int]:
        """Return where the commit records are that count, by shards; ``lasting``: once a hidden run is complete."""
        if lasting in self._known:
            return self._known[lasting]
        found: dict[int, int] = {}
        twice: set[int] = set()
        replaced: list[int] = []
        at = len(MAGIC)
        for payload in self._payloads():
            gone: Sequence[int] = ()
            place, at = at, at + HEAD.size + len(payload)
            if _is_commit(payload):
                try:
                    shard = _shard_decoder.decode(payload).shard
                except msgspec.DecodeError:
                    shard = self._commit(payload).shard  # which says what is wrong
                first = found.setdefault(shard, place)
                if first != place and self._at(first) != payload:
                    twice.add(shard)
                continue
            record = self._decoded(payload)
            if isinstance(record, Revoked):
                gone = [record.shard]
            elif isinstance(record, Renewed):
                replaced += record.replaces
            if isinstance(record, Swapping) or (
                isinstance(record, Renewed) and (lasting or not record.hidden)
            ):
                gone, replaced = replaced, []
            for shard in gone:
                found.pop(shard, None)
                twice.discard(shard)
        if twice:
            raise JournalDamaged(
                f"{self._path} records part {min(twice)} of the input twice, with different contents. It is not "
                "known which of the two is right: restore the output from a copy, or make it again with "
                "mode='overwrite'."
            )
        self._known[lasting] = found
        return found

    def _at(self, place: int) -> memoryview:
        start = place + HEAD.size
        return self._data[start : start + HEAD.unpack_from(self._data, place)[0]]

    def _commit_at(self, place: int) -> CommitRecord:
        return self._commit(self._at(place))

    def _commit(self, payload: memoryview) -> CommitRecord:
        record = self._decoded(payload)
        assert isinstance(record, CommitRecord)
        return record

    def _decoded(self, payload: memoryview) -> Record:
        try:
            record = _decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise JournalDamaged(
                other_version(f"The journal {self._path} holds a record", self._writers(payload))
            ) from error
        if isinstance(record, Opened) and record.format > FORMAT:
            what = f"The journal {self._path} has the format {record.format} of outputs"
            raise JournalDamaged(other_version(what, record.headrace))
        return record

    def _writers(self, until: memoryview) -> str:
        """Return the version that says it wrote the records before this one."""
        version = ""
        for payload in self._payloads():
            if payload == until:
                break
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                record = _decoder.decode(payload)
                version = record.headrace if isinstance(record, Opened) else version
        return version

    def _payloads(self) -> Iterator[memoryview]:
        at = len(MAGIC)
        while at < self._end:
            start = at + HEAD.size
            at = start + HEAD.unpack_from(self._data, at)[0]
            yield self._data[start:at]


def _is_commit(payload: memoryview) -> bool:
    return payload[1 : 1 + len(_COMMIT)] == _COMMIT  # after the byte that opens a short array


class Journal:
    """An open journal, positioned at its end. One driver holds it, as it holds the output.

    ``first``: makes frames last elsewhere before the file at ``path`` has them, which is then a copy.
    """

    def __init__(
        self, path: Path, fd: int, length: int, durability: Durability, first: Append | None = None
    ) -> None:
        self._path = path
        self._fd = fd
        self._first = first
        self.durability = durability
        self._synced = length
        self._length = length
        self._buffer: list[bytes] = []
        self._broken = False
        if length == 0:
            self._buffer.append(MAGIC)
            self._length = len(MAGIC)

    @classmethod
    def create(cls, path: Path, durability: Durability, *, first: Append | None = None) -> Self:
        """Make a new journal; its folder must exist."""
        with _writing(path):
            fd = safe_files.opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        return cls(path, fd, 0, durability, first)

    @classmethod
    def open(
        cls, path: Path, durability: Durability, *, first: Append | None = None
    ) -> tuple[Self, Contents]:
        """Open a journal for going on, and return it with what it holds; cuts a torn tail.

        What a driver that was killed had written but not synced counts as committed, so it is synced here,
        before anybody acts upon it.
        """
        with _writing(path):
            fd = safe_files.opened(path, os.O_RDWR)
            try:
                data = safe_files.view(fd)
                end = valid_length(path, data)
                if end < len(data):
                    os.ftruncate(fd, end)
                os.lseek(fd, end, os.SEEK_SET)
                if durability == "power":
                    sync_fd(fd)
            except BaseException:
                os.close(fd)
                raise
        return cls(path, fd, end, durability, first), Contents(path, data, end)

    def append(self, record: Record) -> None:
        """Add a record; it lasts from the next ``sync`` on."""
        payload = _encoder.encode(record)
        covered = _COVERED.pack(self._synced)
        crc = zlib.crc32(payload, zlib.crc32(covered))
        self._buffer.append(HEAD.pack(len(payload), crc, self._synced) + payload)
        self._length += HEAD.size + len(payload)

    def sync(self) -> None:
        """Write what was appended and make it last.

        Whatever interrupts it, an error or Ctrl-C, ends the journal: fsync is never retried, and what was
        appended must not pass for committed because a second ``sync`` found nothing left to write.
        """
        if self._broken:
            raise OutputWriteFailed(f"The journal {self._path} failed before; nothing more is written to it.")
        if not self._buffer:
            return
        frames, self._buffer = b"".join(self._buffer), []
        self._broken = True
        with _writing(self._path):
            if self._first is not None:
                self._first(frames)
            self._write(frames)
        self._broken = False
        self._synced = self._length
        failpoints.hit("journal.synced")

    def _write(self, frames: bytes) -> None:
        failpoints.hit("journal.append")
        written = 0
        while written < len(frames):
            written += os.write(self._fd, memoryview(frames)[written:])
        failpoints.hit("journal.sync")
        if self.durability == "power":
            sync_fd(self._fd)

    def abandon(self) -> None:
        """Drop what was not synced, and take no more."""
        self._buffer, self._broken = [], True

    def close(self) -> None:
        """Let go of the file; what was not synced is dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def read(path: Path) -> Contents:
    """Read a journal without changing it; a torn tail is left out."""
    try:
        data = safe_files.mapped(path)
    except OSError as error:
        raise JournalDamaged(
            f"The journal {path} cannot be read: {error.strerror}. Without it, it is not known which work is "
            "finished: restore the file from a copy, or write to a new folder."
        ) from error
    return Contents(path, data, valid_length(path, data))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OutputWriteFailed(
            f"The journal {path} could not be written: {error.strerror}. The run ends here; finished work is kept. "
            "Make room or fix the disk, then run the same command again."
        ) from error
