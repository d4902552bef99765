"""The journal: what was synced is there, what was torn is cut, what was damaged is refused."""

from __future__ import annotations

import os
import random
import struct
import tempfile
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossed import few
from headrace.core import failpoints
from headrace.core.work import CommitRecord, Ledger, StagedFile, Timings
from headrace.errors import JournalDamaged, OutputWriteFailed
from headrace.output import journal as journals
from headrace.output.journal import MAGIC, Journal
from headrace.output.journal_state import Finished, Opened, Record, Revision, Revoked, Settled, Swapping
from headrace.version import __version__


def commit(shard: int, files: int = 1) -> CommitRecord:
    staged = tuple(
        StagedFile(f"{shard}-{i}.staged", f"part-{shard}-{i}", 3, 400 + i, 7) for i in range(files)
    )
    return CommitRecord(shard, 0, 0, staged, Ledger(3, 3, 0, ((3, 3),)), Timings(0.1, 0.2, 0.3, 0.4), (3,))


GROUPS: list[list[Record]] = [
    [Opened("abcdefgh"), Revision(0, {"0: map(f)": "00ff"})],
    [Settled(b"schema" * 9)],
    [commit(0), commit(2), commit(1, files=0)],
    [commit(3, files=3)],
    [Revoked(2), commit(4)],
    [commit(2)],
    [Swapping("oldoldol", 1.5, {"ledger": {"read": 3}}), Finished(2.5)],
]
ALL = [record for group in GROUPS for record in group]


def write(path: Path, groups: list[list[Record]], durability: str = "process") -> list[int]:
    """Write each group with one sync; return the length of the file after each."""
    journal = Journal.create(path, durability)  # type: ignore[arg-type]
    lengths = []
    for group in groups:
        for record in group:
            journal.append(record)
        journal.sync()
        lengths.append(path.stat().st_size)
    journal.close()
    return lengths


def ends(data: bytes) -> list[int]:
    """Where each frame ends."""
    found, at = [], len(MAGIC)
    while at < len(data):
        at += 16 + struct.unpack_from("<I", data, at)[0]
        found.append(at)
    return found


@pytest.mark.parametrize("durability", ["power", "process"])
def test_what_was_synced_is_there(tmp_path: Path, durability: str) -> None:
    write(tmp_path / "journal", GROUPS, durability)
    assert list(journals.read(tmp_path / "journal")) == ALL
    journal, contents = Journal.open(tmp_path / "journal", durability)  # type: ignore[arg-type]
    assert list(contents) == ALL
    journal.close()


def test_what_was_not_synced_is_not(tmp_path: Path) -> None:
    write(tmp_path / "journal", GROUPS[:2])
    journal, _ = Journal.open(tmp_path / "journal", "power")
    journal.append(commit(9))
    journal.close()
    assert list(journals.read(tmp_path / "journal")) == ALL[:3]


def test_notes_and_commits_in_force(tmp_path: Path) -> None:
    write(tmp_path / "journal", GROUPS)
    contents = journals.read(tmp_path / "journal")
    assert list(contents.notes()) == [record for record in ALL if not isinstance(record, CommitRecord)]
    assert [record.shard for record in contents.in_force()] == [0, 1, 3, 4, 2]


def test_a_commit_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    write(tmp_path / "journal", [[Opened("abcdefgh"), commit(0), commit(1)], [commit(0), Revoked(1)]])
    contents = journals.read(tmp_path / "journal")
    assert list(contents.in_force()) == [commit(0)]
    assert list(contents.in_order([(0,), (1,)])) == [commit(0)]


def test_two_commits_of_a_shard_that_differ_are_damage(tmp_path: Path) -> None:
    write(tmp_path / "journal", [[Opened("abcdefgh"), commit(0)], [commit(0, files=2)]])
    contents = journals.read(tmp_path / "journal")
    for records in (contents.in_force(), contents.in_order([(0,)])):
        with pytest.raises(JournalDamaged, match="records part 0 of the input twice"):
            list(records)


def test_torn_at_every_byte(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, GROUPS)
    data = path.read_bytes()
    places = ends(data)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        whole = sum(place <= length for place in places)
        assert list(journals.read(path)) == ALL[:whole]
        assert path.stat().st_size == length  # reading changes nothing
        journal, contents = Journal.open(path, "process")
        assert list(contents) == ALL[:whole]
        journal.append(commit(77))
        journal.sync()
        journal.close()
        assert list(journals.read(path)) == [*ALL[:whole], commit(77)]


