"""Folders of this machine in which files are staged before they are uploaded."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from headrace.core.uploader import LocalFolder


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path


def test_the_last_one_leaves_nothing(temporary: Path) -> None:
    first, second = LocalFolder(), LocalFolder()
    (first.root / "part").write_bytes(b"staged")
    first.close()
    assert [*temporary.glob("*/lock")] and second.root.is_dir()
    second.close()
    second.close()
    assert not [*temporary.iterdir()]


def test_what_others_put_there_stays(temporary: Path) -> None:
    folder = LocalFolder()
    other = folder.path.parent / "other"
    other.write_text("mine")
    folder.close()
    assert other.read_text() == "mine"


def test_folders_that_come_and_go_at_once_keep_what_is_theirs(temporary: Path) -> None:
    def comes_and_goes(number: int) -> None:
        for _ in range(50):
            folder = LocalFolder()
            part = folder.root / "part"
            part.write_text(str(number))
            LocalFolder().close()  # it removes what nobody holds
            assert part.read_text() == str(number)
            folder.close()

    with ThreadPoolExecutor(4) as threads:
        assert len([*threads.map(comes_and_goes, range(4))]) == 4
    assert not [*temporary.iterdir()]


def test_a_lock_that_was_removed_meanwhile_is_not_taken(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last, flock, waited = LocalFolder(), fcntl.flock, []

    def others_are_first(fd: int, operation: int) -> None:
        if not waited:  # whoever waits for the lock here gets one that the last has removed
            waited.append(fd)
            last.close()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", others_are_first)
    folder = LocalFolder()
    assert waited and folder.root.is_dir()
    LocalFolder().close()
    assert folder.root.is_dir()
    folder.close()
    assert not [*temporary.iterdir()]
