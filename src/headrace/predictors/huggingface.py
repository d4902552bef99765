"""Folders as ``save_pretrained`` writes them: what is in them, and loading them in silence and without a network."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from headrace.core.files.artifacts import (
    Artifact,
    NotReadable,
    content,
    from_json,
    inside,
    loading_call,
    refuse_pickle,
    require,
    shortened,
    threads,
    walk,
)
from headrace.errors import ArgumentError, HeadraceError, MissingLibrary, ModelUnreadable, UntrustedPickle
from headrace.predictors import Loaded

_KINDS = ("model", "adapter_model")
_PICKLED = {"model": "pytorch_model", "adapter_model": "adapter_model"}
_INDEX = ".safetensors.index.json"
_OWN_CLASS = re.compile(r"sentence_transformers(\.\w+)*\.[A-Z]\w*")
_SILENT = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error"}


def json_in(folder: str, name: str) -> Any:
    """Return the content of a JSON file, None if it is not there or is not one."""
    try:
        return from_json(content(os.path.join(folder, name)))
    except (OSError, NotReadable):
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
            f"`hf download {path} --local-dir {path.rpartition('/')[2]}`, and give that folder: Headrace never "
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
    """Raise unless the files that will be loaded, in every folder of the model, are safetensors or trusted.

    Only the names that the libraries look for count: another file of safetensors does not make a pickle safe.
    """
    found = False
    try:
        folders = list(walk(artifact.path))
    except NotReadable as error:
        raise ModelUnreadable(f"The model at {artifact.path} cannot be read: {error}.") from error
    for folder, names in folders:
        for kind in _KINDS:
            safe = _safe_weights(folder, names, kind)
            pickles = sorted(name for name in names if _is_pickled(name, kind))
            found = found or safe or bool(pickles)
            if pickles and not safe:
                _refuse(artifact, os.path.join(folder, pickles[0]), trust_pickle)
        named = json_in(folder, "config.json")
        explicit = named.get("transformers_weights") if isinstance(named, dict) else None
        if isinstance(explicit, str):
            found = True
            if not explicit.endswith((".safetensors", _INDEX)) or not inside(explicit):
                _refuse(artifact, os.path.join(folder, explicit), trust_pickle)
            if explicit.endswith(_INDEX):
                _check_shards(artifact, folder, explicit, trust_pickle)
        for name in names:
            if name.endswith(_INDEX):
                _check_shards(artifact, folder, name, trust_pickle)
    if not found:
        raise ModelUnreadable(
            f"{artifact.path} holds no weights: there is neither model.safetensors nor pytorch_model.bin. Download "
            f"or save it again."
        )


def _safe_weights(folder: str, names: Sequence[str], kind: str) -> bool:
    return any(
        name in names and os.path.isfile(os.path.join(folder, name))
        for name in (f"{kind}.safetensors", kind + _INDEX)
    )


def _is_pickled(name: str, kind: str) -> bool:
    return name.startswith(_PICKLED[kind]) and name.endswith((".bin", ".bin.index.json"))


def _check_shards(artifact: Artifact, folder: str, index: str, trust_pickle: bool) -> None:
    """Raise if an index names files of another kind than safetensors: they would be read as pickles."""
    described = json_in(folder, index)
    shards = described.get("weight_map") if isinstance(described, dict) else None
    if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
        raise ModelUnreadable(
            f"{os.path.join(folder, index)} is not an index of weights. Download or save the model again."
        )
    for shard in sorted(set(shards.values())):
        if not inside(shard):
            raise ModelUnreadable(
                f"{os.path.join(folder, index)} names weights outside of its folder: {shard!r}. It is not what "
                "save_pretrained writes: get the model again, from people you trust."
            )
        if not shard.endswith(".safetensors"):
            _refuse(artifact, os.path.join(folder, shard), trust_pickle)


def _refuse(artifact: Artifact, path: str, trust_pickle: bool) -> None:
    refuse_pickle(
        Artifact(path),
        trust_pickle=trust_pickle,
        instead="Save the model again with save_pretrained(folder), which writes safetensors.",
        model=artifact,
    )


def check_modules(artifact: Artifact) -> None:
    """Raise for a folder of sentence-transformers whose modules are not that library's own, or lie elsewhere.

    Older versions of it import whatever class a folder on this machine names, and run code from the folder.
    """
    for module in json_in(artifact.path, "modules.json") or ():
        kind = module.get("type") if isinstance(module, dict) else None
        place = module.get("path") if isinstance(module, dict) else None
        if not isinstance(kind, str) or not isinstance(place, str) or (place and not inside(place)):
            raise ModelUnreadable(
                f"{artifact.path} has a modules.json that is not one of sentence-transformers: {shortened(module)}. "
                "Download or save the model again."
            )
        if not _OWN_CLASS.fullmatch(kind):
            raise UntrustedPickle(
                f"{artifact.path} is made of a class that is not of sentence-transformers, {kind}: to load it would "
                "import and run code that the folder names. If you trust it as you trust your own code, make the "
                f"object yourself, SentenceTransformer({artifact.path!r}, trust_remote_code=True), and give that."
            )


def set_library_defaults() -> None:
    """Set the variables that the libraries read at import: no messages, and no more threads than the worker has."""
    for name, value in _SILENT.items():
        os.environ.setdefault(name, value)
    if threads() == 1:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@contextlib.contextmanager
def loading(artifact: Artifact) -> Iterator[None]:
    """Load in silence; raise ``ModelUnreadable`` with the library's message, also if it made up missing weights.

    Meanwhile nothing is fetched: a configuration may name further models, which would come from the hub.
    """
    import huggingface_hub.constants as hub
    import transformers

    logs = transformers.utils.logging
    library = logging.getLogger("transformers")
    level, bars = library.level, logs.is_progress_bar_enabled()
    missing, handlers = _MissingWeights(), list(library.handlers)
    library.setLevel(logging.WARNING)
    library.handlers[:] = [missing]
    logs.disable_progress_bar()
    offline, hub.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE, True
    try:
        yield
    except (HeadraceError, MemoryError):
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
        hub.HF_HUB_OFFLINE = offline
        library.setLevel(level)
        library.handlers[:] = handlers
        if bars:
            logs.enable_progress_bar()
    if missing.names:
        raise ModelUnreadable(
            f"The model {artifact.path} lacks weights that its task needs, and results would be random: "
            f"{shortened(missing.names)}. Name the task that it was trained for with task=, or save the trained "
            "model."
        )


def tokenizer_content(tokenizer: Any) -> Any:
    """Return what determines a tokenizer's results: the same value in every process and after any use."""
    if backend := getattr(tokenizer, "backend_tokenizer", None):
        content = json.loads(backend.to_str())
        for state in ("truncation", "padding"):  # left over from the last call
            content.pop(state, None)
        return json.dumps(content, sort_keys=True)
    return tuple(sorted(tokenizer.get_vocab().items())) if hasattr(tokenizer, "get_vocab") else None