def test_torn_inside_a_group_whose_end_was_written(tmp_path: Path) -> None:
    """Pages of one write may reach the disk in any order: nothing after a hole was ever acted upon."""
    path = tmp_path / "journal"
    lengths = write(path, GROUPS[:3])
    data = bytearray(path.read_bytes())
    data[lengths[1] : lengths[1] + 20] = bytes(20)
    path.write_bytes(data)
    journal, contents = Journal.open(path, "process")
    journal.close()
    assert list(contents) == ALL[:3]
    assert path.stat().st_size == lengths[1]


def test_a_flipped_bit_before_synced_records_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lengths = write(path, GROUPS)
    data = path.read_bytes()
    for at in range(lengths[-2]):
        bad = bytearray(data)
        bad[at] ^= 1 << (at % 8)
        path.write_bytes(bad)
        with pytest.raises(JournalDamaged) as caught:
            Journal.open(path, "process")
        assert "\n" not in str(caught.value) and "damaged at byte" in str(caught.value)
        assert path.read_bytes() == bad


def test_a_flipped_bit_in_the_last_group_is_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    lengths = write(path, GROUPS[:4])
    data = path.read_bytes()
    for at in range(lengths[-2], lengths[-1]):
        bad = bytearray(data)
        bad[at] ^= 1 << (at % 8)
        path.write_bytes(bad)
        assert list(journals.read(path)) == [record for group in GROUPS[:3] for record in group]


def test_damage_is_found_after_a_resume(tmp_path: Path) -> None:
    """Records that an earlier driver wrote are synced by the next one before it adds its own."""
    path = tmp_path / "journal"
    lengths = write(path, GROUPS[:3])
    journal, _ = Journal.open(path, "power")
    journal.append(Revoked(0))
    journal.sync()
    journal.close()
    data = bytearray(path.read_bytes())
    data[lengths[1] + 30] ^= 1
    path.write_bytes(data)
    with pytest.raises(JournalDamaged):
        journals.read(path)


def test_damage_leaves_no_descriptor_open(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"something else")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JournalDamaged):
        Journal.open(path, "process")
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("point", ["journal.append", "journal.sync"])
def test_a_failed_journal_stays_failed(tmp_path: Path, point: str, durability: str) -> None:
    journal = Journal.create(tmp_path / "journal", durability)  # type: ignore[arg-type]
    journal.append(ALL[0])
    journal.sync()
    journal.append(ALL[1])
    failpoints.activate({point: "EIO"})
    try:
        with pytest.raises(OutputWriteFailed):
            journal.sync()
    finally:
        failpoints.activate({})
    for _ in range(2):  # with nothing left to write, and with more
        with pytest.raises(OutputWriteFailed, match="failed before"):
            journal.sync()
        journal.append(ALL[2])
    journal.close()


def test_an_interrupted_sync_ends_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    journal = Journal.create(tmp_path / "journal", "power")
    journal.append(ALL[0])
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        journal.sync()
    monkeypatch.undo()
    with pytest.raises(OutputWriteFailed):
        journal.sync()
    journal.close()


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write_all(fd, data[:7]))
    write(tmp_path / "journal", GROUPS)
    assert list(journals.read(tmp_path / "journal")) == ALL


def test_a_journal_is_never_created_over_another(tmp_path: Path) -> None:
    write(tmp_path / "journal", GROUPS)
    with pytest.raises(OutputWriteFailed):
        Journal.create(tmp_path / "journal", "power")
    assert list(journals.read(tmp_path / "journal")) == ALL


class Later(msgspec.Struct, frozen=True, tag="later", array_like=True):
    """A kind of record that only a newer version knows."""

    what: str


@pytest.mark.parametrize(
    "record",
    [Later("x"), ["commit", 1], ["commit", "x", None], 7, {}, ["opened"], Opened("abcdefgh", "9.8.7", 2)],
)
def test_a_record_of_another_version_is_refused_and_says_whose_it_is(tmp_path: Path, record: Any) -> None:
    path = tmp_path / "journal"
    records = [Opened("abcdefgh", __version__), commit(0), Opened("abcdefgh", "9.8.7"), record, Revoked(0)]
    write(path, [records])
    data = path.read_bytes()
    for read in (list, lambda found: list(found.in_order([(0,)])), lambda found: list(found.in_force())):
        with pytest.raises(JournalDamaged, match=r"does not know: Headrace 9\.8\.7 has written it"):
            read(journals.read(path))
        write_again = Journal.open(path, "process")
        write_again[0].close()
    assert path.read_bytes() == data


