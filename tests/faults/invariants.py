"""What must be true of a finished output, whatever happened on the way."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headrace.core.door import annex
from headrace.readers.files import read_rejected
from headrace.result import Result

HOME = "_headrace"


REPORT = {"report.html"} if annex("report") else set()  # which an annex makes


def check(
    output: Path, expected: list[dict[str, Any]], again: Callable[[], Result], rejected: Sequence[int] = ()
) -> None:
    """Assert that ``output`` is complete, exact and clean, and that running ``again`` changes nothing.

    ``rejected`` are the ids of the rows that were set aside.
    """
    success = json.loads((output / "_SUCCESS").read_text())
    listed = manifest(output, success)
    check_files(output, listed)
    files = [file for file in listed if not file["name"].startswith("_rejected/")]
    assert rows_of(output) == expected
    check_rejected(output, rejected, [file["name"] for file in listed if file not in files])
    assert success["rows"] == len(expected)
    assert success["files"] == len(files)
    assert success["bytes"] == sum(file["size"] for file in files)
    assert "ledger" in success
    check_runs(output, success)
    check_listing(output, success["run"], {file["name"] for file in files})
    assert_unlocked(output)
    before = stamps(output)
    result = again()
    assert (result.rows, result.files, result.bytes) == (len(expected), len(files), success["bytes"])
    assert result.ledger.written == len(expected)
    assert result.run == success["run"] and result.resumed
    assert stamps(output) == before
    check_listing(output, success["run"], {file["name"] for file in files})
    assert_unlocked(output)


def check_runs(output: Path, success: dict[str, Any]) -> None:
    """The runs that ``_SUCCESS`` names add up to the output, and each has a record of its own."""
    runs, first = success["runs"], success["run"]
    assert [each["run"] for each in runs] == [first, *(f"{first}-{i}" for i in range(2, len(runs) + 1))]
    for name in ("rows", "files", "bytes"):
        assert sum(each[name] for each in runs) == success[name], name
    assert all(each["began"] <= each["ended"] for each in runs)
    records = {f"events-{number}.jsonl" for number in range(1, len(runs))}
    assert {path.name for path in (output / HOME / first).glob("events-*")} == records


def check_rejected(output: Path, rejected: Sequence[int], names: list[str]) -> None:
    """The rows that were set aside are there once, in files that are listed."""
    folder = output / "_rejected"
    assert folder.exists() == bool(rejected)
    if rejected:
        assert sorted(f"_rejected/{name}" for name in os.listdir(folder)) == sorted(names)
        assert read_rejected(output).to_arrow().column("id").to_pylist() == list(rejected)


def manifest(output: Path, success: dict[str, Any]) -> list[dict[str, Any]]:
    """Read the manifest that ``_SUCCESS`` names; its hash must be the one that stands there."""
    data = (output / success["manifest"]).read_bytes()
    assert hashlib.sha256(data).hexdigest() == success["manifest_sha256"]
    return [json.loads(line) for line in data.splitlines()]


def check_files(output: Path, files: list[dict[str, Any]]) -> None:
    """Every listed file is there with its size, checksum and rows."""
    for file in files:
        data = (output / file["name"]).read_bytes()
        assert (len(data), zlib.crc32(data)) == (file["size"], file["crc32"]), file["name"]
        if file["name"].endswith(".parquet"):
            assert pq.read_metadata(output / file["name"]).num_rows == file["rows"]


def check_listing(output: Path, run: str, names: set[str]) -> None:
    """No file anywhere that is not listed: not in the folder, not in ours, not in staging."""
    folders = {str(Path(name).parents[-2]) for name in names if "/" in name}
    top = {name for name in names if "/" not in name} | folders
    assert set(os.listdir(output)) - {"_rejected"} == {HOME, "_SUCCESS"} | top
    assert set(parts(output)) == names
    assert set(os.listdir(output / HOME)) == {"lock", "current", run}
    assert (output / HOME / "current").read_text().strip() == run
    told = {"events.jsonl", *REPORT}
    told |= {path.name for path in (output / HOME / run).glob("retried")}
    told |= {path.name for path in (output / HOME / run).glob("*-[0-9]*.json*")}  # of earlier runs
    assert set(os.listdir(output / HOME / run)) - {"staging"} == {"plan", "journal", "manifest"} | told
    staging = output / HOME / run / "staging"
    assert not staging.exists() or not list(staging.iterdir())


def assert_unlocked(output: Path) -> None:
    """Nobody holds the output's lock."""
    with (output / HOME / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def rows_of(output: Path) -> list[dict[str, Any]]:
    """All rows, in the order of the parts' names; of parts in folders, in that of ids."""
    found = [row for name in parts(output) for row in rows_in(output, name)]
    return sorted(found, key=lambda row: int(row["id"])) if any(output.glob("shelf=*")) else found


def rows_in(output: Path, name: str) -> list[dict[str, Any]]:
    """The rows of one part; those in a folder are those that belong there."""
    rows: list[dict[str, Any]] = pq.ParquetFile(output / name).read().to_pylist()
    if "/" in name:
        assert {f"shelf={row['id'] % 3}" for row in rows} == {os.path.dirname(name)}
    return rows


def parts(output: Path) -> list[str]:
    """Names of the published parts, in order."""
    shelves = [f"shelf={number}" for number in range(3) if (output / f"shelf={number}").exists()]
    flat = [name for name in os.listdir(output) if not name.startswith("_") and name not in shelves]
    return sorted(flat) + [
        f"{shelf}/{name}" for shelf in shelves for name in sorted(os.listdir(output / shelf))
    ]


def stamps(output: Path) -> dict[str, tuple[int, int]]:
    """Time of change and inode of each published file: the same as long as nobody touched it."""
    found = {}
    for name in [*parts(output), "_SUCCESS"]:
        status = (output / name).stat()
        found[name] = (status.st_mtime_ns, status.st_ino)
    return found
