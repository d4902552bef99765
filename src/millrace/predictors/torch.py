"""PyTorch: modules, TorchScript, exported programs, safetensors."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from millrace.core.arguments import known_arguments
from millrace.core.artifacts import Artifact, loading_call, refuse_pickle, require, threads
from millrace.core.direct import Direct, directly
from millrace.core.inputs import Columns, pieces
from millrace.errors import ArgumentError, ModelError, ModelUnreadable
from millrace.predictors.torch_errors import Call, explained, wants_dict
from millrace.predictors.torch_files import Kind, kind_of, read
from millrace.predictors.torch_modules import (
    Saved,
    arguments,
    export_identity,
    exported_for,
    exported_positional,
    exported_rows,
    first_layer,
    floating,
    moved,
    quiet,
    rebuilt,
    script_identity,
    takes_dict,
    words_in,
)
from millrace.predictors.torch_options import (
    AUTOCAST,
    DTYPES,
    checked_architecture,
    compile_options,
    device_name,
    dtype_name,
    emptied,
    input_dtypes,
)
from millrace.predictors.torch_training import check_recorded
from millrace.predictors.torch_transfers import Transfers, transfers_to
from millrace.predictors.torch_values import Inputs, apart, array, cut, joined, result, together

__all__ = ["TorchPredictor", "kind_of"]


@dataclass(slots=True)
class _Loaded:
    """A module that is ready, and what has to be put back when it is not needed any more."""

    module: Any
    call: Callable[..., Any]
    inputs: Inputs
    exported_for: str
    rows: int | None
    training: list[tuple[Any, bool]]
    threads: int
    transfers: Transfers | None


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A batch that is with the module; ``done``: the event after which ``made`` can be read, where it computes
    by itself."""

    batch: Columns
    args: tuple[Any, ...]
    named: dict[str, Any]
    made: Any = None
    done: Any = None


class _TakesDict(Exception):
    """A module seems to take a dict of columns; ``told`` is what to raise if it does not, None if that is sure."""

    def __init__(self, told: Exception | None) -> None:
        super().__init__()
        self.told = told


def _or_as_dict(loaded: _Loaded, work: Callable[[], Any], again: Callable[[], Any] | None = None) -> Any:
    """Do the work; if the module turns out to take a dict of columns, give it one from now on."""
    try:
        return work()
    except _TakesDict as asked:
        told, cause = asked.told, asked.__cause__
    before = loaded.inputs
    loaded.inputs = replace(before, as_dict=True)
    try:
        return (again or work)()
    except Exception:
        if told is None:
            raise
    loaded.inputs = before
    raise told from cause if told is not cause else None


def _sliced(value: Any, start: int, rows: int) -> Any:
    """Return some rows of a tensor, or of each in a dict."""
    if isinstance(value, dict):
        return {name: tensor[start : start + rows] for name, tensor in value.items()}
    return value[start : start + rows]


def _at_rest(module: Any) -> Any:
    """Return a module in evaluation mode, in which it works here whatever mode it is in; the weights are shared."""
    if not any(part.training for part in module.modules()):
        return module
    try:
        resting = rebuilt(module, lambda weight: weight)
    except ModelError:  # what cannot be copied is recognised with its mode
        return module
    for part in resting.modules():
        part.training = False
    return resting


