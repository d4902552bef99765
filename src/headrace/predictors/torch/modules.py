"""What can be done with a torch module without changing it; and the options of its predictor, by name."""

from __future__ import annotations

import copy
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from headrace.errors import ArgumentError, ModelError, UnknownArgument, nearest

# The attributes by which a layer tells its input's size, and how messages call it.
_TAKES = {
    "in_features": "{} features",
    "in_channels": "{} channels in dimension 1",
    "num_embeddings": "integers below {}",
    "input_size": "{} features",
    "num_features": "{} features in dimension 1",
}


def rebuilt(module: Any, change: Callable[[Any], Any]) -> Any:
    """Return a module of the same structure whose weights are ``change(weight)``; nothing else is copied twice.

    Weights that ``change`` gives back as they are are shared with ``module``; what is tied stays tied.
    """
    import torch

    weights = [*module.parameters(), *module.buffers()]
    memo: dict[int, Any] = {}
    for weight in weights:
        result = change(weight).detach()
        if isinstance(weight, torch.nn.Parameter):
            result = torch.nn.Parameter(
                result, requires_grad=weight.requires_grad and result.is_floating_point()
            )
        memo[id(weight)] = result
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


def forward_arguments(module: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of ``forward``'s arguments, and of those without a default; () where it has no signature."""
    schema = getattr(module.forward, "schema", None)
    if schema is not None:  # TorchScript
        own = schema.arguments[1:]
        return tuple(each.name for each in own), tuple(
            each.name for each in own if not each.has_default_value()
        )
    try:
        parameters = inspect.signature(module.forward).parameters.values()
    except (TypeError, ValueError):
        return (), ()
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return tuple(p.name for p in named), tuple(p.name for p in named if p.default is p.empty)


def takes_dict(module: Any) -> bool:
    """Return whether, by its annotation, the only required argument of ``forward`` is a dict of columns."""
    if getattr(module.forward, "schema", None) is not None:  # TorchScript
        return False
    try:
        required = [p for p in inspect.signature(module.forward).parameters.values() if p.default is p.empty]
    except (TypeError, ValueError):
        return False
    if len(required) != 1 or required[0].kind in (
        inspect.Parameter.VAR_POSITIONAL,
        inspect.Parameter.VAR_KEYWORD,
    ):
        return False
    annotation = required[0].annotation
    text = (
        annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "") or str(annotation)
    )
    return (
        re.match(r"(typing\.|collections\.abc\.|t\.)?(dict|Dict|Mapping|MutableMapping)\b", text) is not None
    )


@dataclass(frozen=True, slots=True)
class Layer:
    """The first layer of a module whose input size is known."""

    name: str
    attribute: str
    size: int

    def takes(self) -> str:
        """Say what it takes."""
        return f"its first layer, {self.name}, takes {_TAKES[self.attribute].format(self.size)}"

    def misfit(self, tensor: Any) -> str:
        """Say what it takes and what it was given instead; nothing if the tensor fits."""
        given: Any
        if self.attribute == "num_embeddings":
            if tensor.is_floating_point():
                given = str(tensor.dtype).removeprefix("torch.")
            else:
                given = next((value for value in _ends(tensor) if not 0 <= value < self.size), self.size)
        elif self.attribute in ("in_features", "input_size"):
            given = tensor.shape[-1] if tensor.ndim > 1 else 1
        else:
            given = tensor.shape[1] if tensor.ndim > 1 else "none"
        if given == self.size:
            return ""
        last = self.attribute == "in_channels" and tensor.ndim > 2 and tensor.shape[-1] == self.size
        hint = (
            f". The channels seem to come last, {tuple(tensor.shape)}: PyTorch takes them first. Move them "
            "before, in map_batches: np.moveaxis(images, -1, 1)"
        )
        return f"{self.takes()}, and was given {given}{hint if last else ''}"


def _ends(tensor: Any) -> tuple[int, ...]:
    return (int(tensor.min()), int(tensor.max())) if tensor.numel() else ()


def first_layer(module: Any) -> Layer | None:
    """Return the first layer that has a size, as far as one has."""
    for layer in module.modules():
        for attribute in _TAKES:
            size = getattr(layer, attribute, None)
            if isinstance(size, int):
                return Layer(getattr(layer, "original_name", type(layer).__name__), attribute, size)
    return None


