"""`headrace debug journal` prints what a journal holds, also of a damaged one, and executes nothing."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.work import CommitRecord, Ledger, Shard, Split, StagedFile
from headrace.output.journal import Divided, Finished, Journal, Lowered, Opened, Record, Revision, Revoked
from headrace.output.journal_frames import HEAD, MAGIC

Headrace = Callable[..., Any]
RUN = "abcd2345"


def picky(row: dict[str, Any]) -> dict[str, Any]:
    if row["id"] % 100 == 7:
        raise ValueError("not this one")
    return row


@pytest.fixture
def out(place: Path) -> Path:
    """An output of four shards, of each of which one row was rejected."""
    data = hr.read_parquet("trips/").map(picky).with_options(on_error="reject", shard_rows=100)
    data.write_parquet(place / "out")
    return place / "out"


def journal_of(out: Path) -> Path:
    (path,) = out.glob("_headrace/*/journal")
    return path


def by_hand(out: Path, *records: Record) -> Path:
    """Make an output with a journal of these records, and no plan."""
    folder = out / "_headrace" / RUN
    folder.mkdir(parents=True)
    (out / "_headrace" / "current").write_text(RUN)
    journal = Journal.create(folder / "journal", "process")
    for record in records:
        journal.append(record)
        journal.sync()
    journal.close()
    return folder / "journal"


def commit(shard: int, attempt: int = 0, rows: int = 10) -> CommitRecord:
    file = StagedFile(f"{shard}.staged", f"part-{shard:05}-{RUN}.parquet", rows, 2048, 0xABC)
    return CommitRecord(shard, attempt, 1, (file,), Ledger(rows + 2, rows, 2, nulled=1))


def test_each_record_is_there(headrace: Headrace, out: Path) -> None:
    said = headrace("debug", "journal", out, "--json")
    assert (said.code, said.err) == (0, "")
    found = said.json
    assert list(found)[:3] == ["command", "status", "exit_code"]
    assert (found["command"], found["status"], found["damage"]) == ("debug journal", "good", None)
    records = found["records"]
    assert records[0]["offset"] == len(MAGIC)
    assert [one["offset"] + one["length"] for one in records] == [
        *(one["offset"] for one in records[1:]),
        found["bytes"],
    ]
    assert [one["kind"] for one in records if one["kind"] != "commit"] == [
        "opened", "revision", "settled", "finished"
    ]  # fmt: skip
    commits = {one["shard"]: one for one in records if one["kind"] == "commit"}
    assert sorted(commits) == [0, 1, 2, 3]
    for shard, one in commits.items():
        assert (one["attempt"], one["revision"]) == (0, 0)
        assert (one["rows_in"], one["rows_out"], one["rows_rejected"]) == (100, 99, 1)
        part, rejected = one["files"]
        assert (out / part["name"]).stat().st_size == part["size"] and part["rows"] == 99
        assert rejected["name"].startswith("_rejected/") and rejected["rows"] == 1
        (split,) = one["splits"]
        assert split["file"].endswith(f"trips/{shard}.parquet") and split["rows"] == 100
    totals = {"shards": 4, "rows_in": 400, "rows_out": 396, "rows_rejected": 4}
    assert found["committed"] | totals == found["committed"]


def test_in_words(headrace: Headrace, out: Path) -> None:
    said = headrace("debug", "journal", out).out
    assert "shard 2, attempt 0, revision 0: 100 rows in, 99 out, 1 rejected\n" in said
    assert "trips/2.parquet, split 0 to 1: rows 0 to 99\n" in said
    assert "wrote part-00002-" in said and ".parquet: 99 rows, " in said
    assert "output schema: id: int64, km: double, city: string" in said
    assert said.splitlines()[-1].startswith(
        "In force: 4 shards committed, 400 rows in, 396 out, 4 rejected; 8 files"
    )


def test_records_of_every_kind(headrace: Headrace, place: Path) -> None:
    parts = Shard(1, (Split(0, 0, 1),)), Shard(2, (Split(0, 1, 2),), "1.1")
    by_hand(
        place / "out", Opened(RUN, "9.9"), Revision(1, {"0: map(f)": "00"}), Lowered("predict(Net)", 250),
        Divided(parts), commit(0), commit(1), Revoked(0), commit(2), commit(0, attempt=3), Finished(2.5),
    )  # fmt: skip
    said = headrace("debug", "journal", "out").out
    for words in (
        "run abcd2345, Headrace 9.9",
        "revision 1 of the code: 1 function",
        "predict(Net) gets 250 rows at a time at most",
        "shard 1 is done in parts: shards 1 (1), 2 (1.1)",
        "shard 0, attempt 0, revision 1: 12 rows in, 10 out, 2 rejected, 1 with a null",
        "shard 0: its files were gone; it does not count any more, and is done again",
        "shard 2 (1.1), attempt 0",
        "shard 0, attempt 3",
        "part-00000-abcd2345.parquet: 10 rows, 2 KiB, crc32 00000abc",
        "everything is published, after 2.5 s",
        "In force: 3 shards committed, 36 rows in, 30 out, 6 rejected; 3 files, 6 KiB.",
    ):
        assert words in said, words


def test_damage_ends_the_list_and_is_named(headrace: Headrace, out: Path) -> None:
    path = journal_of(out)
    whole = headrace("debug", "journal", out, "--json").json["records"]
    broken = whole[4]
    data = bytearray(path.read_bytes())
    data[broken["offset"] + HEAD.size + 3] ^= 0xFF
    path.write_bytes(data)
    found = headrace("debug", "journal", out, "--json")
    assert found.code == 1 and found.json["status"] == "damaged"
    assert found.json["records"] == whole[:4]
    said = headrace("debug", "journal", out)
    assert said.code == 1
    assert (
        f"damaged at byte {broken['offset']:,}. Valid records follow at byte {whole[5]['offset']:,}."
        in said.out
    )
    assert path.read_bytes() == data


def test_a_torn_tail_is_no_damage(headrace: Headrace, out: Path) -> None:
    path = journal_of(out)
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(b"torn")
    said = headrace("debug", "journal", out)
    assert said.code == 0 and f"Torn at byte {end:,}: 4 bytes that are not a whole record" in said.out
    found = headrace("debug", "journal", out, "--json").json
    assert (found["status"], found["torn_bytes"], len(found["records"])) == ("torn", 4, 8)


@pytest.mark.parametrize("data", [b"", MAGIC[:3], MAGIC, b"something else altogether", bytes(5000)])
def test_a_journal_without_records(headrace: Headrace, place: Path, data: bytes) -> None:
    path = by_hand(place / "out")
    path.write_bytes(data)
    said = headrace("debug", "journal", "out")
    damaged = not MAGIC.startswith(data[: len(MAGIC)])
    assert said.code == damaged and "0 records" in said.out
    assert ("damaged at byte 0. It does not begin like a journal." in said.out) == damaged


def test_nothing_in_it_is_executed_and_no_text_reaches_the_terminal_as_it_is(
    headrace: Headrace, place: Path
) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(place / "harmed"),)

    step = "map(\x1b]0;owned\x07\nIn force: 99 shards)"
    path = by_hand(
        place / "out", Opened(RUN), Lowered(step, 1), Revision(0, {"f": pickle.dumps(Harm()).hex()})
    )
    (path.parent / "plan").write_bytes(pickle.dumps(Harm()))
    said = headrace("debug", "journal", "out")
    assert said.code == 0 and not (place / "harmed").exists()
    assert "\x1b" not in said.out and "\nIn force: 99" not in said.out
    headrace("debug", "journal", "out", "--json").json  # noqa: B018 - it is one object


def test_a_record_of_another_version_is_shown_as_unknown(headrace: Headrace, place: Path) -> None:
    class Odd(Lowered, frozen=True, tag="odd", array_like=True):
        """A record that there is not."""

    by_hand(place / "out", Opened(RUN), Odd("x", 1), commit(0))
    said = headrace("debug", "journal", "out")
    assert said.code == 0 and "cannot be decoded by this version" in said.out
    assert "In force: 1 shard committed" in said.out


def test_which_run(headrace: Headrace, out: Path, place: Path) -> None:
    run = journal_of(out).parent.name
    assert headrace("debug", "journal", out, "--run", run, "--json").json["run"] == run
    said = headrace("debug", "journal", out, "--run", "../..")
    assert said.code == 2 and f"The runs there are {run}" in said.err
    for words in (["debug", "journal", "trips"], ["debug", "journal", "nowhere"]):
        assert headrace(*words).code == 2
    journal_of(out).unlink()
    said = headrace("debug", "journal", out)
    assert said.code == 1 and "cannot be read" in said.err
