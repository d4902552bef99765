"""The model that a command names: an artifact on disk, or ``module:name``, something of the user's own code."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.annex.cli.answer import UsageMistake
from headrace.annex.cli.scripts import check_outside_output
from headrace.core.files.paths import here
from headrace.errors import ArgumentError, ModelUnreadable, UntrustedPickle, nearest
from headrace.plan.modules import file_of, with_parents

_OBJECT = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)")


def is_object(model: str) -> bool:
    """Say whether a text names something in a module, not a file.

    >>> is_object("fares:Fare"), is_object("models:/fare/3"), is_object("fare.onnx")
    (True, False, False)
    """
    return _OBJECT.fullmatch(model) is not None and not os.path.exists(model)


def model_of(
    model: str, options: Mapping[str, Any], *, sha256: str | None, trust_pickle: bool
) -> tuple[Any, dict[str, Any]]:
    """Return the model for ``predict``, and the arguments that go with it."""
    if is_object(model):
        if sha256 is not None:
            raise UsageMistake("--sha256 is for a model file; a class or function of your own is code.")
        return _object(model, options)
    import headrace

    given = dict(options)
    if isinstance(architecture := given.get("architecture"), str):
        if not _OBJECT.fullmatch(architecture):
            raise UsageMistake(
                f"--model-option architecture={architecture}: name a class or function of your own that makes the "
                "module, as module:name."
            )
        given["architecture"] = _found(architecture)
    try:
        return headrace.load_model(model, sha256=sha256, trust_pickle=trust_pickle, **given), {}
    except ArgumentError as error:
        if "architecture" in given or "architecture=" not in str(error):
            raise
        raise UsageMistake(
            f"{error} On the command line: --model-option architecture=module:Class."
        ) from None
    except ModelUnreadable as error:
        if ":/" in model or os.path.exists(os.path.expanduser(model)):
            raise
        place = Path(os.path.expanduser(model))
        others = [each.name for each in place.parent.iterdir()] if place.parent.is_dir() else []
        raise UsageMistake(
            f"{error}{nearest(place.name, others)} A class or function of your own is named module:name."
        ) from None
    except UntrustedPickle as error:
        raise UntrustedPickle(f"{error} On the command line: --trust-pickle.") from None


def _object(text: str, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    found = _found(text)
    if not options:
        return found, {}
    _check_taken(text, found, options)
    if isinstance(found, type):
        return found, {"fn_constructor_kwargs": dict(options)}
    if not callable(found):
        raise UsageMistake(
            f"{text} is an object, not a class or function, so --model-option does not apply to it."
        )
    return found, {"fn_kwargs": dict(options)}


def _found(text: str) -> Any:
    """Import what is named."""
    match = _OBJECT.fullmatch(text)
    assert match is not None
    module, name = match.groups()
    if module.endswith(".py"):
        raise UsageMistake(f"{text}: name the module, not its file: {module.removesuffix('.py')}:{name}.")
    folder = here()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # workers get the same path
    for each in with_parents(module):  # nothing is imported before it is known where from
        file = file_of(each)
        if file is not None:
            check_outside_output(Path(file), None)
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.partition(".")[0]
        if error.name not in (module, top):
            raise UsageMistake(f"{text}: importing {module} failed: {error}.") from error
        known = [path.stem for path in Path(folder).glob("*.py")]
        raise UsageMistake(
            f"{text}: there is no module {error.name!r} in {folder}, nor installed.{nearest(top, known)}"
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            known = [each for each in dir(found) if not each.startswith("_")]
            raise UsageMistake(f"{text}: there is no {part!r} in {module}.{nearest(part, known)}")
        found = getattr(found, part)
    return found


def _check_taken(text: str, found: Any, options: Mapping[str, Any]) -> None:
    """Refuse options that a class or function does not have, as far as its signature shows."""
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return
    names = list(parameters) if isinstance(found, type) else list(parameters)[1:]  # the first is the batch
    for name in options:
        if name not in names:
            takes = f" It takes {', '.join(names)}." if names else " It takes none."
            raise UsageMistake(
                f"--model-option {name}: {text} has no argument of that name.{nearest(name, names) or takes}"
            )
