"""A script of the user's, carried out as Python would: as ``__main__``, with its folder first on the path."""

from __future__ import annotations

import ast
import os
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.annex.cli.answer import ScriptFailed, UsageMistake
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
