"""Whatever stands in an output folder: nothing but regular files is opened."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.core.files import safe_files


def a_link(path: Path) -> None:
    (path.parent / "letter").write_text("dear")
    path.symlink_to(path.parent / "letter")


def a_link_to_nowhere(path: Path) -> None:
    path.symlink_to(path.parent / "nowhere")


def a_second_name(path: Path) -> None:
    (path.parent / "letter").write_text("dear")
    path.hardlink_to(path.parent / "letter")


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


STRANGE = [a_link, a_link_to_nowhere, os.mkfifo, Path.mkdir, a_socket]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("put", STRANGE)
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_only_regular_files_are_opened(tmp_path: Path, put: Callable[[Path], None], flags: int) -> None:
    put(tmp_path / "it")
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError):
        safe_files.opened(tmp_path / "it", flags)
    assert safe_files.size(tmp_path / "it") == -1
    assert safe_files.read(tmp_path / "it") == b""
    assert len(os.listdir("/proc/self/fd")) == before
    assert not (tmp_path / "nowhere").exists()


def test_a_file_with_a_second_name_is_read_and_not_written_to(tmp_path: Path) -> None:
    a_second_name(tmp_path / "it")
    assert safe_files.content(tmp_path / "it") == b"dear"
    with pytest.raises(safe_files.NotOurs, match="second name"):
        safe_files.opened(tmp_path / "it", os.O_RDWR)
    safe_files.write(tmp_path / "it", b"new")
    assert (tmp_path / "letter").read_text() == "dear" and (tmp_path / "it").read_text() == "new"


def test_what_stands_where_a_small_file_is_made_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("dear")
    (tmp_path / f"it.{os.getpid()}.tmp").symlink_to(tmp_path / "letter")
    (tmp_path / "it").symlink_to(tmp_path / "letter")
    safe_files.write(tmp_path / "it", b"new")
    assert (tmp_path / "letter").read_text() == "dear" and (tmp_path / "it").read_text() == "new"
    assert not (tmp_path / "it").is_symlink()


def test_folders_that_are_links_are_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there")
    with pytest.raises(safe_files.NotOurs, match="a link"):
        safe_files.make_folder(tmp_path / "link")
    safe_files.make_folder(tmp_path / "there")
    safe_files.make_folder(tmp_path / "new")
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("behind", [b"", b"more"])
def test_gigabytes_of_holes_are_not_read(tmp_path: Path, behind: bytes) -> None:
    path = tmp_path / "events"
    path.write_bytes(b"some lines")
    with path.open("r+b") as file:
        file.seek(3 << 30)
        file.write(behind) if behind else file.truncate()
    assert safe_files.read(path).rstrip(b"\0") == b"some lines"
    with pytest.raises(safe_files.NotOurs, match="a big hole"):
        safe_files.content(path)
    assert safe_files.content(path, 4) == b"some"
