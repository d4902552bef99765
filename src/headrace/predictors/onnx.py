"""ONNX models, by ONNX Runtime."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.arguments import known_arguments
from headrace.core.arrow.model_columns import ModelInput, fed, pieces, shapes
from headrace.core.files.artifacts import Artifact, inside, open_regular, require, shortened, threads
from headrace.core.files.formats import model_format
from headrace.errors import ArgumentError, BadInput, BadReturn, ModelUnreadable, nearest
from headrace.predictors import Direct, directly

# ---------------------------------------------------------------- what goes in and comes out, as arrays

_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "string": "text",
    **{
        name: name
        for name in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
    },
}


def _input(described: Any) -> ModelInput:
    """Return what may go into an input. Names of dimensions are free, and so is all where there are none."""
    shape = tuple(size if isinstance(size, int) else None for size in described.shape)
    return ModelInput(_DTYPES.get(_element(described.type), ""), shape or None)


def fixed_rows(inputs: Mapping[str, ModelInput]) -> int | None:
    """Return the number of rows that a model was exported for, None if it takes any."""
    firsts = {each.shape[0] for each in inputs.values() if each.shape}
    first = firsts.pop() if len(firsts) == 1 else None
    return first or None


def joined(parts: Sequence[Any]) -> Any:
    """Put the pieces of one output together again."""
    if isinstance(parts[0], list):
        return [each for part in parts for each in part]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def keys_as_columns(name: str, maps: list[Any]) -> dict[str, Array]:
    """Turn a dict per row into a column per key."""
    keys = list(maps[0]) if maps else []
    if any(list(each) != keys for each in maps):
        raise BadReturn(
            f"its output {name!r} is a map with other keys in each row. Choose others with outputs=[…]"
        )
    return {f"{name}_{key}": np.array([each[key] for each in maps], _number(maps[0][key])) for key in keys}


def _number(value: Any) -> Any:
    return np.float32 if isinstance(value, float) else None  # a map's floats are float32 in ONNX Runtime


def is_tensor(kind: str) -> bool:
    """Say whether ONNX Runtime's type is a tensor that numpy has, such as ``tensor(float)``."""
    return _element(kind) in _DTYPES


def _element(kind: str) -> str:
    return kind[len("tensor(") : -1] if kind.startswith("tensor(") else kind


Array = np.ndarray[Any, Any]
Provider = str | tuple[str, Mapping[str, Any]]

# A key and the begin of its value in TensorProto.external_data: https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
_LOCATION = b"\n\x08location\x12"
_FATAL = 4  # its exceptions have the messages that ONNX Runtime would print
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


def kind_of(path: str) -> str | None:
    """Return ``"onnx"`` if an ONNX model is at ``path``, by its name; None if not."""
    if os.path.isdir(path):
        return "onnx" if len(_models_in(path)) == 1 else None
    return "onnx" if model_format(path, "onnx") else None


