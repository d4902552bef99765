"""One way to the disk: on macOS, plain fsync stops at the drive's cache."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.core.files.safe_files import sync_fd, sync_folder

F_FULLFSYNC = 51


def _as_on_macos(monkeypatch: pytest.MonkeyPatch, full: Callable[[int], None]) -> None:
    real = fcntl.fcntl

    def call(fd: int, command: int, *args: Any) -> Any:
        return full(fd) if command == F_FULLFSYNC else real(fd, command, *args)

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", call)


@pytest.mark.skipif(sys.platform != "linux", reason="it asks /proc which file a descriptor is")
def test_everything_that_is_synced_goes_past_the_cache_of_the_drive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    _as_on_macos(monkeypatch, lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    plain: list[int] = []
    monkeypatch.setattr(os, "fsync", plain.append)
    hr.range(10).with_options(engine="inline").write_parquet(str(tmp_path / "out"))
    assert not plain
    for name in ("journal", "plan", "staged", "_SUCCESS", "/out"):
        assert [path for path in synced if name in path], name


def test_where_there_is_no_such_call_the_plain_one_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(fd: int) -> None:
        raise OSError(errno.ENOTSUP, "not here")

    _as_on_macos(monkeypatch, refuses)
    plain: list[int] = []
    monkeypatch.setattr(os, "fsync", plain.append)
    sync_fd(7)
    sync_folder(tmp_path)
    assert len(plain) == 2


def test_a_sync_that_failed_is_not_tried_in_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    _as_on_macos(monkeypatch, fails)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    with pytest.raises(OSError, match="the disk is gone"):
        sync_fd(7)
