"""Who a run is: the *shape* of its plan, and the *code* of the user's functions.

The code of a function is its bytecode and constants without file names, line numbers and docstrings, the
values that it reaches (globals, closure, defaults, attributes), and the syntax trees of the user's own modules
that it reaches. Sets and dicts hash alike in any order. So a comment, another folder or a reordered set
literal change nothing; an edited constant, a helper's body or an imported module of the user's does.
Bytecode differs between Python versions: another Python is another code, unless ``version=`` is given.
"""

from __future__ import annotations

import ast
import dis
import functools
import hashlib
import os
import pickle
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from millrace.plan.logical import (
    Drop,
    Filter,
    Function,
    Limit,
    MapBatches,
    Plan,
    Rename,
    Select,
    Step,
    function_of,
    step_label,
)


def shape_of(plan: Plan) -> dict[str, Any]:
    """Return what must match for two runs to be the same: source, verbs, columns, sink; plain JSON values."""
    return {
        "source": plan.source.describe(),
        "steps": [_step_shape(step) for step in plan.steps],
        "sink": plan.sink.describe() if plan.sink is not None else None,
        "schema": str(plan.output_schema) if plan.output_schema is not None else None,
    }


def _step_shape(step: Step) -> dict[str, Any]:
    shape: dict[str, Any] = {"verb": step.verb}
    if isinstance(step, MapBatches):
        shape |= {"format": step.batch_format, "columns": list(step.columns) if step.columns else None}
    elif isinstance(step, (Select, Drop)):
        shape["columns"] = list(step.columns)
    elif isinstance(step, Rename):
        shape["names"] = dict(step.names)
    elif isinstance(step, Limit):
        shape["rows"] = step.rows
    elif isinstance(step, Filter) and step.function is None:
        shape["expression"] = str(step.expression)
    return shape


def code_of(steps: Sequence[Step]) -> dict[str, str]:
    """Return a fingerprint for each step with user code, keyed by its place and name."""
    prints = {}
    for i, step in enumerate(steps):
        function = function_of(step)
        if function is not None:
            prints[f"{i}: {step_label(step)}"] = fingerprint(function)
    return prints


def fingerprint(function: Function) -> str:
    """Return a hex digest of a step's code and arguments, or of the ``version`` that the user gave."""
    hasher = _Hasher()
    if function.version is not None:
        hasher.text("version", function.version)
    else:
        for value in (
            function.call,
            function.args,
            dict(function.kwargs),
            function.init_args,
            dict(function.init_kwargs),
        ):
            hasher.add(value)
    return hasher.digest()


def difference(old: Mapping[str, Any], new: Mapping[str, Any], path: str = "") -> list[str]:
    """List where two shapes differ, one line per place: ``steps[1].columns: was […], is […]``."""
    lines = []
    for key in sorted({*old, *new}):
        where = f"{path}.{key}" if path else key
        lines += _differences(old.get(key), new.get(key), where)
    return lines


def _differences(old: Any, new: Any, where: str) -> list[str]:
    if old == new:
        return []
    if isinstance(old, dict) and isinstance(new, dict):
        return difference(old, new, where)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [
            line
            for i, (a, b) in enumerate(zip(old, new, strict=True))
            for line in _differences(a, b, f"{where}[{i}]")
        ]
    return [f"{where}: was {old!r}, is {new!r}"]


