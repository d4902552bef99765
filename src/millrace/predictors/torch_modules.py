"""What can be done with a torch module without changing it: another of its kind, its words, its bytes."""

from __future__ import annotations

import copy
import inspect
import io
import pickletools
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from millrace.errors import ModelError

# What the first layer that says so expects: its attribute, and the words for it.
_EXPECTS = {
    "in_features": "{} features in the last dimension",
    "in_channels": "{} channels in dimension 1",
    "num_embeddings": "integers below {}",
    "input_size": "{} features in the last dimension",
    "num_features": "{} features in dimension 1",
}
_MANGLED = re.compile(rb"[./]?___torch_mangle_\d+")  # torch numbers equal class names as they come
_WEIGHTS = re.compile(r"/(data|constants)/\d+$")


def rebuilt(module: Any, change: Callable[[Any], Any]) -> Any:
    """Return a module of the same structure whose weights are ``change(weight)``; nothing else is copied twice.

    Weights that ``change`` gives back as they are are shared with ``module``; what is tied stays tied.
    """
    import torch

    weights = [*module.parameters(), *module.buffers()]
    memo: dict[int, Any] = {}
    for weight in weights:
        made = change(weight).detach()
        if isinstance(weight, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=weight.requires_grad and made.is_floating_point())
        memo[id(weight)] = made
    try:
        return copy.deepcopy(module, memo)
    except Exception as error:
        raise ModelError(
            f"{type(module).__name__} cannot be copied ({error}), and without a copy it would be changed itself. "
            "Convert it before: model.to(…)."
        ) from error


def moved(module: Any, device: Any, dtype: Any) -> Any:
    """Return ``module`` on ``device``, its floating weights as ``dtype`` if given; itself if it is so already."""
    import torch

    def change(weight: Any) -> Any:
        return weight.to(device, dtype if weight.is_floating_point() else None)

    device = torch.device(device)
    weights = [*module.parameters(), *module.buffers()]
    if all(_is_on(weight, device) and _is_of(weight, dtype) for weight in weights):
        return module
    if isinstance(module, torch.jit.ScriptModule):
        return copy.deepcopy(module).to(device=device, dtype=dtype)
    if isinstance(module, torch.fx.GraphModule):  # made anew from an ExportedProgram, but with its weights
        for part in module.modules():
            for named in (part._parameters, part._buffers):
                for name, weight in named.items():
                    if weight is not None:
                        new = change(weight).detach()
                        named[name] = torch.nn.Parameter(new, False) if named is part._parameters else new
        return module
    return rebuilt(module, change)


def _is_on(weight: Any, device: Any) -> bool:
    return weight.device.type == device.type and device.index in (None, weight.device.index)


def _is_of(weight: Any, dtype: Any) -> bool:
    return dtype is None or not weight.is_floating_point() or weight.dtype == dtype


def without_weights(module: Any) -> Any:
    """Return a module of the same structure without what a state dict would fill in."""
    import torch

    filled = {id(tensor) for tensor in module.state_dict(keep_vars=True).values()}

    def change(weight: Any) -> Any:
        return torch.empty_like(weight, device="meta") if id(weight) in filled else weight

    return rebuilt(module, change)


def floating(module: Any) -> Any:
    """Return the dtype of the first floating weight; float32 if there is none."""
    import torch

    for weights in (module.parameters(), module.buffers()):
        for weight in weights:
            if weight.is_floating_point():
                return weight.dtype
    return torch.float32


def arguments(module: Any) -> tuple[str, ...]:
    """Return the names of ``forward``'s arguments; () where it does not say."""
    schema = getattr(module.forward, "schema", None)
    if schema is not None:  # TorchScript
        return tuple(argument.name for argument in schema.arguments[1:])
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def expects(module: Any) -> str:
    """Say what a module takes, as far as its first layers tell."""
    for layer in module.modules():
        for attribute, words in _EXPECTS.items():
            size = getattr(layer, attribute, None)
            if isinstance(size, int):
                name = getattr(layer, "original_name", type(layer).__name__)
                return f"its first layer, {name}, takes {words.format(size)}"
    return ""


def takes_one_feature(module: Any) -> bool:
    """Say whether the first layer that has a size is a linear one of a single feature."""
    for layer in module.modules():
        if any(isinstance(getattr(layer, attribute, None), int) for attribute in _EXPECTS):
            return getattr(layer, "in_features", None) == 1
    return False


def expects_exported(program: Any) -> str:
    """Say with what inputs a program was exported."""
    said = []
    fixed = False
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if (
            node.op == "placeholder"
            and node.name in program.graph_signature.user_inputs
            and hasattr(value, "shape")
        ):
            shape = ", ".join(str(size) for size in value.shape)
            said.append(f"{node.name}: {str(value.dtype).removeprefix('torch.')} ({shape})")
            fixed |= bool(value.shape) and isinstance(value.shape[0], int)
    words = f"it was exported for {', '.join(said)}"
    if fixed:
        words += (
            "; to take any number of rows, export it with dynamic_shapes={…: {0: torch.export.Dim.DYNAMIC}}"
        )
    return words


# ---------------------------------------------------------------- what is no plain object of Python


class Saved:
    """A ScriptModule or an ExportedProgram on its way: pickled as the bytes of torch's own way to save it."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __reduce__(self) -> Any:
        """Send the bytes as a buffer, and make the model at the other end."""
        import torch

        return _again, (
            isinstance(self._model, torch.jit.ScriptModule),
            np.frombuffer(_bytes_of(self._model), np.uint8),
        )


def _again(script: bool, data: Any) -> Any:
    import torch

    with quiet():
        file = io.BytesIO(data)
        return torch.jit.load(file, map_location="cpu") if script else torch.export.load(file)


def _bytes_of(model: Any) -> bytes:
    import torch

    with io.BytesIO() as file, quiet():
        if isinstance(model, torch.jit.ScriptModule):
            torch.jit.save(model, file)
        else:
            torch.export.save(model, file)
        return file.getvalue()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from advising those who use what it would rather have replaced."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`isinstance\(treespec", FutureWarning)
        yield


def script_identity(model: Any) -> Any:
    """Return what makes a ScriptModule this one: its code, constants, attributes and weights."""
    parts = []
    with zipfile.ZipFile(io.BytesIO(_bytes_of(model))) as archive:
        for name in archive.namelist():
            if "/.data/" in name or name.endswith(".debug_pkl"):
                continue
            data = archive.read(name)
            if not _WEIGHTS.search(name):
                data = _MANGLED.sub(b"", data)
            if name.endswith(".pkl"):  # what was seen before depends on who else holds it
                data = pickletools.optimize(data)
            parts.append((_MANGLED.sub(b"", name.encode()), data))
    return sorted(parts)


def export_identity(program: Any) -> Any:
    """Return what makes an ExportedProgram this one: its graph, signature and weights."""
    return (
        program.graph_module.code,
        str(program.graph_signature),
        dict(program.state_dict),
        {name: value for name, value in program.constants.items() if hasattr(value, "dtype")},
    )
