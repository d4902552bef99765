"""Model files: what is at a path, which libraries it takes, and whether it can be loaded without harm."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from headrace.core.door import install_hint
from headrace.core.files.storage import absolute
from headrace.core.human import size
from headrace.core.process import become_worker, is_worker
from headrace.errors import ArgumentError, MissingLibrary, ModelChanged, ModelUnreadable, UntrustedPickle

# ---------------------------------------------------------------- limits, as anybody may have made a file

MOST = 32 << 20
"""Bytes of a configuration. The biggest that are known, indexes of sharded weights, have some 10 MB."""
_MOST_FILES = 100_000
_INFLATED = 256 << 20


class NotReadable(ValueError):
    """A file that is not what it should be; says why, as the end of a sentence."""


def open_regular(path: str) -> IO[bytes]:
    """Open a regular file, or one that a link leads to; never wait for a pipe, never read a device.

    Raises ``NotReadable`` for all else, ``OSError`` if it cannot be opened.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotReadable("it is not a regular file")
    return open(descriptor, "rb", buffering=0)


def content(path: str, *, most: int = MOST) -> bytes:
    """Return the bytes of a small file. Raises ``NotReadable`` if it is bigger than ``most``, or no file."""
    with open_regular(path) as file:
        return limited(file, most=most)


def limited(file: IO[bytes], *, most: int = MOST) -> bytes:
    """Read an open file, which may inflate while it is read, to its end; ``NotReadable`` beyond ``most`` bytes."""
    made = bytearray()
    while chunk := file.read(min(1 << 20, most + 1 - len(made))):
        made += chunk
        if len(made) > most:
            raise NotReadable(f"it is bigger than {size(most)}, and no configuration is")
    return bytes(made)


def from_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ``NotReadable`` for what is none, and for what nests deeper than Python can follow.

    >>> from_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    headrace.core.files.artifacts.NotReadable: it nests too deep
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise NotReadable("it nests too deep") from None
    except ValueError as error:
        raise NotReadable(str(error)) from error


def inside(name: str) -> bool:
    """Say whether a relative name stays in its folder, by its parts alone; links in it are not followed.

    >>> [inside(name) for name in ("a/b", "../b", "/b", "a/../../b", "")]
    [True, False, False, False, False]
    """
    parts = name.replace("\\", "/").split("/")
    return bool(name) and not os.path.isabs(name) and os.pardir not in parts and "\0" not in name