class TorchPredictor(Direct):
    """Predicts with a PyTorch module: one tensor, or a dict of tensors, per batch becomes the result.

    Parameters
    ----------
    model
        An ``nn.Module``, a ``ScriptModule``, an ``ExportedProgram``; or the path of a file: ``.pt2``
        (torch.export), TorchScript, ``.safetensors`` with ``architecture``, or a pickle (``.pt``, ``.pth``,
        ``.bin``: a whole module, or weights with ``architecture``) with ``trust_pickle``.
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
        TorchScript are programs, so take them from those alone whom you trust.

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
        self._loaded: _Loaded | None = None
        if isinstance(model, (str, os.PathLike)):
            self._take_file(os.fspath(model), sha256, architecture, trust_pickle)
        else:
            if sha256 is not None or architecture is not None:
                raise ArgumentError("architecture= and sha256= go with a path, and model is an object.")
            self._take_object(model)
        self._check()

    def _check(self) -> None:
        if self._kind == "script" and self._compile is not None:
            raise ArgumentError("compile= does not go with TorchScript, which is compiled already.")

    def _take_file(self, path: str, sha256: str | None, architecture: Any, trust_pickle: bool) -> None:
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

    def _take_object(self, model: Any) -> None:
        torch: Any = sys.modules.get("torch")
        if torch is not None and isinstance(model, torch.jit.ScriptModule):
            self._kind, self.label = "script", str(model.original_name)
        elif torch is not None and isinstance(model, torch.nn.Module):
            self.label = str(type(model).__name__)
        elif torch is not None and isinstance(model, torch.export.ExportedProgram):
            self._kind, self.label = "export", "ExportedProgram"
        else:
            raise ArgumentError(
                "TorchPredictor takes a torch.nn.Module, a ScriptModule, an ExportedProgram or a path, not "
                f"{type(model).__name__}."
            )
        self._model = model

    # ------------------------------------------------------------ what it is

    def identity(self) -> Any:
        """Return what a run is recognised by: the model, and the dtypes that it works in."""
        options: tuple[Any, ...] = (self._dtype, self._autocast)
        if self._input_dtypes is not None:
            options = (*options, self._input_dtypes)
        if self._artifact is not None:
            return "torch", self._artifact.digest(), emptied(self._architecture), *options
        if self._kind == "script":
            return "torch", script_identity(self._model), *options
        if self._kind == "export":
            return "torch", export_identity(self._model), *options
        return "torch", _at_rest(self._sent()), *options

    def weights(self) -> str:
        """Say where the weights are while workers work."""
        if self._device not in (None, "cpu"):
            return f"each worker has its own copy of {self.label} on its device"
        if self._artifact is None and self._kind is None:
            return f"all workers share one copy of the weights of {self.label}"
        if self._kind in ("safetensors", "pickle") and self._dtype is None:
            return f"all workers map the weights in {self.label}, one copy in memory"
        return f"each worker loads its own copy of {self.label}"

    def __copy__(self) -> TorchPredictor:
        """Return another for this process, of the same model: only what travels is packed."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__, _loaded=None)
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Send what was given, in the dtype that is asked for, so that workers need not convert each for itself."""
        state = {**self.__dict__, "_loaded": None}
        if self._model is not None:
            state["_model"] = self._sent() if self._kind is None else Saved(self._model)
        return state

    def _sent(self) -> Any:
        return moved(self._model, "cpu", self._torch_dtype())

    # ------------------------------------------------------------ the port

    def load(self) -> None:
        """See ``Predictor.load``."""
        import torch

        device = self._chosen_device()
        if self._artifact is not None:
            self._artifact.verify()
        given = self._given()
        check_recorded(given, self.label)
        exported = isinstance(given, torch.export.ExportedProgram)
        with quiet():
            module = given.module() if exported else given
            module = moved(module, device, self._torch_dtype())
        call = self._compiled(module, device)
        training = [] if exported else [(part, part.training) for part in module.modules()]
        if not exported:  # a program was exported in the mode in which it is to work
            module.eval()
        wanted, before = threads(), torch.get_num_threads()
        if wanted is not None and wanted != before:
            torch.set_num_threads(wanted)
        rows = exported_rows(given) if exported else None
        transfers = transfers_to(device) if rows is None else None
        self._loaded = _Loaded(
            module,
            call,
            Inputs(
                device,
                floating(module),
                *arguments(module),
                None if exported else first_layer(module),
                exported_positional(given) if exported else 0,
                transfers,
                self._input_dtypes,
                as_dict=not exported and takes_dict(module),
                words=frozenset() if exported else words_in(module),
            ),
            exported_for(given) if exported else "",
            rows,
            training,
            before,
            transfers,
        )

    def predict(self, batch: Columns) -> Any:
        """See ``Predictor.predict``."""
        if self._loaded is None:
            return directly(self, batch)
        return self.collect(self.submit(batch))

    def predict_in_pieces(self, batch: Columns, rows: int) -> Any:
        """Return what ``predict`` gives for each ``rows`` rows, put together; all of them become tensors at once."""
        loaded = self._loaded
        assert loaded is not None, "load() comes first"
        if loaded.rows is not None:
            return self.predict(batch)
        return _or_as_dict(loaded, lambda: self._in_pieces(loaded, batch, rows))

    def _in_pieces(self, loaded: _Loaded, batch: Columns, rows: int) -> Any:
        args, named = loaded.inputs.of(batch)
        starts = range(0, max(len(next(iter(batch.values()))), 1), rows)
        with self._set_up():
            return together([self._piece(loaded, batch, args, named, at, rows) for at in starts])

    def _piece(
        self,
        loaded: _Loaded,
        batch: Columns,
        args: tuple[Any, ...],
        named: dict[str, Any],
        start: int,
        rows: int,
    ) -> Any:
        args = tuple(_sliced(each, start, rows) for each in args)
        named = _sliced(named, start, rows)
        size = min(rows, len(next(iter(batch.values()))) - start)
        return cut(self._made(loaded, batch, args, named, apart), size, size)

    @property
    def in_flight(self) -> int:
        """How many batches to submit before the first is collected: 2 on CUDA, where copies and computing overlap."""
        return 2 if self._loaded is not None and self._loaded.transfers is not None else 1

    def submit(self, batch: Columns) -> _Submitted:
        """See ``Predictor``. CUDA computes from here on by itself; elsewhere, and in pieces, ``collect`` does."""
        loaded = self._loaded
        assert loaded is not None, "load() comes first"
        if loaded.rows is not None:
            return _Submitted(batch, (), {})
        transfers = loaded.transfers
        if transfers is None:
            return _Submitted(batch, *loaded.inputs.of(batch))
        made = _or_as_dict(
            loaded, lambda: self._run(loaded, batch, *loaded.inputs.of(batch), transfers.to_host)
        )
        return _Submitted({}, (), {}, made, transfers.mark())

    def collect(self, handle: _Submitted) -> Any:
        """See ``Predictor``."""
        if handle.done is not None:
            handle.done.synchronize()
            return result(handle.made)
        loaded = self._loaded
        assert loaded is not None, "load() comes first"
        size = loaded.rows
        if size is None:
            taken = handle.args, handle.named
            return _or_as_dict(
                loaded,
                lambda: self._run(loaded, handle.batch, *taken, array),
                lambda: self._run(loaded, handle.batch, *loaded.inputs.of(handle.batch), array),
            )
        parts = (
            (self._run(loaded, piece, *loaded.inputs.of(piece), array), there)
            for piece, there in pieces(handle.batch, size)
        )
        return joined([cut(made, size, there) for made, there in parts])

    def _run(
        self,
        loaded: _Loaded,
        batch: Columns,
        args: tuple[Any, ...],
        named: dict[str, Any],
        copied: Callable[[Any], Any],
    ) -> Any:
        with self._set_up():
            return self._made(loaded, batch, args, named, copied)

    def _set_up(self) -> ExitStack:
        """Return the context in which the module works."""
        import torch

        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self._autocast is not None:
                assert self._loaded is not None
                device = self._loaded.inputs.device.type
                stack.enter_context(torch.autocast(device, getattr(torch, self._autocast)))
            return stack.pop_all()

    def _made(
        self,
        loaded: _Loaded,
        batch: Columns,
        args: tuple[Any, ...],
        named: dict[str, Any],
        copied: Callable[[Any], Any],
    ) -> Any:
        try:
            made = loaded.call(*args, **named)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError, AttributeError) as error:
            tried = not loaded.inputs.as_dict and len(args) == 1 and not isinstance(args[0], dict)
            if tried and wants_dict(error):
                raise _TakesDict(None) from error
            if isinstance(error, AttributeError):
                raise
            call = Call(
                loaded.module,
                self.label,
                self._compile is not None,
                loaded.inputs,
                loaded.exported_for,
                batch,
                args,
                named,
            )
            ours = explained(call, error)
            if tried and isinstance(error, IndexError):  # as a tensor says too that is asked for a name
                raise _TakesDict(ours or error) from error
            if ours is None:
                raise
            raise ours from error
        return result(made, copied)

    def close(self) -> None:
        """See ``Predictor.close``; the module is again as it was given."""
        loaded, self._loaded = self._loaded, None
        if loaded is None:
            return
        for part, flag in loaded.training:
            part.training = flag
        import torch

        if torch.get_num_threads() != loaded.threads:
            torch.set_num_threads(loaded.threads)

    # ------------------------------------------------------------ making ready

    def _given(self) -> Any:
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
