"""Options of PyTorch predictors, checked by name: without torch, as far as it is not imported already."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from typing import Any

from headrace.errors import ArgumentError, UnknownArgument, nearest
from headrace.predictors.torch.modules import rebuilt, without_weights

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
