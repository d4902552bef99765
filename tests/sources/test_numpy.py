"""Files of numpy, as it saves them and as they come broken."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, SchemaMismatch, UnreadableFile
from headrace.sources.numpy import NumpySource
from headrace.testing.sources import SourceContract, read_all


class TestNpy(SourceContract):
    folder: Path

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.sources.numpy._SPLIT_BYTES", 64)

    def make(self) -> Source:
        if not (self.folder / "a.npy").exists():
            for at, name in enumerate("ab"):
                np.save(self.folder / f"{name}.npy", np.arange(40, dtype=np.int32).reshape(20, 2) + 100 * at)
        return NumpySource(self.folder, include_paths=True)


class TestNpz(SourceContract):
    folder: Path

    def make(self) -> Source:
        for at, name in enumerate("ab"):
            if not (self.folder / f"{name}.npz").exists():
                save = np.savez_compressed if at else np.savez
                save(self.folder / f"{name}.npz", x=np.arange(9.0) + at, text=np.array(["ab", "c", "ä"] * 3))
        return NumpySource(self.folder)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(5, dtype=np.uint64) + 2**63,
        np.arange(5, dtype=">i4"),
        np.array([True, False, True]),
        np.array([1.5, np.nan, -np.inf], np.float16),
        np.array(["a", "", "long 😀"]),
        np.array([b"ab", b"\0c"]),
        np.array(["2024-02-29", "NaT"], "M8[D]"),
        np.array(["2024-02-29T12:00:00.000001", "NaT"], "M8[us]"),
        np.array([1, 2], "m8[s]"),
        np.arange(24, dtype=np.float32).reshape(4, 3, 2),
        np.asfortranarray(np.arange(24).reshape(4, 6)),
        np.zeros((0, 3), np.int16),
    ],
    ids=lambda array: f"{array.dtype}-{array.shape}",
)
def test_values_are_those_of_from_numpy(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "b.npz", data=array)
    wanted = hr.from_numpy(array)
    for name in ("a.npy", "b.npz"):
        found = hr.read_numpy(tmp_path / name)
        assert found.schema() == wanted.schema()
        assert found.to_arrow() == wanted.to_arrow() or found.to_pandas().equals(wanted.to_pandas())


def test_files_come_together_where_nothing_is_lost(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([1, 2], np.int16))
    np.save(tmp_path / "b.npy", np.array([2**40]))
    data = hr.read_numpy([tmp_path / "a.npy", tmp_path / "b.npy"], include_paths=True)
    assert data.schema().field("data").type == pa.int64() and data.count() == 3
    assert data.take_all()[2] == {"data": 2**40, "path": str(tmp_path / "b.npy")}
    assert data.select_columns(["path"]).take(1) == [{"path": str(tmp_path / "a.npy")}]
    np.save(tmp_path / "c.npy", np.zeros((2, 2)))
    with pytest.raises(SchemaMismatch, match=r"c\.npy"):
        hr.read_numpy(tmp_path).schema()


def test_big_arrays_are_read_in_ranges(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3_000_000))
    source = NumpySource(tmp_path / "a.npy")
    splits = source.splits_in_batches(1000)
    assert [split.rows % 1000 for split in splits[:-1]] == [0, 0] and sum(s.rows for s in splits) == 3_000_000
    assert read_all(source, splits[1:2], rows=10**7)["data"][0].as_py() == splits[1].start
    assert source.locate(splits[1], 5).number == splits[1].start + 5


def damaged(tmp_path: Path, case: str) -> Path:
    npy, npz = tmp_path / "a.npy", tmp_path / "a.npz"
    np.save(npy, np.arange(1000))
    np.savez(npz, x=np.arange(1000), y=np.arange(1000))
    if case == "cut":
        npy.write_bytes(npy.read_bytes()[:-1])
    elif case == "no header":
        npy.write_bytes(npy.read_bytes()[:20])
    elif case == "text":
        npy.write_text("1,2,3\n")
    elif case == "huge":
        npy.write_bytes(npy.read_bytes().replace(b"(1000,)  ", b"(10000000000000,)"[:9]))
    elif case == "objects":
        np.save(npy, np.array(["a", None], object))
    elif case == "single":
        np.save(npy, np.float64(3))
    elif case == "complex":
        np.save(npy, np.array([1j]))
    elif case == "lengths":
        np.savez(npz, x=np.arange(3), y=np.arange(4))
        return npz
    elif case == "cut zip":
        npz.write_bytes(npz.read_bytes()[:-30])
        return npz
    elif case == "flipped":
        data = bytearray(npz.read_bytes())
        data[1000] ^= 1
        npz.write_bytes(data)
        return npz
    elif case == "no arrays":
        with zipfile.ZipFile(npz, "w") as archive:
            archive.writestr("readme.txt", "hello")
        return npz
    return npy


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("cut", "Its end is missing"),
        ("no header", "EOF|reading"),
        ("text", "magic"),
        ("objects", "loading those may run code"),
        ("single", "a single value"),
        ("complex", "cannot become a column"),
        ("lengths", "'x' has 3, 'y' has 4"),
        ("cut zip", "not a zip file"),
        ("flipped", "'x' in .*CRC"),
        ("no arrays", "magic|EOF|reading"),
    ],
)
def test_what_cannot_be_read_names_the_file(tmp_path: Path, case: str, words: str) -> None:
    path = damaged(tmp_path, case)
    with pytest.raises(UnreadableFile, match=words) as caught:
        hr.read_numpy(path).take_all()
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_pickles_are_refused_by_argument(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    assert hr.read_numpy(tmp_path, allow_pickle=False).count() == 3
    with pytest.raises(ArgumentError, match="pickles may run code"):
        hr.read_numpy(tmp_path, allow_pickle=True)


def test_an_array_that_is_called_as_the_column_of_paths_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", path=np.arange(3), x=np.arange(3))
    with pytest.raises(SchemaMismatch, match="include_paths=True adds a column 'path'"):
        hr.read_numpy(tmp_path / "a.npz", include_paths=True).schema()
    assert hr.read_numpy(tmp_path / "a.npz").schema().names == ["path", "x"]
