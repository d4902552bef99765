"""PyTorch's files: which of four kinds one is, found without torch, and the module in it."""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, cast

from headrace.core.files.artifacts import Artifact, loading_call, names_in_zip, refuse_pickle, shortened
from headrace.core.files.formats import model_format
from headrace.errors import ModelUnreadable, UntrustedPickle
from headrace.predictors.torch.modules import quiet, rebuilt

Kind = Literal["export", "script", "safetensors", "pickle"]

# How torch.save began its files before they were zip archives: a pickle of this number.
_OLD_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
_FORCE = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
_OPAQUE = "opaque_obj"


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """Return how the model at ``path`` was stored; None if it is none of PyTorch's. Imports no torch.

    The content decides; where it does not (a damaged file, for instance), the suffix does.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "weights.bin")
    ...     _ = file.write_bytes((2).to_bytes(8, "little") + b"{}")
    ...     kind_of(file)
    'safetensors'
    """
    path = os.fspath(path)
    by_suffix = cast("Kind | None", model_format(path, "torch"))
    try:
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            head = file.read(16)
    except OSError:
        return by_suffix
    if head.startswith(b"PK"):
        return _kind_of_archive(path) or by_suffix
    if head.startswith(_OLD_MAGIC) or (path.lower().endswith(".bin") and head.startswith(b"\x80")):
        return "pickle"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8:
        return "safetensors"
    return by_suffix


def _kind_of_archive(path: str) -> Kind | None:
    names = names_in_zip(path) or []
    inner = {name.split("/", 1)[1] for name in names if "/" in name}
    if "archive_format" in inner or "serialized_exported_program.json" in {*names, *inner}:
        return "export"
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "script"
    return "pickle" if "data.pkl" in inner else None


def read(artifact: Artifact, kind: Kind, architecture: Any, *, trust_pickle: bool) -> Any:
    """Return the module, or the ``ExportedProgram``, in a file.

    Raises ``ModelUnreadable``, and ``UntrustedPickle`` for exported programs that have pickles of objects in them.
    """
    import torch

    if kind == "export":
        advice = "Save it again with torch.export.save, with this version of torch."
        with _reading(artifact, "torch.export", advice), _weights_only(artifact, trust_pickle):
            return torch.export.load(artifact.path)
    if kind == "script":
        with _reading(artifact, "torch.jit", "Save it again with torch.jit.save."):
            return torch.jit.load(artifact.path, map_location="cpu")
    if kind == "safetensors":
        from safetensors.torch import load_file

        with _reading(artifact, "safetensors", "Save it again with safetensors.torch.save_file."):
            state = load_file(artifact.path)  # views of the file, which all workers map
        return filled(architecture, state, artifact.path)
    with _reading(
        artifact, "torch", "Its classes have to be importable here; save a state dict if they are not."
    ):
        loaded = torch.load(
            artifact.path, map_location="cpu", weights_only=False, mmap=zipfile.is_zipfile(artifact.path)
        )
    if isinstance(loaded, torch.nn.Module):
        return loaded
    if not isinstance(loaded, Mapping):
        raise ModelUnreadable(
            f"{artifact.path} holds a {type(loaded).__name__}: neither a torch.nn.Module nor a state dict."
        )
    if architecture is None:
        raise ModelUnreadable(
            f"{artifact.path} holds weights without a module. Give what makes the module: "
            f"{loading_call(artifact.path, 'architecture=Net, trust_pickle=True')}."
        )
    return filled(architecture, dict(loaded), artifact.path)


@contextmanager
def _reading(artifact: Artifact, reader: str, advice: str) -> Iterator[None]:
    """Make errors of ours of a library's errors about a file."""
    try:
        with quiet():
            yield
    except (MemoryError, UntrustedPickle):
        raise
    except Exception as error:
        message = shortened((str(error).strip() or type(error).__name__).splitlines()[0])
        raise ModelUnreadable(f"{artifact.path} cannot be read by {reader}: {message}. {advice}") from error


@contextmanager
def _weights_only(artifact: Artifact, trust_pickle: bool) -> Iterator[None]:
    """Keep ``torch.export.load`` from unpickling any object: it falls back to that where tensors do not do."""
    if trust_pickle:
        yield
        return
    instead = "A program may hold such in the place of tensors; export it with tensors as its example inputs."
    with zipfile.ZipFile(artifact.path) as archive:  # torch.load knows nothing of these
        if any(os.path.basename(name).startswith(_OPAQUE) for name in archive.namelist()):
            refuse_pickle(artifact, trust_pickle=False, instead=instead)
    before = os.environ.get(_FORCE)
    os.environ[_FORCE] = "1"
    try:
        yield
    except pickle.UnpicklingError as error:
        if "weights only" not in str(error).lower():
            raise
        refuse_pickle(artifact, trust_pickle=False, instead=instead)
    finally:
        if before is None:
            del os.environ[_FORCE]
        else:
            os.environ[_FORCE] = before


def filled(architecture: Any, state: dict[str, Any], place: str) -> Any:
    """Return a module with the weights of ``state``, which it takes as they lie: mapped, not copied.

    ``place`` is where the weights are, for messages.
    """
    import torch

    module = _made(architecture)
    fitting = _fitting(module, state)
    try:
        with torch.no_grad():
            module.load_state_dict(fitting, strict=True, assign=True)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise ModelUnreadable(
            f"The weights in {place} do not fit the architecture {type(module).__name__}: "
            f"{shortened(error, 1000)}."
        ) from error
    return module


def _made(architecture: Any) -> Any:
    import torch

    if isinstance(architecture, torch.nn.Module):
        return rebuilt(architecture, lambda tensor: tensor)
    make: Callable[[], Any] = architecture
    module = make()
    if not isinstance(module, torch.nn.Module):
        raise ModelUnreadable(f"architecture= gave a {type(module).__name__}, not a torch.nn.Module.")
    return module


def _fitting(module: Any, state: dict[str, Any]) -> dict[str, Any]:
    """Return ``state`` in the module's dtypes, and with the names that files leave out for tied weights."""
    import torch

    own: dict[str, Any] = module.state_dict(keep_vars=True)
    names = {id(tensor): name for name, tensor in own.items() if name in state}
    result = dict(state)
    for name, tensor in own.items():
        found = state.get(name, state.get(names.get(id(tensor), "")))
        if isinstance(found, torch.Tensor) and isinstance(tensor, torch.Tensor):
            result[name] = found.to(tensor.dtype)  # itself, if that is its dtype
    return result