class OnnxPredictor(Direct):
    """Runs an ONNX model with ONNX Runtime; inputs and results are those of ``InferenceSession.run``.

    Columns with the names of the model's inputs go to these, and others are left out. Otherwise a model with one
    input gets the one column as it is, or several side by side as a matrix. A column (n,) fits an input (n, 1).
    Floats become the floats that the model takes; integers are cast only if each value stays what it is. A model
    that was exported with a fixed number of rows is run in pieces of so many, the last one filled up with its last
    row.

    One output is returned as an array, several as columns with their names; of a map (a classifier's ``ZipMap``),
    each key is a column ``<output>_<key>``.

    Parameters
    ----------
    model
        The path of an ``.onnx`` file, weights beside it included; or of a folder with one such file.
    outputs
        Which of the model's outputs to compute, in this order. Default: all.
    providers
        ONNX Runtime's execution providers, the first one preferred, as names or ``(name, options)``. Default: CUDA
        if ONNX Runtime has it and the worker sees a GPU, else the CPU. One that is missing is an error.
    session_options
        Attributes of ``onnxruntime.SessionOptions`` by name, and its config entries (names with a dot):
        ``{"graph_optimization_level": "ORT_DISABLE_ALL"}``.
    sha256
        Pins the content of the file; give the folder to pin weights in files of their own too.

    Raises ``ModelUnreadable`` and ``ModelChanged`` for the file, ``BadInput`` for columns that do not fit.

    >>> OnnxPredictor("nowhere.onnx")
    Traceback (most recent call last):
        ...
    headrace.errors.ModelUnreadable: There is no model at 'nowhere.onnx' (looked for ...nowhere.onnx).
    """

    classes = ("ModelProto", "InferenceSession")
    kind_of = staticmethod(kind_of)
    batch_format = "numpy"

    @known_arguments
    def __init__(
        self,
        model: Any,
        *,
        outputs: Sequence[str] | None = None,
        providers: Sequence[Provider] | None = None,
        session_options: Mapping[str, Any] | None = None,
        sha256: str | None = None,
    ) -> None:
        if isinstance(outputs, str) or (outputs is not None and not outputs):
            raise ArgumentError(f"outputs= takes a list of the model's output names, not {outputs!r}.")
        if isinstance(providers, str) or (providers is not None and not providers):
            raise ArgumentError(f"providers= takes a list such as [{_CPU!r}], not {providers!r}.")
        self._outputs = None if outputs is None else tuple(outputs)
        self._providers = None if providers is None else tuple(providers)
        self._options = dict(session_options or {})
        self._files: list[Artifact] = []
        self.__dict__.update(self._unloaded())
        if not isinstance(model, str | os.PathLike):
            raise ArgumentError(
                f"An ONNX model is the path of a file, not {type(model).__name__}: write it with onnx.save(model, "
                "path); each worker starts its own session."
            )
        self._artifact = Artifact(os.fspath(model), sha256).checked()
        self.label = self._artifact.name
        self._check_files(self._artifact.path)
        require("onnxruntime", "onnx", f"The model {self.label}")

    def load(self) -> None:
        """Start a session. Raises ``ModelUnreadable`` with ONNX Runtime's message."""
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = _FATAL
        options.inter_op_num_threads = 1
        options.intra_op_num_threads = threads() or 0
        _set_options(options, self._options, onnxruntime)
        providers = self._wanted_providers(onnxruntime)
        for artifact in (*self._files, self._artifact):
            artifact.verify()
        try:
            session = onnxruntime.InferenceSession(self._file(), options, providers=[*providers])
        except Exception as error:
            if _is_out_of_memory(error):
                raise
            raise ModelUnreadable(
                f"ONNX Runtime {onnxruntime.__version__} cannot read the model {self._artifact.path}: "
                f"{_said(error)}. {_advice(str(error))}"
            ) from error
        session.disable_fallback()
        self._check_providers(session, providers)
        self._session = session
        self._inputs = {each.name: _input(each) for each in session.get_inputs()}
        self._fixed = fixed_rows(self._inputs)
        self._names = self._chosen([each.name for each in session.get_outputs()])
        kinds = {each.name: each.type for each in session.get_outputs()}
        self._check_kinds({each.name: each.type for each in session.get_inputs()}, kinds)

    def predict(self, batch: Mapping[str, Array]) -> Any:
        """Return the output, or the outputs by name; one row per row of the batch."""
        if self._session is None:
            return directly(self, batch)
        feed = {name: np.ascontiguousarray(array) for name, array in fed(self._inputs, batch).items()}
        rows = len(next(iter(batch.values())))
        if self._fixed is None:
            results = self._run(feed, rows)
        else:
            results = self._run_in_pieces(feed, self._fixed)
        columns: dict[str, Any] = {}
        for name, result in zip(self._names, results, strict=True):
            if isinstance(result, list):
                columns.update(keys_as_columns(name, result))
            else:
                columns[name] = result
        return columns[self._names[0]] if list(columns) == self._names[:1] else columns

    def identity(self) -> Any:
        """Return the digest of the model with all its files, and what was asked of it."""
        file = self._file()
        beside = [os.path.join(os.path.dirname(file), name) for name in _files_beside(file)]
        self._files = [Artifact(path) for path in (file, *beside)]
        return (
            "onnx",
            tuple(each.digest() for each in self._files),
            self._outputs,
            tuple(sorted(self._options.items())),
        )

    def _unloaded(self) -> dict[str, Any]:
        return {"_session": None, "_inputs": {}, "_fixed": None, "_names": []}

    # ---------------------------------------------------------------- loading

    def _file(self) -> str:
        path = self._artifact.path
        return os.path.join(path, _models_in(path)[0]) if os.path.isdir(path) else path

    def _check_files(self, path: str) -> None:
        if os.path.isdir(path) and len(names := _models_in(path)) != 1:
            found = f"it has {len(names)}: {', '.join(names)}" if names else "it has none"
            raise ModelUnreadable(
                f"The folder {path} should hold one .onnx file, but {found}. Name the file."
            )
        _files_beside(self._file())

    def _wanted_providers(self, onnxruntime: Any) -> tuple[Provider, ...]:
        available = onnxruntime.get_available_providers()
        if self._providers is None:
            return (_CUDA, _CPU) if _CUDA in available and _sees_a_gpu() else (_CPU,)
        for name in map(_name_of, self._providers):
            if name not in available:
                raise ArgumentError(
                    f"providers= asks for {name!r}, which this onnxruntime {onnxruntime.__version__} does not have; "
                    f"it has {', '.join(available)}.{nearest(name, available)} CUDA comes with onnxruntime-gpu."
                )
        return self._providers

    def _check_providers(self, session: Any, wanted: Sequence[Provider]) -> None:
        running = session.get_providers()
        for name in map(_name_of, wanted):
            if name not in running:
                raise ModelUnreadable(
                    f"The model {self._artifact.path} cannot run on {name}: ONNX Runtime could not start it (are its "
                    f"libraries and a device there?), and has {', '.join(running)} only. To run there all the same, "
                    f"set providers=[{_CPU!r}]."
                )

    def _chosen(self, names: list[str]) -> list[str]:
        for name in self._outputs or ():
            if name not in names:
                raise ArgumentError(
                    f"outputs= names {name!r}, which the model {self.label} does not have; it has "
                    f"{', '.join(map(repr, names))}.{nearest(name, names)}"
                )
        return names if self._outputs is None else list(self._outputs)

    def _check_kinds(self, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        for name, kind in inputs.items():
            if not is_tensor(kind):
                raise ModelUnreadable(
                    f"The model {self._artifact.path} takes {kind} as its input {name!r}; Headrace gives tensors of "
                    f"numbers, bools or strings. Export it with such inputs."
                )
        for name in self._names:
            kind = outputs[name]
            if not is_tensor(kind) and not kind.startswith("seq(map("):
                others = [each for each in outputs if is_tensor(outputs[each])]
                raise ModelUnreadable(
                    f"The model {self._artifact.path} gives {kind} as its output {name!r}, which has no rows. Choose "
                    f"from its other outputs with outputs={others}."
                )

    # ---------------------------------------------------------------- predicting

    def _run(self, feed: dict[str, Array], rows: int) -> list[Any]:
        try:
            results: list[Any] = self._session.run(self._names, feed)
        except Exception as error:
            if type(error).__name__ != "InvalidArgument" or _is_out_of_memory(error):
                raise
            raise BadInput(f"ONNX Runtime cannot use the batch ({shapes(feed)}): {_said(error)}") from error
        for name, result in zip(self._names, results, strict=True):
            if isinstance(result, np.ndarray) and result.shape[:1] != (rows,):
                raise BadReturn(
                    f"its output {name!r} has the shape {result.shape}, which is not one result for each of {rows} "
                    f"rows. Choose others with outputs=[…], or export the model with a free first dimension"
                )
        return results

    def _run_in_pieces(self, feed: dict[str, Array], size: int) -> list[Any]:
        results = [
            [result[:there] for result in self._run(piece, size)] for piece, there in pieces(feed, size)
        ]
        return [joined(parts) for parts in zip(*results, strict=True)]


def _set_options(options: Any, wanted: Mapping[str, Any], onnxruntime: Any) -> None:
    for name, value in wanted.items():
        if "." in name:
            options.add_session_config_entry(name, str(value))
            continue
        known = [each for each in dir(type(options)) if not each.startswith("_")]
        if name not in known:
            raise ArgumentError(f"onnxruntime.SessionOptions has no {name!r}.{nearest(name, known)}")
        kinds = {"graph_optimization_level": "GraphOptimizationLevel", "execution_mode": "ExecutionMode"}
        if name in kinds and isinstance(value, str):
            value = getattr(getattr(onnxruntime, kinds[name]), value, value)
        try:
            setattr(options, name, value)
        except (TypeError, AttributeError) as error:
            raise ArgumentError(
                f"session_options= cannot set {name} to {value!r}: {_said(error)}."
            ) from error


def _names_in(model: mmap.mmap) -> list[str]:
    """Return the names of the files that a model, as ONNX and PyTorch write it, wants beside it."""
    names = set()
    at = 0
    while (at := model.find(_LOCATION, at)) >= 0:
        at += len(_LOCATION)
        size = int.from_bytes(model[at : at + 1], "little")
        if size > 127:
            size += 128 * (int.from_bytes(model[at + 1 : at + 2], "little") - 1)
            at += 1
        names.add(model[at + 1 : at + 1 + size].decode(errors="replace"))
    return sorted(names)


def _files_beside(path: str) -> list[str]:
    """Return the names of the files beside a model that hold weights of it; all are there.

    Raises ``ModelUnreadable`` for weights that are elsewhere, or are no files.
    """
    try:
        with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as model:
            names = _names_in(model)
    except (OSError, ValueError) as error:
        raise ModelUnreadable(
            f"The model at {path} cannot be read: {error}. Copy or export it again."
        ) from error
    for name in names:
        if not inside(name):
            raise ModelUnreadable(
                f"The model {path} keeps its weights in {name!r}, which is outside of its folder. Export it again, "
                "with its weights beside it; from people whom you do not know, do not read it at all."
            )
        weights = os.path.join(os.path.dirname(path), name)
        if not os.path.exists(weights):
            raise ModelUnreadable(
                f"The model {path} keeps its weights in {name!r} beside it, and that file is not there. Copy it to "
                f"{os.path.dirname(path)}."
            )
        if not os.path.isfile(weights):
            raise ModelUnreadable(
                f"The model {path} keeps its weights in {name!r}, which is not a regular file."
            )
    return names


def _models_in(folder: str) -> list[str]:
    return sorted(name for name in os.listdir(folder) if model_format(name, "onnx"))


def _name_of(provider: Provider) -> str:
    return provider if isinstance(provider, str) else provider[0]


def _sees_a_gpu() -> bool:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return any(part.strip() not in ("", "-1") for part in visible.split(","))
    return os.path.exists("/proc/driver/nvidia/gpus")


def _is_out_of_memory(error: Exception) -> bool:
    text = str(error).lower()
    return isinstance(error, MemoryError) or any(
        each in text for each in ("allocate memory", "out of memory", "bad_alloc", "bad allocation")
    )


def _said(error: Exception) -> str:
    """Return the sentence of an error of ONNX Runtime: without its codes, source lines and C++ signatures."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from \S+ failed:)?", "", text)
    for mark in ("&) ", "int) ", "bool) "):
        text = text.rpartition(mark)[2]
    return shortened(text)


def _advice(message: str) -> str:
    if "opset" in message.lower() or "IR version" in message:
        return "Install a newer onnxruntime, or export the model for an older opset and IR version."
    if any(each in message for each in ("NOT_IMPLEMENTED", "No Op registered", "not a registered function")):
        return "It has operators that this build does not have: export it with standard ones, or update onnxruntime."
    if "External data" in message:
        return "Its weights should lie in the file beside it that it names: copy them together."
    return "Copy or export it again; onnx.checker.check_model(path) says more."
