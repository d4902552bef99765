"""PyTorch: modules, TorchScript, exported programs, safetensors."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import Columns
from headrace.core.files.artifacts import Artifact, loading_call, refuse_pickle, require, threads
from headrace.errors import ArgumentError, ModelError, ModelUnreadable
from headrace.predictors import Direct, directly
from headrace.predictors.torch.execution import LoadedModule, Submitted, check_recorded
from headrace.predictors.torch.files import Kind, kind_of, read
from headrace.predictors.torch.modules import (
    AUTOCAST,
    DTYPES,
    architecture_identity,
    checked_architecture,
    compile_options,
    device_name,
    dtype_name,
    exported_for,
    exported_positional,
    exported_rows,
    first_layer,
    floating,
    forward_arguments,
    input_dtypes,
    moved,
    quiet,
    rebuilt,
    takes_dict,
)
from headrace.predictors.torch.values import Inputs, transfers_to

__all__ = ["TorchPredictor", "kind_of"]


class TorchPredictor(Direct):
    """Predicts with a PyTorch module: one tensor, or a dict of tensors, per batch becomes the result.

    Parameters
    ----------
    model
        An ``nn.Module``; or the path of a file: ``.pt2`` (torch.export), TorchScript, ``.safetensors`` with
        ``architecture``, or a pickle (``.pt``, ``.pth``, ``.bin``: a whole module, or weights with
        ``architecture``) with ``trust_pickle``.
    architecture
        For files of weights: a module, or what returns one when called (a class, a function).
    device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``, …; default: the GPU where there is one.
    input_dtype
        What columns are converted to: ``torch.float32``, ``"int64"``, …, or a dict of such by column. Default:
        floats to the dtype of the weights, integers stay as they are.
    dtype
        Floating dtype that the weights are converted to: ``"float16"``, ``"bfloat16"``, ``"float32"``,
        ``"float64"``.
    autocast
        ``"float16"`` or ``"bfloat16"``: run under ``torch.autocast``.
    compile
        True, or a dict of options for ``torch.compile``.
    sha256
        What the file's digest has to be.
    trust_pickle
        Read files that could run any code. Only safetensors cannot by their nature: exported programs and
        TorchScript are programs, so use them only from people you trust.

    One input column is given as it is, of shape (n,) or (n, k…): floats in the module's dtype, integers as
    they are; numbers (n,) for a first layer of one feature as (n, 1). Several are given by name if ``forward``
    has arguments of their names, and others left out if it has all that it needs; as a dict of tensors
    (n, 1) or (n, k…) if it takes one; else side by side (n, k). A
    program that was exported with a fixed number of rows is run in pieces of so many, the last one filled up with
    its last row; export it with ``dynamic_shapes`` to be faster.

    Raises ``ArgumentError``, ``ModelUnreadable``, ``ModelChanged``, ``UntrustedPickle``, ``MissingLibrary``;
    when predicting ``BadInput`` and ``BadReturn``.

    Examples
    --------
    >>> import numpy as np, torch
    >>> model = torch.nn.Linear(2, 1)
    >>> _ = torch.nn.init.ones_(model.weight), torch.nn.init.zeros_(model.bias)
    >>> predictor = TorchPredictor(model)
    >>> predictor.load()
    >>> predictor.predict({"a": np.array([1.0, 2.0]), "b": np.array([10.0, 20.0])})
    array([[11.],
           [22.]], dtype=float32)
    >>> predictor.close()
    """

    classes = ("Module", "ExportedProgram")
    kind_of = staticmethod(kind_of)
    batch_format = "numpy"

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        architecture: Any = None,
        device: Any = None,
        input_dtype: Any = None,
        dtype: Any = None,
        autocast: Any = None,
        compile: bool | Mapping[str, Any] = False,
        sha256: str | None = None,
        trust_pickle: bool = False,
    ) -> None:
        self._device = device_name(device)
        self._dtype = dtype_name("dtype", dtype, DTYPES)
        self._input_dtypes = input_dtypes(input_dtype)
        self._autocast = dtype_name("autocast", autocast, AUTOCAST)
        self._compile = compile_options(compile)
        self._trust_pickle = trust_pickle
        self._architecture: Any = None
        self._model: Any = None
        self._artifact: Artifact | None = None
        self._kind: Kind | None = None
        self._loaded: LoadedModule | None = None
        if isinstance(model, (str, os.PathLike)):
            self._use_file(os.fspath(model), sha256, architecture, trust_pickle)
        else:
            if sha256 is not None or architecture is not None:
                raise ArgumentError("architecture= and sha256= go with a path, and model is an object.")
            self._use_object(model)
        self._check()

    def _check(self) -> None:
        if self._kind == "script" and self._compile is not None:
            raise ArgumentError("compile= does not go with TorchScript, which is compiled already.")

    def _use_file(self, path: str, sha256: str | None, architecture: Any, trust_pickle: bool) -> None:
        artifact = Artifact(path, sha256).checked()
        kind = None if os.path.isdir(artifact.path) else kind_of(artifact.path)
        if kind is None:
            raise ModelUnreadable(
                f"{artifact.path} is not a file of PyTorch: neither torch.export (.pt2), TorchScript, safetensors "
                "nor a pickle of torch.save."
            )
        if kind == "pickle":
            refuse_pickle(
                artifact,
                trust_pickle=trust_pickle,
                instead="Save the weights with safetensors.torch.save_file and give architecture=, which is safe; "
                "or the program with torch.export.save.",
            )
        if kind == "safetensors":
            if architecture is None:
                raise ArgumentError(
                    f"{artifact.name} holds weights without a module. Give what makes the module: "
                    f"{loading_call(artifact.path, 'architecture=Net')}."
                )
            require("safetensors", "torch", f"The model {artifact.name}")
        elif architecture is not None and kind != "pickle":
            raise ArgumentError(f"{artifact.name} holds a whole program: leave out architecture=.")
        require("torch", "torch", f"The model {artifact.name}")
        self._artifact, self._kind = artifact, kind
        self._architecture = checked_architecture(architecture)
        self.label = artifact.name

    def _use_object(self, model: Any) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(model, (torch.jit.ScriptModule, torch.export.ExportedProgram)):
            raise ArgumentError(
                f"A {type(model).__name__} is given by its file: save it with torch.jit.save(script, 'model.pt') or "
                "torch.export.save(program, 'model.pt2')."
            )
        if torch is None or not isinstance(model, torch.nn.Module):
            raise ArgumentError(
                f"TorchPredictor takes a torch.nn.Module or a path, not {type(model).__name__}."
            )
        self.label = str(type(model).__name__)
        self._model = model

    # ------------------------------------------------------------ what it is

    def identity(self) -> Any:
        """Return what a run is recognised by: the model, and the dtypes that it works in."""
        options: tuple[Any, ...] = (self._dtype, self._autocast)
        if self._input_dtypes is not None:
            options = (*options, self._input_dtypes)
        if self._artifact is not None:
            return "torch", self._artifact.digest(), architecture_identity(self._architecture), *options
        return "torch", _in_eval_mode(self._to_send()), *options

    def weights(self) -> str:
        """Say where the weights are while workers work."""
        if self._device not in (None, "cpu"):
            return f"each worker has its own copy of {self.label} on its device"
        if self._artifact is None:
            return f"all workers share one copy of the weights of {self.label}"
        if self._kind in ("safetensors", "pickle") and self._dtype is None:
            return f"all workers map the weights in {self.label}, one copy in memory"
        return super().weights()

    def __getstate__(self) -> dict[str, Any]:
        """Send what was given, in the dtype that is asked for, so that workers need not convert each for itself."""
        state = super().__getstate__()
        if self._model is not None:
            state["_model"] = self._to_send()
        return state

    def _to_send(self) -> Any:
        return moved(self._model, "cpu", self._torch_dtype())

    # ------------------------------------------------------------ the port

    def load(self) -> None:
        """See ``Predictor.load``."""
        import torch

        device = self._chosen_device()
        if self._artifact is not None:
            self._artifact.verify()
        model = self._read_model()
        check_recorded(model, self.label)
        exported = isinstance(model, torch.export.ExportedProgram)
        with quiet():
            module = model.module() if exported else model
            module = moved(module, device, self._torch_dtype())
        call = self._compiled(module, device)
        training = [] if exported else [(part, part.training) for part in module.modules()]
        if not exported:  # a program was exported in the mode in which it is to work
            module.eval()
        count, before = threads(), torch.get_num_threads()
        if count is not None and count != before:
            torch.set_num_threads(count)
        rows = exported_rows(model) if exported else None
        transfers = transfers_to(device) if rows is None else None
        names, required = forward_arguments(module)
        self._loaded = LoadedModule(
            module=module,
            call=call,
            label=self.label,
            compiled=self._compile is not None,
            autocast=self._autocast,
            inputs=Inputs(
                device,
                floating(module),
                names,
                required,
                None if exported else first_layer(module),
                exported_positional(model) if exported else 0,
                transfers,
                self._input_dtypes,
                as_dict=not exported and takes_dict(module),
            ),
            exported_for=exported_for(model) if exported else "",
            rows=rows,
            training=training,
            threads=before,
            transfers=transfers,
        )

    def predict(self, batch: Columns) -> Any:
        """See ``Predictor.predict``."""
        if self._loaded is None:
            return directly(self, batch)
        return self._loaded.collect(self._loaded.submit(batch))

    @property
    def in_flight(self) -> int:
        """How many batches to submit before the first is collected: 2 on CUDA, where copies and computing overlap."""
        return 2 if self._loaded is not None and self._loaded.transfers is not None else 1

    def submit(self, batch: Columns) -> Submitted:
        """See ``Predictor``. CUDA computes from here on by itself; elsewhere, and in pieces, ``collect`` does."""
        return self._ready().submit(batch)

    def collect(self, handle: Submitted) -> Any:
        """See ``Predictor``."""
        return self._ready().collect(handle)

    def close(self) -> None:
        """See ``Predictor.close``; the module is again as it was given."""
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            loaded.close()

    def _ready(self) -> LoadedModule:
        assert self._loaded is not None, "load() comes first"
        return self._loaded

    # ------------------------------------------------------------ loading

    def _read_model(self) -> Any:
        if self._artifact is None or self._kind is None:
            return self._model
        return read(self._artifact, self._kind, self._architecture, trust_pickle=self._trust_pickle)

    def _torch_dtype(self) -> Any:
        import torch

        return None if self._dtype is None else getattr(torch, self._dtype)

    def _chosen_device(self) -> Any:
        import torch

        if self._device is None:
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        device = torch.device(self._device)
        if device.type != "cpu":
            kind = getattr(torch, device.type)
            if (device.index or 0) >= kind.device_count():
                raise ModelError(
                    f"{self.label} is to work on device={self._device!r}, which torch does not find here. Leave out "
                    "device= to work on what is there."
                )
        return device

    def _compiled(self, module: Any, device: Any) -> Callable[..., Any]:
        if self._compile is None:
            return module  # type: ignore[no-any-return]
        import torch

        compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")
        inductor = self._compile.get("backend", "inductor") == "inductor"
        if device.type == "cpu" and inductor and shutil.which(compiler) is None:
            raise ModelError(
                f"compile= needs a C++ compiler, and {compiler!r} is not there. Install one, name yours in the "
                "environment variable CXX, or leave out compile=."
            )
        return torch.compile(module, **self._compile)  # type: ignore[no-any-return]


def _in_eval_mode(module: Any) -> Any:
    """Return a module in evaluation mode, as it predicts whatever its mode is; the weights are shared."""
    if not any(part.training for part in module.modules()):
        return module
    try:
        copied = rebuilt(module, lambda weight: weight)
    except ModelError:  # a module that cannot be copied is identified with its mode
        return module
    for part in copied.modules():
        part.training = False
    return copied