class _Hasher:
    """Feeds values to one hash; what was seen before is named by its number, so cycles end."""

    def __init__(self, seen: dict[int, int] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._seen = seen if seen is not None else {}
        self._alive: list[Any] = []  # ids stay unique while their objects live

    def digest(self) -> str:
        return self._hash.hexdigest()

    def text(self, *parts: str) -> None:
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def add(self, value: Any) -> None:
        """Feed any value."""
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            self.text(type(value).__name__, repr(value))
            return
        if id(value) in self._seen:
            self.text("again", str(self._seen[id(value)]))
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)
        self._add_object(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            self.text(type(value).__name__, str(len(value)))
            for item in value:
                self.add(item)
        elif isinstance(value, (set, frozenset)):
            self._unordered("set", value)
        elif isinstance(value, dict):
            self._unordered("dict", value.items())
        elif isinstance(value, types.CodeType):
            self._add_code(value)
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, (types.MethodType, classmethod, staticmethod)):
            self.text("method")
            self.add(value.__func__)
            self.add(getattr(value, "__self__", None))
        elif isinstance(value, property):
            self.text("property")
            for part in (value.fget, value.fset, value.fdel):
                self.add(part)
        elif isinstance(value, functools.partial):
            self.text("partial")
            for each in (value.func, value.args, dict(value.keywords)):
                self.add(each)
        elif isinstance(value, types.ModuleType):
            self._add_module(value)
        elif isinstance(value, type):
            self._add_class(value)
        else:
            self._add_instance(value)

    def _unordered(self, kind: str, items: Iterable[Any]) -> None:
        """Hash each item on its own and sort; numbers of seen objects must not depend on the order."""
        digests = []
        for item in items:
            hasher = _Hasher(dict(self._seen))
            hasher.add(item)
            digests.append(hasher.digest())
            self._alive.append(hasher._alive)
        self.text(kind, *sorted(digests))

    def _add_code(self, code: types.CodeType) -> None:
        self.text(
            "code", str(code.co_flags), str(code.co_argcount), getattr(code, "co_exceptiontable", b"").hex()
        )
        self.add([*code.co_varnames, *code.co_freevars])
        loads: list[Any] = []
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST"):
                loads.append((instruction.opname, instruction.argval))
                continue
            members = instruction.arg if instruction.opname == "BUILD_SET" and instruction.arg else 0
            if members > len(loads):
                members = 0
            for pair in loads[: len(loads) - members]:
                self.add(list(pair))
            if members:  # a set literal, whose order means nothing
                self._unordered("literal", [value for _, value in loads[-members:]])
            loads.clear()
            self.text(instruction.opname)
            self.add(instruction.argval)
        for pair in loads:
            self.add(list(pair))

    def _add_function(self, function: types.FunctionType) -> None:
        if not is_users(function.__module__):
            self.text("function", function.__module__ or "", function.__qualname__)
            return
        self.text("function")
        self.add(function.__code__)
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        self.add([_content(cell) for cell in function.__closure__ or ()])
        reached = sorted(_global_names(function.__code__) & function.__globals__.keys())
        self.text(*reached)
        for name in reached:
            self.add(function.__globals__[name])
        wrapped = getattr(function, "__wrapped__", None)
        if wrapped is not None:
            self.add(wrapped)
        if function.__module__ != "__main__":
            self._add_module(sys.modules.get(function.__module__))

    def _add_module(self, module: types.ModuleType | None) -> None:
        if module is None or not is_users(module.__name__):
            self.text("module", module.__name__ if module is not None else "")
            return
        tree = _tree(module)
        if tree is None:
            self.text("module", module.__name__)
            return
        self.text("module", tree)
        for name in sorted(vars(module)):  # the user's own modules that this one imports
            value = vars(module)[name]
            if isinstance(value, types.ModuleType):
                self.add(value)
            elif getattr(value, "__module__", None) not in (None, module.__name__, "__main__"):
                owner = sys.modules.get(str(value.__module__))
                if owner is not None and is_users(owner.__name__):
                    self.add(owner)

    def _add_class(self, cls: type) -> None:
        self.text("class", cls.__qualname__)
        if not is_users(cls.__module__):
            self.text(cls.__module__)
            return
        for base in cls.__bases__:
            self.add(base)
        skipped = {
            "__dict__",
            "__weakref__",
            "__doc__",
            "__module__",
            "__firstlineno__",
            "__static_attributes__",
        }
        for name in sorted(set(vars(cls)) - skipped):
            member = vars(cls)[name]
            if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                continue
            self.text(name)
            self.add(member)
        if cls.__module__ != "__main__":
            self._add_module(sys.modules.get(cls.__module__))

    def _add_instance(self, value: Any) -> None:
        self.add(type(value))
        if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
            self.text(getattr(value, "__module__", "") or "", value.__qualname__)
            return
        try:
            reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:
            state = getattr(value, "__dict__", None)
            if state is not None:
                self.add(state)
            return
        self.add(_plain(reduced))


def _plain(reduced: Any) -> Any:
    """Make what ``__reduce_ex__`` gave hashable: buffers become bytes, iterators lists."""
    if not isinstance(reduced, tuple):
        return reduced
    parts: list[Any] = []
    for part in reduced:
        if isinstance(part, tuple):
            parts.append(tuple(_bytes_of(item) for item in part))
        elif part is not None and hasattr(part, "__next__"):
            parts.append(list(part))
        else:
            parts.append(part)
    return parts


def _bytes_of(item: Any) -> Any:
    if isinstance(item, pickle.PickleBuffer):
        with item.raw() as view:
            return hashlib.sha256(view).hexdigest()
    if isinstance(item, (bytearray, memoryview)):
        return hashlib.sha256(item).hexdigest()
    return item


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@functools.cache
def is_users(module: str | None) -> bool:
    """Say whether a module is the user's own: not of Python, not installed, not ours."""
    if module is None or module == "__main__":
        return True
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "millrace":
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or file.startswith(_STANDARD_LIBRARY):
        return False
    return not any(folder in file for folder in _INSTALLED)


def _tree(module: types.ModuleType) -> str | None:
    """Return a module's syntax tree as text: no comments, no layout, no docstrings."""
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                node.body = node.body[1:]
        elif isinstance(node, ast.Set):
            node.elts.sort(key=ast.dump)
    return ast.dump(tree)
