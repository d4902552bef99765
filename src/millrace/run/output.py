"""The output folder: whose it is, who holds it, and which run is in force.

::

    OUT/part-00007-k3f9a2xq.parquet     published parts
    OUT/_SUCCESS                        the output is complete
    OUT/_millrace/lock                  held by the driver that works here
    OUT/_millrace/current               names the run whose parts are in OUT
    OUT/_millrace/next                  names the hidden run of mode="overwrite" that will take its place
    OUT/_millrace/<run>/plan            the saved plan
    OUT/_millrace/<run>/journal         the only truth about what is done
    OUT/_millrace/<run>/staging/        what attempts write; dropped when the run ends
    OUT/_millrace/<run>/manifest        the published files, once complete
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from millrace.core import failpoints
from millrace.errors import ForeignOutput, OutputWriteFailed, RunLocked

HOME = "_millrace"
SUCCESS = "_SUCCESS"


def new_run_name() -> str:
    """Return a fresh run name: eight characters that sort nothing and collide with nobody."""
    alphabet = "abcdefghijkmnpqrstuvwxyz23456789"
    return "".join(secrets.choice(alphabet) for _ in range(8))


class OutputFolder:
    """An output folder under our lock. Close it, or the lock stays until the process ends."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / HOME
        self._made = _first_missing(root)
        self._lock = -1
        _check_foreign(root)
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise OutputWriteFailed(
                f"The output folder {root} cannot be written: {error.strerror}. Choose another folder, or "
                "change its permissions."
            ) from error
        self._take_lock()
        self._sweep()

    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._lock, 100, 0).decode(errors="replace").strip() or "another process"
            os.close(self._lock)
            self._lock = -1
            raise RunLocked(
                f"The output folder {self.root} is being written by {holder}. Wait until it ends (or end it), "
                "then run again; two drivers never share an output."
            ) from error
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()} on {os.uname().nodename}\n".encode(), 0)

    def _sweep(self) -> None:
        """Drop run folders that no pointer names: their driver died before it began, or after it was swapped."""
        named = {self.current(), self.next()}
        for entry in self.home.iterdir():
            if entry.is_dir() and entry.name not in named:
                shutil.rmtree(entry, ignore_errors=True)

    # ------------------------------------------------------------ pointers

    def current(self) -> str | None:
        """The run whose parts are in the folder."""
        return self._read("current")

    def next(self) -> str | None:
        """The hidden run that will take the place of the current one."""
        return self._read("next")

    def _read(self, pointer: str) -> str | None:
        try:
            return (self.home / pointer).read_text().strip() or None
        except FileNotFoundError:
            return None

    def point(self, pointer: str, run: str | None) -> None:
        """Make ``pointer`` name ``run`` (None: remove it), at once or not at all."""
        path = self.home / pointer
        if run is None:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()
        else:
            write_whole(path, f"{run}\n".encode())
        sync_folder(self.home)

    # ------------------------------------------------------------ runs

    def folder(self, run: str) -> Path:
        """The folder that holds a run's plan, journal and staging."""
        return self.home / run

    def make(self, run: str) -> Path:
        """Make the folder of a new run."""
        folder = self.folder(run)
        try:
            folder.mkdir(mode=0o700)
            (folder / "staging").mkdir(mode=0o700)
        except OSError as error:
            raise OutputWriteFailed(f"The run folder {folder} cannot be made: {error.strerror}.") from error
        return folder

    def parts(self) -> list[str]:
        """Names in the folder that may be parts: everything that is not hidden."""
        return [name for name in os.listdir(self.root) if not name.startswith(("_", "."))]

    def remove_success(self) -> None:
        """Withdraw the word that the output is complete."""
        with contextlib.suppress(FileNotFoundError):
            (self.root / SUCCESS).unlink()

    def forget(self, run: str) -> None:
        """Remove a run: its pointer, its published parts (``_SUCCESS`` goes first), its folder."""
        if self.current() == run:
            self.remove_success()
            self.remove_parts(run)
            self.point("current", None)
        if self.next() == run:
            self.point("next", None)
        shutil.rmtree(self.folder(run), ignore_errors=True)

    def remove_parts(self, run: str) -> None:
        """Remove a run's published parts."""
        for name in self.parts():
            if f"-{run}." in name:
                (self.root / name).unlink(missing_ok=True)

    def close(self, *, forget: bool = False) -> None:
        """Let go of the lock; with ``forget``, remove whatever this object made, as far as it is empty."""
        if self._lock < 0:
            return
        if forget and self.current() is None and self.next() is None:
            shutil.rmtree(self.home, ignore_errors=True)
            if self._made is not None:
                _remove_empty(self.root, self._made)
        os.close(self._lock)
        self._lock = -1


def _first_missing(path: Path) -> Path | None:
    missing = None
    while not path.exists():
        missing, path = path, path.parent
    return missing


def _remove_empty(folder: Path, top: Path) -> None:
    with contextlib.suppress(OSError):
        while True:
            folder.rmdir()
            if folder == top:
                return
            folder = folder.parent


def _check_foreign(root: Path) -> None:
    if not root.exists():
        return
    if not root.is_dir():
        raise ForeignOutput(f"The output {root} is a file; an output is a folder. Choose another path.")
    if (root / HOME).exists():
        return
    others = sorted(name for name in os.listdir(root) if not name.startswith("."))
    if others:
        raise ForeignOutput(
            f"The output folder {root} holds files that Millrace did not write ({_some(others)}). Nothing was "
            "touched: choose an empty or a new folder."
        )


def check_parts(output: OutputFolder, runs: set[str]) -> None:
    """Refuse a folder in which files stand that none of ``runs`` made."""
    foreign = sorted(name for name in output.parts() if not any(f"-{run}." in name for run in runs))
    if foreign:
        raise ForeignOutput(
            f"The output folder {output.root} holds files beside our own ({_some(foreign)}); a reader of the "
            "folder would take them for predictions. Move them away, then run again."
        )


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def write_whole(path: Path, data: bytes) -> None:
    """Write a small file so that a reader, or a crash, sees all of it or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputWriteFailed(f"{path} could not be written: {error.strerror}.") from error
    failpoints.hit("plan.written")


def sync_folder(path: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
