"""Model files: what is at a path, whether it is what it should be, and which libraries it takes to read it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass

from millrace.errors import MissingLibrary, ModelChanged, ModelUnreadable, UntrustedPickle

_CHUNK = 4 << 20


@dataclass(frozen=True, slots=True)
class Artifact:
    """A model on disk: a file, or a folder of files. ``sha256`` pins its content, as ``digest`` gives it."""

    path: str
    sha256: str | None = None

    @property
    def name(self) -> str:
        """The name that messages use."""
        return os.path.basename(os.path.normpath(self.path))

    def checked(self) -> Artifact:
        """Return this artifact with an absolute path, if it is there and is the one that was pinned.

        Raises ``ModelUnreadable`` if nothing is there, ``ModelChanged`` if its content is not ``sha256``.
        """
        path = os.path.abspath(os.path.expanduser(self.path))
        if not os.path.exists(path):
            raise ModelUnreadable(f"There is no model at {self.path!r} (looked for {path}).")
        found = Artifact(path, self.sha256)
        found.verify()
        return found

    def verify(self) -> None:
        """Raise ``ModelChanged`` unless the content is the pinned one."""
        if self.sha256 is not None and self.digest() != self.sha256.strip().lower():
            raise ModelChanged(
                f"The model at {self.path} is not the one that was pinned: its SHA-256 is {self.digest()}, and "
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
            if not os.path.isdir(self.path):
                return _digest(self.path)
            names = sorted(_files(self.path))
            lines = (f"{_digest(os.path.join(self.path, name))}  {name}\n" for name in names)
            return hashlib.sha256("".join(lines).encode()).hexdigest()
        except OSError as error:
            raise ModelUnreadable(f"The model at {self.path} cannot be read: {error.strerror}.") from error


def _files(folder: str) -> Iterator[str]:
    for root, _, names in os.walk(folder):
        for name in names:
            yield os.path.relpath(os.path.join(root, name), folder).replace(os.sep, "/")


def _digest(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
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
        raise MissingLibrary(
            f"{what} needs {module}, which is not installed here: pip install 'millrace[{extra}]'."
        )


def refuse_pickle(artifact: Artifact, *, trust_pickle: bool, instead: str) -> None:
    """Raise ``UntrustedPickle`` unless the user trusts this file; ``instead`` names the safe way."""
    if not trust_pickle:
        raise UntrustedPickle(
            f"{artifact.path} is a pickle: whoever made it can run any code on the machine that reads it. "
            f"{instead} If you trust it as you trust your own code, say trust_pickle=True; sha256= pins it."
        )


def threads() -> int | None:
    """Return how many threads a library may use in this worker; None where nobody has said."""
    said = os.environ.get("OMP_NUM_THREADS", "")
    return int(said) if said.isdigit() and int(said) > 0 else None
