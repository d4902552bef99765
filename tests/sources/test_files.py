"""Which files a path argument stands for, in which order, and what is said when there are none."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from headrace.core.files.hive import hive_values
from headrace.core.files.input_files import InputFile, check_unchanged
from headrace.core.files.storage import storage_at
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, InputChanged, NothingMatched, UnreadableFile
from headrace.sources.csv.source import CsvSource
from headrace.sources.file_source import given_paths
from headrace.sources.images.source import ImageSource
from headrace.sources.json.source import JsonSource
from headrace.sources.lines import BinarySource, TextSource
from headrace.sources.parquet.source import ParquetSource

NAMES = [
    "a.parquet",
    "b.PARQUET",
    "notes.txt",
    "_SUCCESS",
    "_tmp/x.parquet",
    ".hidden.parquet",
    "sub/c.parquet",
    "sub/_part.parquet",
    "sub/deep/d.pq",
    "year=2024/_k=1/e.parquet",
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def listed(root: Path, paths: object, suffixes: tuple[str, ...] | None = (".parquet", ".pq")) -> list[str]:
    found = [file for each in given_paths(paths) for file in each.expanded(suffixes)]  # type: ignore[arg-type]
    return [os.path.relpath(file.path, root) for file in found]


def test_a_folder_gives_its_format_on_all_levels_in_order_of_names(tree: Path) -> None:
    assert listed(tree, tree) == [
        "a.parquet",
        "b.PARQUET",
        "sub/c.parquet",
        "sub/deep/d.pq",
        "year=2024/_k=1/e.parquet",
    ]
    assert "notes.txt" in listed(tree, tree, None)
    assert "_SUCCESS" not in listed(tree, tree, None)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.parquet", ["a.parquet"]),
        ("[ab].*", ["a.parquet", "b.PARQUET"]),
        ("*", ["a.parquet", "b.PARQUET", "sub/c.parquet", "sub/deep/d.pq", "year=2024/_k=1/e.parquet"]),
        ("**/*.pq", ["sub/deep/d.pq"]),
        ("**/*.parquet", ["a.parquet", "sub/c.parquet", "year=2024/_k=1/e.parquet"]),
        ("**", ["a.parquet", "b.PARQUET", "sub/c.parquet", "sub/deep/d.pq", "year=2024/_k=1/e.parquet"]),
        ("s*/**/d.*", ["sub/deep/d.pq"]),
        ("year=*", ["year=2024/_k=1/e.parquet"]),
        ("sub/_*.parquet", ["sub/_part.parquet"]),
        ("notes*", ["notes.txt"]),
    ],
)
def test_patterns(tree: Path, pattern: str, expected: list[str]) -> None:
    assert listed(tree, tree / pattern) == expected


def test_what_is_named_is_taken_and_a_list_keeps_its_order(tree: Path) -> None:
    given = [tree / "sub", tree / "_SUCCESS", str(tree / "a.parquet"), tree / "a.parquet"]
    assert listed(tree, given) == ["sub/c.parquet", "sub/deep/d.pq", "_SUCCESS", "a.parquet", "a.parquet"]


def test_a_folder_without_any_suffix_gives_its_files(tmp_path: Path) -> None:
    for name in ("part-1", "part-0", "_meta"):
        (tmp_path / name).write_text("x")
    assert listed(tmp_path, tmp_path) == ["part-0", "part-1"]


def test_brackets_in_real_names_are_no_pattern(tmp_path: Path) -> None:
    folder = tmp_path / "run[1]"
    folder.mkdir()
    (folder / "a[0].parquet").write_text("x")
    assert listed(folder, folder / "a[0].parquet") == ["a[0].parquet"]
    assert listed(folder, folder / "*.parquet") == ["a[0].parquet"]


def test_links_in_a_circle_end(tree: Path) -> None:
    (tree / "sub" / "up").symlink_to(tree, target_is_directory=True)
    (tree / "sub" / "deep" / "over").symlink_to(tree / "sub", target_is_directory=True)
    assert listed(tree, tree)[:2] == ["a.parquet", "b.PARQUET"]
    assert len(set(listed(tree, tree / "**" / "*.pq"))) == len(listed(tree, tree / "**" / "*.pq"))


def test_paths_of_other_kinds(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    monkeypatch.setenv("HOME", str(tree))
    (tree / "with space.parquet").write_text("x")
    assert listed(tree, "a.parquet") == ["a.parquet"]
    assert listed(tree, "~/a.parquet") == ["a.parquet"]
    assert listed(tree, f"file://{tree}/with%20space.parquet") == ["with space.parquet"]
    assert listed(tree, f"local://{tree}/with space.parquet") == ["with space.parquet"]
    assert [each.path for each in given_paths("a.parquet")] == [str(tree / "a.parquet")]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("s3:///a.parquet", "names no bucket"),
        ("file://host/a", "file:///folder/name"),
        ([], "list of input paths is empty"),
        ("", "input path is empty"),
        (7, "not 7"),
        (["a", None], "not None"),
        (b"a", "not b'a'"),
    ],
)
def test_what_is_no_local_path_is_refused(argument: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        given_paths(argument)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("a.parqet", r"there is no 'a.parqet' in .* Did you mean 'a.parquet'\?"),
        ("sup/c.parquet", r"there is no 'sup' in .* Did you mean 'sub'\?"),
        ("*.orc", r"\*\.orc.*nothing in .* matches '\*\.orc' \(it holds \d+ entries, such as "),
        ("none/*/x", r"there is no 'none'"),
        ("a.parquet/*", "a.parquet"),
    ],
)
def test_nothing_matched_shows_the_pattern_and_what_is_near(tree: Path, path: str, message: str) -> None:
    with pytest.raises(NothingMatched, match=message) as caught:
        listed(tree, tree / path)
    assert isinstance(caught.value, FileNotFoundError)
    assert path in str(caught.value)


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(NothingMatched, match=r"no file that ends in \.parquet, \.pq .*'a\.csv'"):
        listed(tmp_path, tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NothingMatched, match="it is empty"):
        listed(tmp_path, tmp_path / "empty")


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableFile, match="not a regular file"):
        listed(tmp_path, tmp_path / "pipe")
    (tmp_path / "dangling.parquet").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UnreadableFile, match=r"dangling\.parquet.*No such file"):
        listed(tmp_path, tmp_path / "*.parquet")


@pytest.mark.parametrize(
    "make", [CsvSource, JsonSource, TextSource, ParquetSource, BinarySource, ImageSource]
)
def test_no_source_waits_for_what_never_ends(tmp_path: Path, make: Callable[[Path], Source]) -> None:
    suffix = {CsvSource: "csv", JsonSource: "jsonl", ParquetSource: "parquet", ImageSource: "png"}
    name = f"pipe.{suffix.get(cast('Any', make), 'txt')}"
    for target in ("fifo", "/dev/zero", name):
        folder = tmp_path / target.strip("/").replace("/", "-")
        folder.mkdir()
        if target == "fifo":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to(target)
        with pytest.raises(UnreadableFile, match=r"not a regular file|levels of symbolic links"):
            make(folder).splits()


@pytest.mark.parametrize(
    "address",
    [
        "https://me:hush@host/a.csv?token=hush&x=1",
        "s3://hush:hu/sh@bucket/a.csv",
        "file://me:hush@host/a.csv",
        "https://hush@host/a.csv",
        "abfs://host/a.csv?sig=hush",
    ],
)
def test_no_message_tells_a_secret(address: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        given_paths([address])
    assert "hush" not in str(caught.value).replace("hu/sh", "hush")


def test_a_changed_file_is_noticed_with_what_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x")
    file = storage_at(str(path)).record()
    check_unchanged(file)
    os.utime(path, ns=(0, file.mtime_ns + 1))
    with pytest.raises(InputChanged, match=r"a\.csv' changed .* its time of change was .*\d{9} UTC and is "):
        check_unchanged(file)
    path.write_text("xyz")
    with pytest.raises(InputChanged, match="its size was 1 bytes and is 3"):
        check_unchanged(file)
    path.unlink()
    with pytest.raises(InputChanged, match=r"a\.csv' is gone"):
        check_unchanged(file)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/d/y=2024/m=01/a.parquet", {"y": "2024", "m": "01"}),
        ("/lr=0.1/data/y=1/a.parquet", {"y": "1"}),
        ("/d/c=__HIVE_DEFAULT_PARTITION__/a", {"c": None}),
        ("/d/c=a%2Fb%3Dc/a", {"c": "a/b=c"}),
        ("/d/=x/a", {}),
        ("/d/y=1=2/a", {"y": "1=2"}),
        ("/d/c=/a=b.parquet", {"c": ""}),
    ],
)
def test_hive_folders(path: str, expected: dict[str, str | None]) -> None:
    assert hive_values(path) == expected


@pytest.mark.parametrize("source", [TextSource, CsvSource, JsonSource, BinarySource, ParquetSource])
def test_a_name_that_is_not_utf8_is_refused_by_name(source: Callable[[str], Source], tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xff.csv")).write_text("a\n1\n")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    with pytest.raises(UnreadableFile, match=r"caf\\udcff\.csv': its name is not UTF-8"):
        source(f"{tmp_path}/*.csv").splits()


def test_a_listing_that_fails_is_made_again(tmp_path: Path) -> None:
    file = tmp_path / "a.bin"
    file.write_bytes(b"12")
    source = BinarySource([str(tmp_path)])
    assert [split.bytes for split in source.splits()] == [2]
    file.unlink()
    with pytest.raises(NothingMatched):
        source.splits()
    file.write_bytes(b"123")
    assert [split.bytes for split in source.splits()] == [3]


def test_what_was_listed_is_known_while_it_is_listed_again(tmp_path: Path) -> None:
    """Another thread may read by it meanwhile: datasets share their sources."""
    (tmp_path / "a.bin").write_bytes(b"12")
    seen: list[str] = []

    class Watched(BinarySource):
        def _listed(self) -> list[InputFile]:
            found = super()._listed()
            seen.extend(file.path for file in self._files)
            return found

    source = Watched([str(tmp_path)])
    assert source.splits() == source.splits() and seen == [str(tmp_path / "a.bin")]
