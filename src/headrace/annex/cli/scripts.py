"""Code that a command line names: a script, run as ``__main__``, or a model, on disk or as ``module:name``."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.annex.cli.answer import ScriptFailed, UsageMistake
from headrace.core.files.storage import here
from headrace.errors import ArgumentError, ModelUnreadable, UntrustedPickle, nearest
from headrace.plan.reached import file_of, with_parents
from headrace.session import invocation


@dataclass(frozen=True, slots=True)
class Script:
    """A script's file and its parsed text. ``guarded``: it has an ``if __name__ == "__main__":`` of its own."""

    path: Path
    tree: ast.Module
    guarded: bool

    def names(self, variable: str) -> bool:
        """Say whether the script may set a variable: a name that stands in it, or anything that ``*`` imports."""
        return any(
            (isinstance(node, ast.Name | ast.FunctionDef | ast.alias) and variable in _named(node))
            for node in ast.walk(self.tree)
        )

    def carry_out(self, args: Sequence[str], *, guard: bool) -> dict[str, Any]:
        """Run the script, and return its variables. ``guard`` False: what stands under its guard is left out.

        Functions that are defined in it travel to workers by value, as those of any ``__main__`` do.
        """
        tree = self.tree
        if not guard:
            tree = ast.Module([node for node in tree.body if not _is_guard(node)], tree.type_ignores)
        module = types.ModuleType("__main__")
        module.__file__ = str(self.path)
        module.__dict__["__builtins__"] = __builtins__
        sys.modules["__main__"] = module
        sys.argv = [str(self.path), *args]
        folder = str(self.path.resolve().parent)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            exec(compile(tree, str(self.path), "exec"), module.__dict__)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise ScriptFailed from error
        return module.__dict__


def script_at(path: Path) -> Script:
    """Read a script; raises ``UsageMistake`` where there is none, ``ScriptFailed`` if it is no Python."""
    if path.suffix not in ("", ".py", ".pyw") and path.is_file():
        raise UsageMistake(f"{path} is not a Python script: run takes a file such as job.py.")
    try:
        source = path.read_bytes()
    except OSError as error:
        others = [each.name for each in path.parent.glob("*.py")] if path.parent.is_dir() else []
        from headrace.errors import nearest

        raise UsageMistake(
            f"The script {path} cannot be read: {os.strerror(error.errno or 0)}.{nearest(path.name, others)}"
        ) from error
    try:
        tree = ast.parse(source, str(path))
    except (SyntaxError, ValueError) as error:
        raise ScriptFailed from error
    return Script(path, tree, any(map(_is_guard, tree.body)))


def _named(node: ast.Name | ast.FunctionDef | ast.alias) -> tuple[str, ...]:
    if isinstance(node, ast.Name):
        return (node.id,) if isinstance(node.ctx, ast.Store) else ()
    if isinstance(node, ast.FunctionDef):
        return (node.name,)
    return (node.asname or node.name, "dataset", "main") if node.name == "*" else (node.asname or node.name,)


def _is_guard(node: ast.stmt) -> bool:
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    words = [side.value for side in sides if isinstance(side, ast.Constant)]
    return names == ["__name__"] and words == ["__main__"] and isinstance(node.test.ops[0], ast.Eq)


# ----------------------------------------------------------------
# Where code that a command runs may lie: never in an output, which may come from anybody.


def check_outside_output(code: Path, out: Path | None) -> None:
    """Refuse a script, model or folder in the output that the command was read from, or that it writes.

    Also refuses a command that was read from one output and writes to another.
    """
    command = invocation.current()
    origin = command.origin if command is not None else None
    if origin is not None and out is not None and out.resolve() != origin:
        raise UsageMistake(
            f"The command that was found in {origin} writes to another folder, {out}, so it was not run. If you want "
            "this, run it yourself."
        )
    for folder in (origin, out.resolve() if out is not None else None):
        if folder is not None and code.exists() and code.resolve().is_relative_to(folder):
            raise UsageMistake(
                f"{code} lies inside the output {folder}. What is in an output is data, and is never run: move it "
                "to a folder of its own."
            )


# ----------------------------------------------------------------
# The model that a command names: an artifact on disk, or ``module:name``, something of the user's own code.

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