def set_eval_mode(model: Any) -> list[tuple[Any, bool]]:
    """Put every module of torch that ``model`` is, or has, into evaluation mode; return the modes before.

    A model that was just trained has dropout on, and a pipeline leaves that as it is.
    """
    modules = [each for each in (model, *vars(model).values()) if _is_module(each)]
    modes = [(part, bool(part.training)) for module in modules for part in module.modules()]
    for part, _ in modes:
        part.training = False
    return modes


def restore_modes(modes: Iterable[tuple[Any, bool]]) -> None:
    """Put modules back into the modes that ``set_eval_mode`` returned: the object may be the user's own."""
    for part, mode in modes:
        part.training = mode


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


class _MissingWeights(logging.Handler):
    """Records the one warning that makes results worthless: weights that were initialized at random."""

    names = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "newly initialized" in message:
            lines = [line for line in message.splitlines() if "| MISSING" in line]
            self.names = ", ".join(line.split("|")[0].strip() for line in lines) or message


# ---------------------------------------------------------------- predictors for texts

# Their model is an object or a folder. They share its device, weights and identity.


class TextPredictor(Loaded):
    """Base of predictors whose model is an object of a library, or a folder that ``save_pretrained`` wrote.

    A subclass names its library, calls ``_open`` in ``__init__``, and implements ``_load_folder``, ``_copy_to``,
    ``_content`` and ``_options``.
    """

    batch_format = "numpy"

    library: ClassVar[str]
    """What is imported, the package of the model's class."""
    extra: ClassVar[str]
    """The extra of ours that installs the library; it is in messages and identities, too."""
    model_class: ClassVar[str]
    marker: ClassVar[str]
    """The JSON file by which a folder of this library is known."""
    dtypes: ClassVar[tuple[str, ...]] = ("float32", "float16", "bfloat16")

    def _open(
        self,
        model: Any,
        *,
        device: str | None,
        dtype: str | None,
        batch_size: int,
        trust_pickle: bool,
        sha256: str | None,
    ) -> None:
        """Check the options that all have, and that ``model`` is a folder or an object of the library."""
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ArgumentError(f"batch_size= takes a whole number of at least 1, not {batch_size!r}.")
        if dtype is not None and dtype not in self.dtypes:
            raise ArgumentError(f"dtype= takes one of {self.dtypes}, not {dtype!r}.")
        self._device, self._dtype, self._batch_size = device, dtype, batch_size
        self._trust_pickle = trust_pickle
        self._artifact: Artifact | None = None
        self._model: Any = None
        self.__dict__.update(self._unloaded())
        if isinstance(model, str | os.PathLike):
            self._artifact = checked_folder(
                os.fspath(model), sha256, marker=self.marker, trust_pickle=trust_pickle
            )
            self.label = self._artifact.name
            for module in (self.library, "torch"):
                require(module, self.extra, f"The model {self.label}")
        else:
            self._check_object(model)
            self._only_for_folders(dtype=dtype, sha256=sha256)
            self._model = model
            self.label = type(model).__name__

    def load(self) -> None:
        """Load the folder, or use the object that was given; without dropout, whatever its mode."""
        set_library_defaults()
        if self._artifact is None:
            # A copy is moved to another device: the object may be the user's own.
            self._loaded = self._model if self._device is None else self._copy_to(self._device)
        else:
            self._artifact.verify()
            with loading(self._artifact):
                self._loaded = self._load_folder(self._artifact)
        self._modes = set_eval_mode(self._loaded)

    def close(self) -> None:
        """Release the model; an object that was given has its modes again."""
        restore_modes(self._modes)
        super().close()

    def identity(self) -> Any:
        """Return the digest of the folder, or the content of the object; and the options that change results."""
        content = self._content(self._model) if self._artifact is None else (self._artifact.digest(),)
        return (self.extra, *content, *self._options())

    def weights(self) -> str:
        """Describe where the weights are."""
        if self._artifact is not None:
            return super().weights()
        return (
            "weights are shared between workers" if self._device is None else "each worker moves its own copy"
        )

    def _unloaded(self) -> dict[str, Any]:
        return {"_loaded": None, "_modes": []}

    def _precision(self) -> dict[str, Any]:
        return {} if self._dtype is None else {"dtype": self._dtype}

    def _weight_files(self) -> dict[str, Any]:
        """Return the option that refuses all but safetensors, unless pickles are trusted."""
        return {} if self._trust_pickle else {"use_safetensors": True}

    def _check_object(self, model: Any) -> None:
        """Raise ``ArgumentError`` unless ``model`` is an instance of the library's class."""
        if (self.library, self.model_class) not in _ancestors(model):
            raise ArgumentError(
                f"A {self.extra} model is a {self.model_class} or a folder, not {type(model).__name__}."
                f"{self._hint(model)}"
            )

    def _hint(self, model: Any) -> str:
        """Return what to do with an object of another class, as further sentences."""
        return ""

    def _only_for_folders(self, **options: Any) -> None:
        for name, value in options.items():
            if value is not None:
                raise ArgumentError(f"{name}= is for folders; a {self.model_class} has its own.")

    def _load_folder(self, artifact: Artifact) -> Any:
        """Return the model that is in a folder, which was checked."""
        raise NotImplementedError

    def _copy_to(self, device: str) -> Any:
        """Return a copy of the object on another device."""
        raise NotImplementedError

    def _content(self, model: Any) -> tuple[Any, ...]:
        """Return what determines an object's results, as values that are the same in every process."""
        raise NotImplementedError

    def _options(self) -> tuple[Any, ...]:
        """Return the options that change results."""
        raise NotImplementedError


def from_library(model: Any, library: str) -> bool:
    """Return whether an object's class, or one of its ancestors, is of a library; nothing is imported."""
    return any(package == library for package, _ in _ancestors(model))


def _ancestors(model: Any) -> list[tuple[str, str]]:
    return [(each.__module__.partition(".")[0], each.__name__) for each in type(model).__mro__]
