"""Lines of text: against Python's own reading, wherever files are cut, and what cannot be read."""

from __future__ import annotations

import bz2
import gzip
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources import line_reader
from headrace.sources.lines import TextSource
from headrace.testing.sources import SourceContract, read_all, read_sound, read_told

QUICK = settings(max_examples=few(20), deadline=None, suppress_health_check=list(HealthCheck))


class TestText(SourceContract):
    folder: Path

    def make(self) -> Source:
        lines = "".join(f"line {n}\r\n" for n in range(20))
        for name in ("a.txt", "b.log"):
            if not (self.folder / name).exists():
                (self.folder / name).write_bytes(lines.encode())
        return TextSource(self.folder, block_bytes=40, include_paths=True)


class TestSmallTexts(SourceContract):
    """Some empty, some compressed, several to a split; the last split is of one file."""

    folder: Path

    def make(self) -> Source:
        for number in range(7):
            if not (self.folder / f"{number}").exists():
                data = "\n".join(f"{number}.{line}" for line in range(number)).encode()
                (self.folder / f"{number}").write_bytes(gzip.compress(data) if number == 3 else data)
        return TextSource(self.folder, block_bytes=60, drop_empty_lines=True)


# ---------------------------------------------------------------- against Python's own reading

PIECES = ["\n", "\r", "\r\n", "", "a", " ", "é", "\x85", "\u2028", "\x1c", "\xa0", "日本", "\ufeff", "x" * 9]


def python_lines(data: bytes, encoding: str) -> list[str]:
    return [line.removesuffix("\n") for line in io.TextIOWrapper(io.BytesIO(data), encoding)]


@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=30).map("".join), min_size=1, max_size=4),
    st.sampled_from(["utf-8", "utf-8", "latin-1", "cp1252", "utf-16", "utf-16-le", "shift-jis", "ascii"]),
    st.integers(1, 40),
    st.integers(3, 9),  # a block holds a byte order mark, at least
    st.booleans(),
    st.sampled_from([None, gzip.compress, bz2.compress]),
)
@QUICK
def test_files_are_read_as_python_reads_them(
    texts: list[str], encoding: str, cut: int, block: int, drop: bool, pack: object
) -> None:
    expected: list[str] = []
    places: list[str] = []
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_reader, "_BLOCK", block)
        for number, text in enumerate(texts):
            data = text.encode(encoding, "replace")
            path = Path(folder, str(number))
            path.write_bytes(pack(data) if callable(pack) else data)
            lines = python_lines(data, "utf-8-sig" if encoding == "utf-8" else encoding)
            for place, line in enumerate(lines, 1):
                if line.strip() or not drop:
                    expected.append(line)
                    places.append(f"{path}, line {place}")
        source = TextSource(folder, encoding=encoding, drop_empty_lines=drop, block_bytes=cut)
        assert read_all(source)["text"].to_pylist() == expected
        found = [
            str(source.locate(split, row))
            for split in source.splits()
            for row in range(read_all(source, [split]).num_rows)
        ]
        assert found == places


@given(
    st.lists(
        st.sampled_from([b"\n", b"\r\n", b"\r", b" ", b"a", b"\xe9", "é".encode(), b"\xe2\x82", b"\xac"]),
        max_size=25,
    ),
    st.integers(1, 20),
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([None, gzip.compress]),
)
@QUICK
def test_lines_that_are_no_text_are_told_and_left_out(
    pieces: list[bytes], cut: int, block: int, drop: bool, pack: object
) -> None:
    data = b"".join(pieces)
    lines = [line for line in _lines_of(data) if not drop or line.strip()]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_reader, "_BLOCK", block)
        for name in ("a", "b"):
            Path(folder, name).write_bytes(pack(data) if callable(pack) else data)
        source = TextSource(folder, drop_empty_lines=drop, block_bytes=cut)
        found: list[str | None] = []
        for split in source.splits():
            sound = read_sound(source, split)
            bad = {number for told in sound.bad for number in told}
            rows = iter(sound.table["text"].to_pylist())
            found += [None if n in bad else next(rows) for n in range(len(bad) + len(sound.numbers))]
            for error in sound.bad.values():
                assert re.search(r"/[ab]': line \d+ .*is not valid UTF-8 \(byte", str(error))
    assert found == [_decoded(line) for line in lines] * 2


def _lines_of(data: bytes) -> list[bytes]:
    ended = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return ended.removesuffix(b"\n").split(b"\n") if ended else []


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