def exported_for(program: Any) -> str:
    """Say with what inputs a program was exported."""
    inputs = [
        f"{name}: {str(value.dtype).removeprefix('torch.')} ({', '.join(map(str, value.shape))})"
        for name, value in _exported_inputs(program)
    ]
    text = f"it was exported for {', '.join(inputs)}"
    if any(value.shape and isinstance(value.shape[0], int) for _, value in _exported_inputs(program)):
        text += (
            "; to take any number of rows, export it with dynamic_shapes={…: {0: torch.export.Dim.DYNAMIC}}"
        )
    return text


def exported_rows(program: Any) -> int | None:
    """Return the number of rows that a program was exported for, None if it takes any, or inputs differ in that."""
    firsts = [value.shape[0] for _, value in _exported_inputs(program) if value.shape]
    fixed = bool(firsts) and all(isinstance(each, int) and each == firsts[0] > 0 for each in firsts)
    return firsts[0] if fixed else None


def exported_positional(program: Any) -> int:
    """Return how many of its inputs a program takes by place alone: it was exported with so many."""
    spec = program.call_spec.in_spec
    child = spec.child(0) if hasattr(spec, "child") else spec.children_specs[0]  # older ones
    return int(child.num_children)


def _exported_inputs(program: Any) -> list[tuple[str, Any]]:
    return [
        (node.name, node.meta["val"])
        for node in program.graph.nodes
        if node.op == "placeholder"
        and node.name in program.graph_signature.user_inputs
        and hasattr(node.meta.get("val"), "shape")
    ]


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch from advising those who use what it would rather have replaced."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`isinstance\(treespec", FutureWarning)
        yield


# ---------------------------------------------------------------- options, checked without torch

DTYPES = ("float16", "bfloat16", "float32", "float64")
INPUTS = (*DTYPES, "uint8", "int8", "int16", "int32", "int64", "bool")
AUTOCAST = ("float16", "bfloat16")
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")
_COMPILE = ("fullgraph", "dynamic", "backend", "mode", "options")


def device_name(device: Any) -> str | None:
    """Return the name of a device; None if it is not given."""
    if device is None:
        return None
    name = str(device)
    if type(device).__name__ not in ("str", "device") or not _DEVICE.fullmatch(name):
        raise ArgumentError(f"device= is 'cpu', 'cuda', 'cuda:1', 'mps' or 'xpu', not {device!r}.")
    return name


def dtype_name(argument: str, dtype: Any, known: tuple[str, ...]) -> str | None:
    """Return the name of a dtype, given as that or as torch.dtype; one of ``known``."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if type(dtype).__name__ not in ("str", "dtype") or name not in known:
        raise ArgumentError(f"{argument}= is one of {', '.join(known)}, not {dtype!r}.{nearest(name, known)}")
    return name


def input_dtypes(dtypes: Any) -> str | dict[str, str] | None:
    """Return the name of the dtype of all inputs, or a dict of such names by column; None if it is not given."""
    if not isinstance(dtypes, Mapping):
        return dtype_name("input_dtype", dtypes, INPUTS)
    names = {str(name): dtype_name("input_dtype", dtype, INPUTS) for name, dtype in dtypes.items()}
    return {name: dtype for name, dtype in names.items() if dtype is not None}


def compile_options(compile: Any) -> dict[str, Any] | None:
    """Return the options for torch.compile; None if it is not to compile."""
    if isinstance(compile, bool):
        return {} if compile else None
    if not isinstance(compile, Mapping):
        raise ArgumentError(
            f"compile= is True, False or a dict of options for torch.compile, not {compile!r}."
        )
    for name in compile:
        if name not in _COMPILE:
            raise UnknownArgument(
                f"torch.compile has no option {name!r}.{nearest(str(name), _COMPILE)} It takes: "
                f"{', '.join(_COMPILE)}."
            )
    return dict(compile)


def checked_architecture(architecture: Any) -> Any:
    """Return what will make the module; of a module, one without its weights."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(architecture, torch.nn.Module):
        return without_weights(architecture)
    if architecture is None:
        return None
    if not callable(architecture):
        raise ArgumentError(
            f"architecture= is a torch.nn.Module, or a class or function that makes one, not {architecture!r}."
        )
    try:
        inspect.signature(architecture).bind()
    except TypeError as error:
        raise ArgumentError(
            f"architecture= is called without arguments, but it takes some ({error}). Give functools.partial(…) or "
            "a lambda."
        ) from error
    except ValueError:  # it has no signature
        pass
    return architecture


def architecture_identity(architecture: Any) -> Any:
    """Return what names an architecture; of a module, all but its weights, which are the file's."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(architecture, torch.nn.Module):
        return architecture
    return rebuilt(architecture, lambda weight: torch.empty(0) if weight.is_meta else weight)
