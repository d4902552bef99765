"""Checkpoints of PyTorch: weights as safetensors, and the name of the class that they belong to."""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from headrace.compat.air.checkpoint import FROM_MODEL, Checkpoint
from headrace.core.arguments import known_arguments
from headrace.core.files.artifacts import require
from headrace.errors import ArgumentError, ModelError, ModelUnreadable


class TorchCheckpoint(Checkpoint):
    """A module of PyTorch, or the weights of one; in a folder, safetensors and the name of the module's class.

    A folder names the class if that can be imported and makes a module of the same weights without arguments, or
    with the ``init_kwargs`` that were given. Otherwise ``get_model(model=…)``, and ``model=`` where a predictor is
    made, say what the weights belong to: a module, or a class or function that makes one. The class is imported
    only if it is a ``torch.nn.Module``; with ``model=`` nothing is imported.

    ``from_model(model)`` raises ``ArgumentError`` for what is no module, ``get_model`` raises ``ModelChanged`` for
    files that are not what was written; see ``Checkpoint``.

    Examples
    --------
    >>> import torch, tempfile
    >>> sizes = {"in_features": 2, "out_features": 1}
    >>> checkpoint = TorchCheckpoint.from_model(torch.nn.Linear(2, 1), init_kwargs=sizes)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = checkpoint.to_directory(folder + "/linear")
    ...     TorchCheckpoint.from_directory(path).get_model()
    Linear(in_features=2, out_features=1, bias=True)
    """

    kind, file, libraries = "torch", "model.safetensors", ("torch", "safetensors")
    predictor = "TorchPredictor"

    @classmethod
    @known_arguments(also=FROM_MODEL)
    def from_model(
        cls, model: Any, *, init_kwargs: Mapping[str, Any] | None = None, preprocessor: Any = None
    ) -> TorchCheckpoint:
        """Hold a module. ``init_kwargs``: what its class takes to make another, as values of JSON.

        ``preprocessor``: what prepares the data for it.
        """
        cls._check(model)
        made = cls._made(model)._with(preprocessor)
        made._init_kwargs = None if init_kwargs is None else dict(init_kwargs)
        return made

    @classmethod
    @known_arguments
    def from_state_dict(
        cls, state_dict: Mapping[str, Any], model: Any = None, *, preprocessor: Any = None
    ) -> TorchCheckpoint:
        """Hold weights by name, and ``model``, what they belong to, if it is given: a module, a class, a function."""
        if not isinstance(state_dict, Mapping) or hasattr(state_dict, "forward"):
            raise ArgumentError(
                f"from_state_dict takes what module.state_dict() returns, not {type(state_dict).__name__}."
            )
        held = _Weights(state_dict) if model is None else _filled(model, state_dict)
        return cls._made(held)._with(preprocessor)

    @known_arguments
    def get_model(self, model: Any = None) -> Any:
        """Return the module, with its weights. ``model``: what they belong to, where the checkpoint cannot know.

        Weights from a folder are mapped, not copied. Raises ``ModelError`` where ``model=`` is needed,
        ``ModelChanged`` if a file is not the one that was written, ``ModelUnreadable`` if the weights do not fit.
        """
        if self._path is None:
            return self._in_memory(model)
        from headrace.predictors.torch.files import read

        require("safetensors", "torch", f"The checkpoint {self._path}")
        return read(self.artifact(), "safetensors", self._architecture(model), trust_pickle=False)

    def given_to(self, predictor: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """See ``Checkpoint.given_to``; ``model`` (or ``architecture``) and ``use_gpu`` may be among the options."""
        given = dict(options)
        use_gpu = given.pop("use_gpu", False)
        if use_gpu:
            given.setdefault("device", "cuda")
        architecture = given.pop("architecture", None)
        model = given.pop("model", architecture)
        model_arguments, more = super().given_to(predictor, given)
        if self._path is None:
            return self._in_memory(model), more
        return model_arguments, {**more, "architecture": self._architecture(model)}

    # ------------------------------------------------------------ how

    _init_kwargs: dict[str, Any] | None = None

    def _in_memory(self, model: Any) -> Any:
        if isinstance(self._model, _Weights):
            if model is None:
                raise ModelError(
                    "The checkpoint holds weights without a module: give the module, get_model(model=Net()), "
                    "or model=Net() where the predictor is made."
                )
            return _filled(model, self._model.state)
        return self._model if model is None else _filled(model, self._model.state_dict())

    def _architecture(self, model: Any) -> Any:
        if model is not None:
            return model
        named = self._manifest.get("architecture")
        if not isinstance(named, dict):
            raise ModelError(
                f"{self._path} holds weights, and does not name a class that makes their module: {self._why()}. Say "
                "what they belong to: get_model(model=Net()), or model=Net() where the predictor is made."
            )
        return functools.partial(_imported(named, str(self._path)), **named.get("kwargs", {}))

    def _why(self) -> str:
        return str(self._manifest.get("without_architecture", "they were saved as weights only"))

    def _write(self, folder: str) -> dict[str, Any]:
        require("safetensors", "torch", "A checkpoint of PyTorch")
        from safetensors.torch import save_file

        weights = isinstance(self._model, _Weights)
        state = self._model.state if weights else self._model.state_dict()
        save_file(_plain(state, tied=not weights), os.path.join(folder, self.file))
        return {} if weights else _described(self._model, self._init_kwargs)


class _Weights:
    """Weights without a module."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.state = dict(state)


def _filled(model: Any, state: Mapping[str, Any]) -> Any:
    from headrace.predictors.torch.files import filled

    return filled(model, dict(state), "the checkpoint")


def _plain(state: Mapping[str, Any], *, tied: bool) -> dict[str, Any]:
    """Return weights that share no memory, as the file wants them; with ``tied``, the same weight only once."""
    import torch

    plain: dict[str, Any] = {}
    seen: set[Any] = set()
    for name, tensor in state.items():
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(
                f"The state of the module has {name!r}, a {type(tensor).__name__}, which no file of tensors can hold."
                " Keep it in a buffer, or in the constructor's arguments."
            )
        place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
        if tied and tensor.numel() and place in seen:
            continue
        seen.add(place)
        plain[name] = tensor.detach().to("cpu", copy=True).contiguous()
    return plain


def _described(module: Any, init_kwargs: dict[str, Any] | None) -> dict[str, Any]:
    """Return the class's name for the JSON file, or why it cannot be named; with ``init_kwargs``, it has to be."""
    kind = type(module)
    named = {"class": f"{kind.__module__}:{kind.__qualname__}", "kwargs": init_kwargs or {}}
    why = _unfit(module, named)
    if why is None:
        return {"architecture": named}
    if init_kwargs is not None:
        raise ArgumentError(
            f"init_kwargs={init_kwargs!r} does not help to make the module again: {why}. Leave it out, and give "
            "model= where the checkpoint is used."
        )
    return {"without_architecture": why}


def _unfit(module: Any, named: Mapping[str, Any]) -> str | None:
    """Say why the named class does not make a module like this one; None if it does."""
    import torch

    kind, name = type(module), type(module).__name__
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        return f"{name} is defined in a script, a notebook or a function, from where it cannot be imported"
    if _found(str(named["class"])) is not kind:
        return f"{named['class']} cannot be imported by that name"
    try:
        if json.loads(json.dumps(named["kwargs"])) != named["kwargs"]:
            return "the arguments change on their way through JSON"
        with torch.device("meta"):
            made = kind(**named["kwargs"])
    except Exception as error:
        return f"{name}({', '.join(named['kwargs'])}) raises {type(error).__name__}: {error}"
    shapes = [
        {key: getattr(value, "shape", None) for key, value in each.state_dict().items()}
        for each in (made, module)
    ]
    return None if shapes[0] == shapes[1] else f"{name}() makes a module with other weights"


def _found(name: str) -> Any:
    home, _, inner = name.partition(":")
    try:
        found: Any = sys.modules.get(home) or importlib.import_module(home)
        for part in inner.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    return found


def _imported(named: Mapping[str, Any], where: str) -> Any:
    """Return the class that a folder names. Only modules of PyTorch are made: a folder may come from anybody."""
    import torch

    name = named.get("class")
    found = _found(name) if isinstance(name, str) else None
    if found is None:
        raise ModelUnreadable(
            f"{where} was made of {name}, which cannot be imported here. Install what defines it, or give "
            "model=Net() with a module of the same architecture."
        )
    if not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        raise ModelUnreadable(f"{where} names {name}, which is not a torch.nn.Module, so it is not made.")
    return found