@pytest.mark.parametrize("encoding", ["shift-jis", "cp1252", "utf-16-le"])
def test_lines_that_are_not_of_their_encoding(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "a.txt"
    wrong = b"\x00\xdc" if encoding == "utf-16-le" else b"\x81" + b"\xff" * (encoding == "shift-jis")
    end = "\n".encode(encoding)
    path.write_bytes(end.join(["é1".encode(encoding, "replace"), wrong, "3".encode(encoding), b""]))
    source = TextSource(path, encoding=encoding)
    rows, bad = read_told(source)
    assert [row["text"][-1] for row in rows] == ["1", "3"]
    assert list(bad) == [1]
    assert f"line 2 is not valid {encoding.upper()}" in bad[1]


def test_white_space_is_what_python_takes_for_it() -> None:
    for code in range(0x110000):
        if 0xD800 <= code < 0xE000 or chr(code) in "\r\n":
            continue
        assert bool(line_reader._BLANK.fullmatch(chr(code).encode())) == chr(code).isspace(), hex(code)


# ---------------------------------------------------------------- files of every kind


def test_a_late_line_of_another_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"plain\n" * 300_000 + b"caf\xe9\nmore\n")
    with pytest.raises(UnreadableFile, match=r"a\.txt': line 300,001 is not valid UTF-8 \(byte 0xe9\)"):
        read_all(TextSource(path))
    assert read_all(TextSource(path, encoding="latin1"))["text"][-2].as_py() == "café"
    path.write_bytes("a\nb\n".encode("utf-16") + b"\0\xdcx")
    with pytest.raises(UnreadableFile, match="line 3 is not valid UTF-16"):
        read_all(TextSource(path, encoding="utf-16"))


def test_what_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes("text".encode("utf-16"))
    with pytest.raises(
        UnreadableFile, match=r"as text: it begins with the mark of UTF-16 text; set encoding"
    ):
        read_all(TextSource(path))
    path.write_bytes(b"PAR1\0\0")
    with pytest.raises(UnreadableFile, match="Parquet file; read_parquet"):
        read_all(TextSource(path))
    path.write_bytes(gzip.compress(b"text\n" * 99_999)[:-9])
    with pytest.raises(UnreadableFile, match=r"a\.txt': Truncated compressed stream"):
        read_all(TextSource(path))


def test_a_line_longer_than_a_block_and_zstd(tmp_path: Path) -> None:
    lines = ["x" * 3_000_000, "", "y"]
    (tmp_path / "a").write_text("\n".join(lines))
    (tmp_path / "b.zst").write_bytes(pa.compress("\r".join(lines).encode(), codec="zstd", asbytes=True))
    assert read_all(TextSource(tmp_path))["text"].to_pylist() == lines * 2


def test_small_files_share_splits_and_batches(tmp_path: Path) -> None:
    for number in range(300):
        (tmp_path / f"{number:03}").write_text("line\n" * 3)
    source = TextSource(tmp_path, include_paths=True)
    splits = source.splits()
    assert [len(source.files_of(split)) for split in splits] == [256, 44]
    assert [batch.num_rows for split in splits for batch in source.read(split, None, 65_536)] == [768, 132]
    assert read_all(source)["path"][5].as_py() == str(tmp_path / "001")


def test_big_files_are_cut_between_small_ones(tmp_path: Path) -> None:
    for number, lines in enumerate((1, 1, 30, 1)):
        (tmp_path / str(number)).write_text("12345678\n" * lines)
    source = TextSource(tmp_path, block_bytes=90)
    found = [(split.file, split.start, split.stop) for split in source.splits()]
    assert found == [(0, 0, -2), (2, 0, 90), (2, 90, 180), (2, 180, 270), (3, 0, -1)]


def test_wrong_options(tmp_path: Path) -> None:
    for encoding in ("klingon", "hex", None):
        with pytest.raises(ArgumentError, match="There is no text encoding"):
            hr.read_text(tmp_path, encoding=encoding)  # type: ignore[arg-type]


def test_reading_text_leaves_pandas_and_compute_alone(tmp_path: Path) -> None:
    """Importing them would cost every worker a third of a second, and 25 ms."""
    (tmp_path / "a.txt").write_text("a\n\nb")
    code = f"""
import sys
from headrace.sources.lines import TextSource
source = TextSource({str(tmp_path)!r}, include_paths=True, drop_empty_lines=True)
assert "pyarrow" not in sys.modules
assert [batch.num_rows for split in source.splits() for batch in source.read(split, None, 9)] == [2]
assert not {{"pandas", "pyarrow.compute"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
