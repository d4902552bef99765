"""Folders of this machine in which files are staged that are to be uploaded: each process has one of its own."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from headrace.core import waiting
from headrace.core.files import safe_files
from headrace.errors import OutputWriteFailed

_HELD = "held"
_LOCK = "lock"


class LocalFolder:
    """A folder below the system's for temporary files (``TMPDIR``); those that killed processes left are removed."""

    def __init__(self) -> None:
        above = Path(tempfile.gettempdir()) / f"headrace-staging-{os.getuid()}"
        try:
            lock = _locked(above, makes=True)
            try:
                _remove_left(above)
                self.path = Path(tempfile.mkdtemp(dir=above))
                self._held = safe_files.opened(self.path / _HELD, os.O_RDWR | os.O_CREAT)
                waiting.lock(self._held)
                safe_files.make_folder(self.root, 0o700)
            finally:
                os.close(lock)
        except OSError as error:
            raise OutputWriteFailed(
                f"What is to be uploaded is staged below {above}, which cannot be used: {error.strerror}. Set TMPDIR "
                "to a folder of this machine with enough room."
            ) from error

    @property
    def root(self) -> Path:
        """The folder that stands for the output."""
        return self.path / "out"

    def close(self) -> None:
        """Remove it, and the folder above once nobody has one there."""
        if self._held >= 0:
            _remove(self.path)
            os.close(self._held)
            self._held = -1
            with contextlib.suppress(OSError):
                _remove_empty(self.path.parent)


def _locked(above: Path, *, makes: bool) -> int:
    """Take the lock of the folder above, which is held for an instant: nobody removes what was not locked yet."""
    while True:
        try:
            if makes:
                safe_files.make_folder(above, 0o700)
                if os.lstat(above).st_uid != os.getuid():
                    raise PermissionError(13, "it belongs to somebody else", str(above))
            lock = safe_files.opened(above / _LOCK, os.O_RDWR | (os.O_CREAT if makes else 0))
        except FileNotFoundError:
            if not (makes and above.parent.is_dir()):
                raise
            continue  # the last one has just removed the folder
        waiting.lock(lock, patience=None)
        if safe_files.is_at(above / _LOCK, lock):
            return lock
        os.close(lock)  # the last one has just removed it, so others lock another one


def _remove_empty(above: Path) -> None:
    lock = _locked(above, makes=False)
    try:
        if os.listdir(above) == [_LOCK]:
            os.unlink(above / _LOCK)
            os.rmdir(above)  # unless somebody has just made a lock there
    finally:
        os.close(lock)


def _remove_left(above: Path) -> None:
    for path in above.iterdir():
        with contextlib.suppress(OSError):
            held = safe_files.opened(path / _HELD, os.O_RDWR)
            try:
                if waiting.lock(held):
                    _remove(path)
            finally:
                os.close(held)


def _remove(folder: Path) -> None:
    import shutil  # imports five compression modules

    shutil.rmtree(folder, ignore_errors=True)