def walk(folder: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder with the names of its files: links are followed, entries that begin with a dot left out.

    Raises ``NotReadable`` where there is no end: a link to the whole disk, say.
    """
    been: set[str] = set()
    count = 0
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        if real in been:
            folders[:] = []
        else:
            folders[:] = [name for name in folders if not name.startswith(".")]
        been.add(real)
        count += 1 + len(names)
        if count > _MOST_FILES:
            raise NotReadable(
                f"it has more than {_MOST_FILES:,} files, and no model has; is there a link in it?"
            )
        yield root, [name for name in names if not name.startswith(".")]


def names_in_zip(path: str) -> list[str] | None:
    """Return the names of what is in a zip archive; None if it is none, or is damaged."""
    try:
        with open_regular(path) as file, zipfile.ZipFile(file) as archive:
            return archive.namelist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error):
        return None


def check_inflated(path: str) -> None:
    """Raise ``NotReadable`` if a zip archive inflates to far more than it is: weights hardly shrink."""
    packed = os.path.getsize(path)
    with open_regular(path) as file, zipfile.ZipFile(file) as archive:
        total = sum(entry.file_size for entry in archive.infolist())
    if total > max(_INFLATED, 20 * packed):
        raise NotReadable(f"its {packed:,} bytes inflate to {total:,}, and no weights are packed so tightly")


_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model on disk: a file, or a folder of files. ``sha256`` pins its content, as ``digest`` gives it.

    A copy that travels is pinned to the content whose digest was taken last: workers, however late they
    start, read what the run was planned with. Entries of a folder that begin with a dot are no part of it.
    """

    path: str
    sha256: str | None = None
    planned: str | None = field(default=None, compare=False)
    seen: list[str] = field(default_factory=list, compare=False, repr=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Artifact, (self.path, self.sha256, self.seen[-1] if self.seen else self.planned)

    @property
    def name(self) -> str:
        """The name that messages use."""
        return os.path.basename(os.path.normpath(self.path))

    def checked(self) -> Artifact:
        """Return this artifact with an absolute path, if it is there and is the one that was pinned.

        Raises ``ModelUnreadable`` if nothing is there, ``ModelChanged`` if its content is not ``sha256``.
        """
        if self.sha256 is not None and not isinstance(self.sha256, str):
            raise ArgumentError(f"sha256={self.sha256!r}: it takes the digest in hex, as a string.")
        path = absolute(self.path, "The path of the model")
        if not os.path.exists(path):
            raise ModelUnreadable(f"There is no model at {self.path!r} (looked for {path}).")
        if not os.path.isfile(path) and not os.path.isdir(path):
            raise ModelUnreadable(f"{path} is neither a file nor a folder.")
        found = Artifact(path, self.sha256)
        found.verify()
        return found

    def verify(self) -> None:
        """Raise ``ModelChanged`` unless the content is the pinned one, and the one that was planned with."""
        if self.planned is None and self.sha256 is None:
            return
        content = self.digest()
        if self.planned is not None and content != self.planned:
            raise ModelChanged(
                f"The model at {self.path} has changed since the run was planned. Its results would be those of two "
                "models. Run again with on_change='continue' to keep the rows that are finished, or with "
                "on_change='restart' to do all of them again."
            )
        if self.sha256 is not None and content != self.sha256.strip().lower():
            raise ModelChanged(
                f"The model at {self.path} is not the one that was pinned: its SHA-256 is {content}, and "
                f"sha256= says {self.sha256}. Get the right file, or pin the new one if it is meant."
            )

    def digest(self) -> str:
        """Return the SHA-256 of a file's bytes; of a folder, that of its files' names and digests in order.

        >>> import tempfile, pathlib
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = pathlib.Path(folder, "m.onnx").write_bytes(b"abc")
        ...     Artifact(folder + "/m.onnx").digest()[:8]
        'ba7816bf'
        """
        try:
            self.seen[:] = [_digest(self.path) if not os.path.isdir(self.path) else self._folder_digest()]
            return self.seen[-1]
        except OSError as error:
            raise ModelUnreadable(f"The model at {self.path} cannot be read: {error.strerror}.") from error
        except NotReadable as error:
            raise ModelUnreadable(f"The model at {self.path} cannot be read: {error}.") from error

    def _folder_digest(self) -> str:
        names = sorted(
            os.path.relpath(os.path.join(root, name), self.path).replace(os.sep, "/")
            for root, files in walk(self.path)
            for name in files
        )
        lines = (f"{_digest(os.path.join(self.path, name))}  {name}\n" for name in names)
        return hashlib.sha256("".join(lines).encode()).hexdigest()


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def require(module: str, extra: str, what: str) -> None:
    """Raise ``MissingLibrary`` if ``module`` is not installed; nothing is imported.

    ``what`` is the subject of the sentence (``"The model fare.onnx"``), ``extra`` the one of ours that has it.
    """
    try:
        found = importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        raise MissingLibrary(f"{what} needs {module}, which is not installed here: {install_hint(extra)}.")


def is_pickle(path: str) -> bool:
    """Say whether a file begins as pickles of Python 3 do."""
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        head = file.read(2)
    return head[:1] == b"\x80" and head[1:] in (b"\x02", b"\x03", b"\x04", b"\x05")


def refuse_pickle(
    artifact: Artifact, *, trust_pickle: bool, instead: str, model: Artifact | None = None
) -> None:
    """Raise ``UntrustedPickle`` unless the user trusts this file; ``instead`` names the safe way.

    ``model`` is the folder that was given, if the pickle is a file in it.
    """
    if not trust_pickle:
        call = loading_call((model or artifact).path, "trust_pickle=True")
        raise UntrustedPickle(
            f"{artifact.path} is a pickle: whoever made it can run any code on the machine that reads it. "
            f"{instead} If you trust it as you trust your own code, {call} reads it; sha256= pins it."
        )


def loading_call(path: str, options: str) -> str:
    """Return the call with which a model is read that way, for those who gave its path to ``predict``.

    >>> loading_call("models:/fare/3", "trust_pickle=True")
    "hr.load_model('models:/fare/3', trust_pickle=True)"
    """
    if os.path.isabs(path):
        near = os.path.relpath(path)
        path = path if near.startswith(os.pardir) else near
    return f"hr.load_model({path!r}, {options})"


def shortened(said: object, limit: int = 300) -> str:
    """Return what a library said as one paragraph without its full stop; cut where a sentence or a word ends.

    >>> shortened("It is\\n  cut off.")
    'It is cut off'
    >>> shortened("There is no such thing. See the documentation for more", 40)
    'There is no such thing'
    """
    text = " ".join(str(said).split())
    if len(text) <= limit:
        return text.rstrip(" .")
    text = text[: limit + 1]
    sentence = text.rfind(". ")
    if sentence > limit // 3:
        return text[:sentence]
    return text[: text.rfind(" ") if text.rfind(" ") > limit // 2 else limit].rstrip(" ,;:.") + " …"


def threads() -> int | None:
    """Return how many threads a library may use in this worker; None where nobody has said."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) > 0 else None


# ---------------------------------------------------------------- loaded once in a process of its own

# Readers of models trust the sizes and indices in a file: a damaged one can end the process, hang it, or fill the
# memory. A worker may die of that, and the run says so. In the process of the user's program a child dies instead.

TRIAL_SECONDS = 60
"""CPU time of a trial. The libraries themselves take up to ten seconds to import."""
TRIAL_MEMORY = 4 << 30
"""Bytes that a trial may use, and four times the size of the file on top."""

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # https://man7.org/linux/man-pages/man2/unshare.2.html
_OUT_OF_MEMORY, _UNREADABLE = 3, 4
_tried: set[tuple[str, str]] = set()


def try_elsewhere(predictor: Any, artifact: Artifact, *, errors_count: bool) -> None:
    """Load a predictor's file in a child, and predict one row, unless this process is a worker or did so before.

    Raises ``NotReadable`` if the child dies, or takes more than ``TRIAL_SECONDS`` or ``TRIAL_MEMORY``; with
    ``errors_count`` also where the library says there that it cannot read the file. Then this process must not try:
    what a library finds behind the end of a file differs from process to process. Without it this process tries
    itself, as it may know classes that the child does not.
    """
    if is_worker():
        return
    known = (artifact.path, artifact.digest())
    if known in _tried:
        return
    import cloudpickle

    limit = TRIAL_MEMORY + 4 * os.path.getsize(artifact.path)
    own = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "OPENBLAS_NUM_THREADS": "1"}
    try:
        child = subprocess.run(
            [
                sys.executable,
                "-c",
                "from headrace.core.files import artifacts; artifacts.carry_out_trial()",
                str(limit),
                str(TRIAL_SECONDS),
            ],
            env={**os.environ, **own},
            input=cloudpickle.dumps(predictor),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=4 * TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotReadable(
            f"a trial in a process of its own did not end within {4 * TRIAL_SECONDS} seconds"
        ) from None
    if child.returncode == _OUT_OF_MEMORY:
        raise NotReadable(f"a trial in a process of its own needed more than {size(limit)} of memory")
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise NotReadable(
            f"a trial in a process of its own did not end within {TRIAL_SECONDS} seconds of CPU time"
        )
    if child.returncode < 0:
        how = signal.Signals(-child.returncode).name
        raise NotReadable(f"a trial in a process of its own was ended by {how}")
    if errors_count and child.returncode == _UNREADABLE:
        raise NotReadable(child.stdout.decode(errors="replace"))
    _tried.add(known)


def carry_out_trial() -> None:
    """Be the child: load the predictor that comes by standard input, and predict one row."""
    import resource

    import cloudpickle

    become_worker()
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries print is for nobody
    limit, seconds = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):  # where the system allows it, there is no network
        ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    try:
        predictor = cloudpickle.load(sys.stdin.buffer)
        predictor.load()
        predictor.predict_one_row()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as error:
        if "bad_alloc" in str(error) or "bad allocation" in str(error):
            os._exit(_OUT_OF_MEMORY)
        if isinstance(error, ModelUnreadable) and error.__cause__ is not None:
            os.write(answer, str(error.__cause__).encode(errors="replace")[:4096])
            os._exit(_UNREADABLE)
    os._exit(0)
