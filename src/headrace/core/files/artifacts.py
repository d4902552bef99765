"""Model files: what is at a path, whether it is what it should be, and which libraries it takes to read it."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from dataclasses import dataclass, field
from typing import Any

from headrace.core.files.model_files import NotReadable, open_regular, walk
from headrace.core.files.paths import absolute
from headrace.core.install import install_hint
from headrace.errors import ArgumentError, MissingLibrary, ModelChanged, ModelUnreadable, UntrustedPickle

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