def test_a_record_of_nobody_knows_whom_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "journal", [[Opened("abcdefgh"), Later("x")]])  # type: ignore[list-item]
    with pytest.raises(JournalDamaged, match="another version of Headrace has written it"):
        list(journals.read(tmp_path / "journal"))


@pytest.mark.timeout(60)
def test_gigabytes_of_zeros_behind_a_journal_are_a_torn_tail() -> None:
    with tempfile.TemporaryDirectory(
        dir="/var/tmp"
    ) as disk:  # in memory, what is mapped is not a hole any more
        path = Path(disk, "journal")
        lengths = write(path, GROUPS)
        os.truncate(path, 3 << 30)
        assert list(journals.read(path)) == ALL
        journal, contents = Journal.open(path, "process")
        journal.close()
        assert list(contents) == ALL and path.stat().st_size == lengths[-1]


def test_a_record_behind_many_zeros_is_found(tmp_path: Path) -> None:
    """Wherever it stands: what was synced before it is gone, and nobody knows what that was."""
    path = tmp_path / "journal"
    lengths = write(path, GROUPS)
    data = path.read_bytes()
    for gap in [*range(1 << 20, (1 << 20) + 40), (3 << 20) - 3, (3 << 20) + 1]:
        at = lengths[-2] + gap - lengths[-1] % 7
        covered = struct.pack("<Q", lengths[-2] + 1)
        frame = struct.pack("<II", 3, zlib.crc32(b"abc", zlib.crc32(covered))) + covered + b"abc"
        path.write_bytes(data[: lengths[-2]].ljust(at, b"\0") + frame)
        with pytest.raises(JournalDamaged, match=f"follow at byte {at:,}"):
            journals.read(path)


@pytest.mark.timeout(60)
def test_megabytes_of_garbage_behind_a_journal_are_a_torn_tail(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    write(path, GROUPS)
    with path.open("ab") as file:
        file.write(random.Random(1).randbytes(4 << 20))
    assert list(journals.read(path)) == ALL


names = st.text(max_size=12)
files = st.builds(
    StagedFile, names, names, st.integers(0, 9), st.integers(0, 2**40), st.integers(0, 2**32 - 1)
)
records = st.one_of(
    st.builds(Opened, names),
    st.builds(Revision, st.integers(0, 99), st.dictionaries(names, names, max_size=3)),
    st.builds(Settled, st.binary(max_size=200)),
    st.builds(Revoked, st.integers(0, 9)),
    st.builds(Finished, st.floats(0, 1e9)),
    st.builds(
        CommitRecord,
        st.integers(0, 9),
        st.integers(0, 3),
        st.just(0),
        st.lists(files, max_size=3).map(tuple),
        st.just(Ledger(1, 2, 3, ((4, 5),))),
    ),
)


@settings(max_examples=few(24))
@given(
    sessions=st.lists(st.lists(st.lists(records, max_size=4), max_size=3), min_size=1, max_size=4),
    torn=st.data(),
)
def test_append_sync_crash_reopen(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[list[list[Record]]], torn: st.DataObject
) -> None:
    """Each session appends groups and crashes with some bytes of an unsynced group on disk."""
    path = tmp_path_factory.mktemp("journal") / "journal"
    Journal.create(path, "process").close()
    kept: list[Record] = []
    for groups in sessions:
        journal, contents = Journal.open(path, "process")
        assert list(contents) == kept
        for group in groups:
            for record in group:
                journal.append(record)
            journal.sync()
            kept += group
        synced = path.stat().st_size
        journal.append(Revoked(1))
        journal.sync()
        journal.close()
        with path.open("r+b") as file:
            file.truncate(torn.draw(st.integers(synced, max(synced, path.stat().st_size - 1))))
    revoked_after = {record.shard: i for i, record in enumerate(kept) if isinstance(record, Revoked)}
    in_force: dict[int, CommitRecord] = {}
    for i, record in enumerate(kept):
        if not isinstance(record, CommitRecord) or revoked_after.get(record.shard, -1) >= i:
            continue
        if in_force.setdefault(record.shard, record) != record:
            with pytest.raises(JournalDamaged, match="twice"):
                list(journals.read(path).in_force())
            return
    assert list(journals.read(path).in_force()) == list(in_force.values())
