"""ORC files, and what becomes of damaged ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import orc

import headrace as hr
from headrace.annex.formats.orc import OrcSource
from headrace.core.source_ports import Source
from headrace.errors import NothingMatched, SchemaMismatch, UnreadableFile
from headrace.testing.sources import SourceContract

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}


def write(path: Path, rows: int, **options: Any) -> Path:
    texts = [f"text {i * 7919 % 10_007}" for i in range(rows)]
    orc.write_table(pa.table({"id": range(rows), "t": texts}), path, **options)
    return path


class TestOrc(SourceContract):
    folder: Path

    def make(self) -> Source:
        if not (self.folder / "a.orc").exists():
            write(self.folder / "a.orc", 20)
            orc.write_table(pa.table({"x": [1.5, 2.5], "id": [7, 8]}), self.folder / "b.orc")
            write(self.folder / "d.orc", 3)
        return OrcSource(self.folder, include_paths=True)

    def make_bad(self) -> tuple[Source, list[int]]:
        write(self.folder / "a.orc", 5)
        damaged = write(self.folder / "b.orc", 4000, compression="zstd")
        data = bytearray(damaged.read_bytes())
        data[2000:4000] = b"\xff" * 2000
        damaged.write_bytes(data)
        write(self.folder / "c.orc", 5)
        return OrcSource(self.folder), list(range(5, 4005))


class TestStripes(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.annex.formats.orc._SPLIT_BYTES", 64)

    def make(self) -> Source:
        path = self.folder / "a.orc"
        if not path.exists():
            write(path, 30_000, stripe_size=4096, compression="zstd", dictionary_key_size_threshold=0)
        return OrcSource(path)

    def test_a_stripe_is_a_split(self, source: Source) -> None:
        assert len(source.splits()) > 1 and {split.rows for split in source.splits()} == {-1}
        assert str(source.locate(source.splits()[1], 3)).endswith("a.orc, row 3 of stripe 1")


def test_rows_come_as_they_were_written(tmp_path: Path) -> None:
    table = pa.table(
        {
            "l": [[1], None],
            "s": [{"a": 1}, None],
            "d": pa.array([1, None], pa.decimal128(9, 2)),
            "b": [b"\0", None],
            "t": pa.array([10**18, None], pa.timestamp("ns")),
        }
    )
    orc.write_table(table, tmp_path / "a.orc")
    data = hr.read_orc(tmp_path).with_options(**QUIET)
    assert data.to_arrow().equals(table) and data.count() == 2
    orc.write_table(table.slice(0, 0), tmp_path / "b.orc")
    write(tmp_path / "c.orc", 2)
    with pytest.raises(SchemaMismatch, match="'t' is timestamp"):
        hr.read_orc(tmp_path).schema()
    (tmp_path / "c.orc").unlink()
    run = hr.read_orc(tmp_path).with_options(**QUIET).select_columns(["t"])
    result = run.write_parquet(tmp_path.parent / f"{tmp_path.name}-out")
    assert result.rows == 2 and result.ledger.read == 2, "a file without rows gives none"


@pytest.mark.parametrize("damage", ["cut", "empty", "text"])
def test_a_file_that_is_none_is_named(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.orc", 100)
    data = path.read_bytes()
    path.write_bytes({"cut": data[:-30], "empty": b"", "text": b"id,t\n1,a\n" * 9}[damage])
    with pytest.raises(UnreadableFile, match=r"Cannot read '.*/a\.orc' as ORC: .*Restore the file"):
        hr.read_orc(path).count()


def test_damage_among_stripes_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.annex.formats.orc._SPLIT_BYTES", 64)
    path = write(
        tmp_path / "a.orc", 30_000, stripe_size=4096, compression="zstd", dictionary_key_size_threshold=0
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 900] = b"\xff" * 900
    path.write_bytes(data)
    run = hr.read_orc(path).with_options(on_error="reject", **QUIET)
    with pytest.raises(UnreadableFile, match=r"stripe \d+ of '.*a\.orc'"):
        run.write_parquet(tmp_path / "out")


def test_wrong_input(tmp_path: Path) -> None:
    with pytest.raises(NothingMatched):
        hr.read_orc(tmp_path).count()
    write(tmp_path / "a.orc", 3)
    orc.write_table(pa.table({"id": ["x"]}), tmp_path / "b.orc")
    with pytest.raises(SchemaMismatch, match="'id' is int64 in"):
        hr.read_orc(tmp_path).schema()
