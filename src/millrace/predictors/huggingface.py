"""Folders as ``save_pretrained`` writes them: what is in them, and loading them in silence and without a network."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from millrace.core.artifacts import Artifact, loading_call, refuse_pickle, shortened, threads
from millrace.errors import ArgumentError, MillraceError, MissingLibrary, ModelUnreadable

_PICKLES = ("pytorch_model", "adapter_model")
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}


def json_in(folder: str, name: str) -> Any:
    """Return the content of a JSON file, None if it is not there or is not one."""
    try:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def checked_folder(path: str, sha256: str | None, *, marker: str, trust_pickle: bool) -> Artifact:
    """Return the folder at ``path`` if it has ``marker`` and weights that are no pickle, or one that is trusted.

    Raises ``ArgumentError`` for a name of the hub: nothing is downloaded.
    """
    if (
        not os.path.exists(os.path.expanduser(path))
        and path.count("/") <= 1
        and not path.startswith((".", "/"))
    ):
        raise ArgumentError(
            f"{path!r} is not a folder here. If it is a model of the Hugging Face hub, download it first with "
            f"`hf download {path} --local-dir {path.rpartition('/')[2]}`, and give that folder: Millrace never "
            f"downloads models, so that all workers have the same one."
        )
    artifact = Artifact(path, sha256).checked()
    if not isinstance(json_in(artifact.path, marker), dict | list):
        raise ModelUnreadable(
            f"{artifact.path} is not a folder with a model: it has no readable {marker}. Save the model with "
            f"save_pretrained(folder), its tokenizer too."
        )
    _check_weights(artifact, trust_pickle)
    return artifact


def _check_weights(artifact: Artifact, trust_pickle: bool) -> None:
    found = False
    for folder, _, names in os.walk(artifact.path):
        safe = any(name.endswith(".safetensors") for name in names)
        pickles = [name for name in names if name.startswith(_PICKLES) and name.endswith(".bin")]
        found = found or safe or bool(pickles)
        if pickles and not safe:
            refuse_pickle(
                Artifact(os.path.join(folder, sorted(pickles)[0])),
                trust_pickle=trust_pickle,
                instead="Save the model again with save_pretrained(folder), which writes safetensors.",
                model=artifact,
            )
    if not found:
        raise ModelUnreadable(
            f"{artifact.path} holds no weights: there is neither model.safetensors nor pytorch_model.bin. Download "
            f"or save it again."
        )


def prepare() -> None:
    """Set what the libraries read at import: no talk, and no threads that nobody has given."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    if threads() == 1:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@contextlib.contextmanager
def loading(artifact: Artifact) -> Iterator[None]:
    """Load in silence; raise ``ModelUnreadable`` with what the library said, also if it made up missing weights."""
    import transformers

    logs = transformers.utils.logging
    library = logging.getLogger("transformers")
    level, bars = library.level, logs.is_progress_bar_enabled()
    ear, handlers = _Ear(), list(library.handlers)
    library.setLevel(logging.WARNING)
    library.handlers[:] = [ear]
    logs.disable_progress_bar()
    try:
        yield
    except (MillraceError, MemoryError):
        raise
    except ImportError as error:
        raise MissingLibrary(
            f"The model {artifact.name} needs a library that is not installed: {shortened(error)}."
        ) from error
    except Exception as error:
        if "out of memory" in str(error).lower():
            raise
        way_out = "Download or save it again with this version of its library."
        if "trust_remote_code" in str(error):
            way_out = (
                "If you trust that code as you trust your own: "
                f"{loading_call(artifact.path, 'trust_remote_code=True')}."
            )
        raise ModelUnreadable(
            f"The model {artifact.path} cannot be loaded: {shortened(error)}. {way_out}"
        ) from error
    finally:
        library.setLevel(level)
        library.handlers[:] = handlers
        if bars:
            logs.enable_progress_bar()
    if ear.missing:
        raise ModelUnreadable(
            f"The model {artifact.path} lacks weights that its task needs, and results would be random: "
            f"{shortened(ear.missing)}. Name the task that it was trained for with task=, or save the trained model."
        )


def words_of(tokenizer: Any) -> Any:
    """Return what makes a tokenizer, as a value that is the same in every process and after any use."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        words = json.loads(backend.to_str())
        for state in ("truncation", "padding"):  # left over from the last call
            words.pop(state, None)
        return json.dumps(words, sort_keys=True)
    return tuple(sorted(tokenizer.get_vocab().items())) if hasattr(tokenizer, "get_vocab") else None


def rest(holder: Any) -> list[tuple[Any, bool]]:
    """Put every module of torch that ``holder`` is, or has, into evaluation mode; return the modes before.

    A model that was just trained has dropout on, and a pipeline leaves that as it is.
    """
    modules = [each for each in (holder, *vars(holder).values()) if _is_module(each)]
    modes = [(part, bool(part.training)) for module in modules for part in module.modules()]
    for part, _ in modes:
        part.training = False
    return modes


def restore(modes: Iterable[tuple[Any, bool]]) -> None:
    """Put modules back into the modes that ``rest`` found them in: the object may be the user's own."""
    for part, mode in modes:
        part.training = mode


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


class _Ear(logging.Handler):
    """Listens for the one warning that makes results worthless."""

    missing = ""

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if "newly initialized" in said:
            lines = [line for line in said.splitlines() if "| MISSING" in line]
            self.missing = ", ".join(line.split("|")[0].strip() for line in lines) or said
