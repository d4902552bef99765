"""A worker's way into the store, where it does not see the folder in which the driver stages."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from headrace.core import failpoints, process
from headrace.core.door import install_hint
from headrace.core.files import safe_files
from headrace.core.files.staged import PARTS, Uploads, notes_of, uploaded_name
from headrace.core.metric_states import STATES
from headrace.core.stores.addresses import parse_output
from headrace.core.stores.writing import ABSENT, StoreWriter, Taken
from headrace.core.work import HOME, SideFile, StagedFile
from headrace.errors import MissingLibrary, OutputWriteFailed

_AT_ONCE = 8


class Uploader:
    """One worker's way into the store: a folder of its own, in which it stages, and what it does from there."""

    def __init__(self, given: Uploads) -> None:
        self._run = given.run
        self._token = secrets.token_hex(8)
        self._store = StoreWriter(parse_output(given.address), given.options)
        with _told():
            self._check(given.mark)
            self._folder = LocalFolder()
        safe_files.make_folder(Path(self.staging), 0o700)
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="headrace-uploads")

    @property
    def staging(self) -> str:
        """Where parts are written."""
        return str(self._folder.root / "staging")

    @property
    def states(self) -> str:
        """Where big states of metrics are written."""
        return str(self._folder.root / STATES)

    def _check(self, mark: str) -> None:
        """See, before any work, that this is the driver's store, and that this machine may write there."""
        try:
            import obstore  # noqa: F401
        except ImportError as error:
            raise MissingLibrary(
                f"The worker on {_host()} uploads its parts by itself, which needs obstore there: "
                f"{install_hint('stores')}."
            ) from error
        if self._store.look(mark) is None:
            raise OutputWriteFailed(
                f"{self._store.url(mark)!r}, which the driver has just put there, is not there. See whether the "
                "environment of this machine (AWS_ENDPOINT_URL, …) leads to another store than the driver's."
            )
        self._store.put(f"{mark}-{secrets.token_hex(4)}", b"")

    def upload(self, files: Sequence[StagedFile]) -> tuple[StagedFile, ...]:
        """Upload staged files, and return them as they are staged then: in the store."""
        with _told():
            return tuple(self._threads.map(self._upload, files))

    def _upload(self, file: StagedFile) -> StagedFile:
        path = os.path.join(self.staging, file.staged)
        there = msgspec.structs.replace(file, staged=f"{PARTS}/{self._token}-{file.staged}")
        name = uploaded_name(self._run, there)
        try:
            failpoints.hit("worker.upload")
            with safe_files.file(path) as opened:
                self._store.put_file(name, opened, file.size, when=None, notes=notes_of(self._run, file))
            os.unlink(path)
            failpoints.hit("worker.uploaded")
        except OSError as error:
            raise OutputWriteFailed(
                f"Cannot upload {path} to {self._store.url(name)!r}: {error.strerror}. Finished work is kept: fix "
                "the cause, then run the same command again."
            ) from error
        return there

    def upload_states(self, states: Sequence[bytes | SideFile]) -> None:
        """Upload big states of metrics, which are named by what is in them."""
        with _told():
            for name in sorted({state.sha256 for state in states if isinstance(state, SideFile)}):
                path = Path(self.states, name)
                with contextlib.suppress(Taken):
                    self._store.put(
                        f"{HOME}/{self._run}/{STATES}/{name}", safe_files.content(path), when=ABSENT
                    )
                path.unlink()

    def close(self) -> None:
        """Remove the folder; what is under way ends before."""
        self._threads.shutdown()
        self._folder.close()


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Let an error say which machine could not write."""
    try:
        yield
    except (OutputWriteFailed, Taken) as error:
        said = str(error) or "The store says again and again that somebody else writes there."
        raise OutputWriteFailed(
            f"The worker on {_host()} does not see the folder in which the driver stages, so it uploads by itself, "
            f"by the credentials and settings of its own environment. {said}"
        ) from None


def _host() -> str:
    return os.uname().nodename


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
                process.lock(self._held)
                safe_files.make_folder(self.root, 0o700)
            finally:
                os.close(lock)
        except OSError as error:
            raise OutputWriteFailed(
                f"What is to be uploaded is first written below {above}, which cannot be used: {error.strerror}. Set "
                "TMPDIR to a folder of this machine with enough room."
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
        process.lock(lock, patience=None)
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
                if process.lock(held):
                    _remove(path)
            finally:
                os.close(held)


def _remove(folder: Path) -> None:
    import shutil  # imports five compression modules

    shutil.rmtree(folder, ignore_errors=True)
