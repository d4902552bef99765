"""CSV rows that make no sense: told with their numbers, and left out."""

from __future__ import annotations

import gzip
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.errors import UnreadableFile
from headrace.sources.csv.source import CsvSource
from headrace.sources.file_source import FileSource
from headrace.testing.sources import read_all, read_sound, read_told

QUICK = settings(max_examples=few(20), deadline=None, suppress_health_check=list(HealthCheck))


def check_told(source: FileSource[Any], rows: int, bad: dict[int, str]) -> list[dict[str, Any]]:
    """Check how many rows are read, and that each bad one is told; without rejecting, one is raised."""
    path = re.escape(repr(source.paths[0]))
    found, errors = read_told(source)
    assert len(found) == rows and errors.keys() == bad.keys()
    for row, message in bad.items():
        assert re.search(rf"{path}, row \d+ .*{message}", errors[row]), errors[row]
    assert read_told(source) == (found, errors)
    where = rf", row ({'|'.join(map(str, bad))}) \(|: the quote at byte|: its text is not valid cp1252"
    with pytest.raises(UnreadableFile, match=f"{path}({where})") as raised:
        read_all(source)
    assert "…" not in str(raised.value).replace("read_text(…)", ""), "planning hides data; it is found again"
    return found


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
@pytest.mark.parametrize("block", [1, 20, 1 << 20])
@pytest.mark.parametrize(
    ("content", "options", "good", "bad"),
    [
        (b"n,s\n1,x\n2\n3,z\n", {}, [0, 2], {1: "it has 1 fields where 2 are expected"}),
        (b"n,s\n1,x\n2,y,z\n3,z\n", {}, [0, 2], {1: "it has 3 fields where 2 are expected"}),
        (b"n,s\n\n7\n\n1,x\n\n2", {}, [1], {0: "1 fields", 2: "1 fields"}),
        (b"n,s\n1,x\noops,y\n3,z\n", {"column_types": {"n": int}}, [0, 2], {1: "column 'n' holds 'oops'"}),
        (b"n,s\n1,x\n2,\xe9\n3,z\n", {}, [0, 2], {1: "column 's' is not valid UTF-8"}),
        (b'n,s\n1,x\n2,"y\n3,z\n', {}, [0], {1: "a quote in it is never closed"}),
        (b'n,s\n1,x\n"2,y\n3,z\n', {}, [0], {1: "a quote in it is never closed"}),
        (b'n,s\n"2,y\n3,z\n', {}, [], {0: "a quote in it is never closed"}),
        (b'n,s\r1,"x\ry"\r2\r3,z\r', {}, [0, 2], {1: "1 fields"}),
        (b'n,s\r\n1,"x\r\n"\r\n2\r\n3,z', {}, [0, 2], {1: "1 fields"}),
        (b"n,s\n1,x\\\ny\n2\n3,z\n", {"escape_char": "\\"}, [0, 2], {1: "1 fields"}),
        (b"n,s\n1,x\n2,\xe9,\xff\n3,z\n", {}, [0, 2], {1: "3 fields"}),
        (b"n,s\n1,x\n2,\x81\n3,z\n", {"encoding": "cp1252"}, [0, 2], {1: "not valid cp1252"}),
    ],
)
def test_bad_rows(
    tmp_path: Path,
    pack: Callable[[bytes], bytes],
    block: int,
    content: bytes,
    options: dict[str, Any],
    good: list[int],
    bad: dict[int, str],
) -> None:
    (path := tmp_path / "a.csv").write_bytes(pack(content))
    check_told(CsvSource(path, block_bytes=block, **options), len(good), bad)


GOOD = ["{n},w{n}\n", '"{n}","w{n}"\n', '{n},"w{n}"\r\n', "\n{n},w{n}\n"]
BAD = [
    b"x,y\n",
    b"1\n",
    b"1,2,3\n",
    b'1,"a\nb",3\n',
    b"1,\xe9\n",
    b'"1",\xff\n',
    b"1,2,\xff\n",
    b"\n1\n",
    b'"y\n",2\n',
]


@given(
    st.lists(st.one_of(st.sampled_from(GOOD), st.sampled_from(BAD)), min_size=1, max_size=30),
    st.integers(1, 60),
    st.booleans(),
)
@QUICK
def test_the_bad_ones_and_no_others_wherever_files_are_cut(
    records: list[str | bytes], block: int, packed: bool
) -> None:
    lines = [r.format(n=n).encode() if isinstance(r, str) else r for n, r in enumerate(records)]
    good = [n for n, record in enumerate(records) if isinstance(record, str)]
    data = b"n,s\n0,w0\n" + b"".join(lines)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_bytes(gzip.compress(data) if packed else data)
        rows, bad = read_told(CsvSource(path, block_bytes=block, column_types={"n": int, "s": str}))
    assert [row["n"] for row in rows] == [0, *good]
    assert [row["s"] for row in rows] == ["w0", *(f"w{n}" for n in good)]
    assert sorted(bad) == [n + 1 for n in range(len(records)) if n not in good]


def test_values_of_columns_that_nobody_asked_for_are_not_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("n,s\n1,x\noops,y\n3\n4,z\n")
    source = CsvSource(path, column_types={"n": int})
    (split,) = source.splits()
    assert read_sound(source, split).numbers == [0, 3]
    assert read_sound(source, split, ["s"]).numbers == [0, 1, 3]
    assert read_sound(source, split, []).numbers == [0, 1, 3]


def test_an_encoding_that_must_be_decoded(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    word = "日本".encode("shift_jis")
    path.write_bytes(b"n,s\n" + b"1,%s\n" % word * 300_000 + b"2,\xff\xff\n3,%s\n" % word)
    source = CsvSource(path, encoding="shift_jis")
    (split,) = source.splits()
    sound = read_sound(source, split)
    assert list(sound.bad) == [range(300_000, 300_001)]
    assert sound.table["s"][-1].as_py() == "日本"
    with pytest.raises(UnreadableFile, match=r"row 300000 \(counted .*: it is not valid shift_jis"):
        read_all(source)


@pytest.mark.parametrize("mark", ["\t", ";", "|"])
def test_columns_that_another_mark_divides_are_not_taken_for_one(tmp_path: Path, mark: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"id{mark}x\n1{mark}2\n")
    with pytest.raises(
        UnreadableFile, match=f"would have one column, .*set delimiter={re.escape(repr(mark))}"
    ):
        hr.read_csv(path).take(1)
    assert hr.read_csv(path, delimiter=mark).take_all() == [{"id": 1, "x": 2}]
    one = hr.read_csv(path, column_names=["both"], has_header=True)
    assert one.take_all() == [{"both": f"1{mark}2"}]
    path.write_text("what; and why\nso\n")
    assert hr.read_csv(path).take_all() == [{"what; and why": "so"}]
