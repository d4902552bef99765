"""Tar archives of samples, as WebDataset writes them and as they come broken."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.formats.webdataset.source import WebDatasetSource
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, SchemaMismatch, UnreadableFile
from headrace.testing.sources import SourceContract


def tar(path: Path, members: Iterable[tuple[str, bytes]], mode: Any = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def members(first: int, rows: int) -> Iterable[tuple[str, bytes]]:
    for i in range(first, first + rows):
        yield f"d/{i:04}.txt", f"text {i}".encode()
        yield f"d/{i:04}.cls", str(i).encode()
        if i % 3:
            yield f"d/{i:04}.meta.json", json.dumps({"i": i, "odd": bool(i % 2)}).encode()


class TestTar(SourceContract):
    folder: Path

    def make(self) -> Source:
        if not (self.folder / "a.tar").exists():
            tar(self.folder / "a.tar", members(0, 10))
            tar(self.folder / "b.tar.gz", members(10, 10), "w:gz")
        return WebDatasetSource(self.folder, include_paths=True)

    def make_bad(self) -> tuple[Source, list[int]]:
        found = [
            ("0.cls", b"1"),
            ("1.cls", b"one"),
            ("2.cls", b"2"),
            ("2.cls", b"3"),
            ("3.cls", b"3"),
            ("0.cls", b"4"),  # its sample was before
            ("4.cls", b"5"),
        ]
        return WebDatasetSource(tar(self.folder / "bad.tar", found)), [1, 2, 4]


def test_members_with_one_key_are_a_row(tmp_path: Path) -> None:
    array, pixels = np.arange(6, dtype=np.int16).reshape(2, 3), io.BytesIO()
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.full((2, 3, 3), 7, np.uint8)).save(pixels, "PNG")
    packed = io.BytesIO()
    np.save(packed, array)
    path = tar(
        tmp_path / "a.tar",
        [
            ("readme", b"no sample"),
            ("x/a.seg.png", pixels.getvalue()),
            ("x/a.npy", packed.getvalue()),
            ("x/a.pickle", b"\x80never loaded"),
            ("x/b.CLS", b" 12\n"),
            ("x/.hidden", b""),
        ],
    )
    data = hr.read_webdataset(path)
    assert data.columns() == ["__key__", "seg.png", "npy", "pickle", "CLS"]
    first, second = data.take_all()
    assert first["seg.png"].tolist() == np.full((2, 3, 3), 7).tolist() and first["npy"].dtype == np.int16
    assert (first["npy"].tolist(), first["pickle"], first["CLS"]) == (
        array.tolist(),
        b"\x80never loaded",
        None,
    )
    assert (second["__key__"], second["CLS"], second["npy"]) == ("x/b", 12, None)
    plain = hr.read_webdataset(path, decoder=None, suffixes=["CLS", ".npy", "none"])
    assert plain.take_all()[1] == {"__key__": "x/b", "CLS": b" 12\n", "npy": None, "none": None}
    assert plain.schema().field("npy").type == pa.binary()


def test_functions_see_arrays_and_one_dtype(tmp_path: Path) -> None:
    def packed(length: int) -> bytes:
        into = io.BytesIO()
        np.save(into, np.arange(length))
        return into.getvalue()

    found = [(f"{i}.{name}", data) for i in range(6) for name, data in (("npy", packed(i)), ("cls", b"1"))]
    data = hr.read_webdataset(tar(tmp_path / "a.tar", [each for each in found if each[0] != "5.cls"]))
    assert [type(row["npy"]) for row in data] == [np.ndarray] * 6
    dtypes = [batch["cls"].dtype for batch in data.iter_batches(batch_size=2)]
    assert dtypes == [np.float64] * 3 and data.take_all()[5]["cls"] is None


def test_types_are_settled_over_samples(tmp_path: Path) -> None:
    rows = [{"a": 1}, {"a": 2.5}, {"a": None, "b": ["x"]}, {}]
    tar(tmp_path / "a.tar", [(f"{i}.json", json.dumps(row).encode()) for i, row in enumerate(rows)])
    data = hr.read_webdataset(tmp_path)
    assert [row["json"] for row in data] == [{"a": None, "b": None} | row for row in rows]
    tar(tmp_path / "b.tar", [("9.json", b'{"a": "text"}')])
    with pytest.raises(SchemaMismatch, match=r"'json'.*decoder=None"):
        hr.read_webdataset(tmp_path).schema()


def test_what_turns_up_late_is_told(tmp_path: Path) -> None:
    found = [(f"{i:03}.json", b'{"a": 1}') for i in range(100)]
    found[80] = ("080.json", b'{"a": 1, "late": 2}')
    found[90] = ("090.other", b"x")
    path = tar(tmp_path / "a.tar", found)
    with pytest.raises(UnreadableFile, match=r"'080\.json' in .*a\.tar.*struct"):
        hr.read_webdataset(path).take_all()
    data = hr.read_webdataset(path).with_options(engine="inline", on_error="reject", progress=False)
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (98, 2)
    errors = [row["_error"] for row in hr.read_rejected(tmp_path / "out")]
    assert "080.json" in errors[0] and "'090.other'" in errors[1] and "suffixes=" in errors[1]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("cut", [700, 512 * 3, 512 * 40])
def test_an_archive_that_was_cut_is_no_shorter_archive(tmp_path: Path, packed: bool, cut: int) -> None:
    path = tar(tmp_path / "a.tar", members(0, 20))
    data = path.read_bytes()[:cut]
    if packed:
        import gzip

        data = gzip.compress(data)
    path.write_bytes(data)
    with pytest.raises(UnreadableFile, match=r"a\.tar.* as a tar archive") as caught:
        hr.read_webdataset(path, suffixes=["txt"]).take_all()
    assert "\n" not in str(caught.value)


def test_a_damaged_header_is_no_end(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", members(0, 20))
    data = bytearray(path.read_bytes())
    data[1024 * 10 : 1024 * 10 + 20] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(UnreadableFile, match=r"behind its member 'd/\d+"):
        hr.read_webdataset(path, suffixes=["txt"]).take_all()
    for wrong in (b"", b"text, not a tar archive" * 100):
        path.write_bytes(wrong)
        with pytest.raises(UnreadableFile, match="as a tar archive"):
            hr.read_webdataset(path).take_all()


def test_arguments() -> None:
    with pytest.raises(ArgumentError, match="unpack them in map"):
        hr.read_webdataset("x", decoder=lambda sample: sample)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="suffixes='jpg'"):
        hr.read_webdataset("x", suffixes="jpg")
