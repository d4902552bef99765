"""A digest of the user's code: the same for the same behaviour, another one after an edit.

The code of a function is its bytecode and constants without file names, line numbers and docstrings, the
values that it reaches (globals, closure, defaults, attributes), and the syntax trees of the user's own modules
that it reaches. Sets and dicts hash alike in any order. So a comment, another folder or a reordered set
literal change nothing; an edited constant, a helper's body or an imported module of the user's does.
Bytecode differs between Python versions: another Python is another code, unless ``version=`` is given.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import pickle
import sys
import types
from collections.abc import Iterable
from typing import Any

from millrace.plan.modules import contents_of, file_of, is_users, with_parents

# Of a class: what says nothing about its behaviour, and what Python writes into it only when somebody looks.
_UNNAMED = {
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__slotnames__",
    "__static_attributes__",
    "__weakref__",
}


class Hasher:
    """Feeds values to one hash.

    What has an identity and was seen before is named by its number, so cycles end. Numbers depend on the order
    of the walk, so members of sets and dicts, which have none, are hashed each on their own.
    """

    def __init__(self, seen: dict[Any, int] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._seen = seen if seen is not None else {}
        self._alive: list[Any] = []  # ids stay unique while their objects live

    def digest(self) -> str:
        """Return the hex digest of what was fed."""
        return self._hash.hexdigest()

    def text(self, *parts: str) -> None:
        """Feed strings; their borders count."""
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def add(self, value: Any) -> None:
        """Feed any value."""
        if type(value) is int:
            self.text("int", f"{value:x}")  # decimal digits are limited
        elif value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
            self.text(type(value).__name__, repr(value))
        elif type(value) is tuple:  # equal constants may or may not be one object: nothing hangs on it
            self._ordered(value)
        elif type(value) is frozenset:
            self._unordered("set", value)
        elif self._is_new(id(value)):
            self._alive.append(value)
            self._add_object(value)

    def _is_new(self, key: Any) -> bool:
        if key in self._seen:
            self.text("again", str(self._seen[key]))
            return False
        self._seen[key] = len(self._seen)
        return True

    def _add_object(self, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            self._ordered(value)
        elif isinstance(value, (set, frozenset)):
            self._unordered("set", value)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self._unordered("dict", value.items())
        elif isinstance(value, (bytearray, memoryview, pickle.PickleBuffer)):
            self._add_buffer(value)
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
            self._add_module(value.__name__)
        elif isinstance(value, type):
            self._add_class(value)
        else:
            self._add_instance(value)

    # ------------------------------------------------------------ containers

    def _ordered(self, values: Any) -> None:
        self.text(type(values).__name__, str(len(values)))
        for value in values:
            self.add(value)

    def _unordered(self, kind: str, items: Iterable[Any]) -> None:
        digests = []
        for item in items:
            hasher = Hasher(dict(self._seen))
            hasher.add(item)
            digests.append(hasher.digest())
            self._alive.append(hasher._alive)
        self.text(kind, *sorted(digests))

    def _add_buffer(self, value: Any) -> None:
        with memoryview(value) as view:
            data = view if view.c_contiguous else view.tobytes()
            self.text("buffer", hashlib.sha256(data).hexdigest())

    # ------------------------------------------------------------ code

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
            if instruction.opname == "IMPORT_NAME":
                self._add_import(instruction.argval, [value for _, value in loads[-2:]])
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

    def _add_import(self, name: str, operands: list[Any]) -> None:
        """Follow an ``import`` inside a function: nothing may have run it yet. ``operands``: level, names."""
        if len(operands) != 2 or operands[0] != 0:
            return
        for module in (*with_parents(name), *(f"{name}.{each}" for each in operands[1] or ())):
            if file_of(module) is not None:
                self._add_module(module)

    def _add_function(self, function: types.FunctionType) -> None:
        users = is_users(function.__module__)
        self.text("function")
        if users:
            self.add(function.__code__)
        else:
            self.text(function.__module__, function.__qualname__)
            if _named(function.__module__, function.__qualname__) is function:
                return
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        self.add([_content(cell) for cell in function.__closure__ or ()])
        self.add(vars(function))
        if not users:
            return
        reached = sorted(_global_names(function.__code__) & function.__globals__.keys())
        self.text(*reached)
        for name in reached:
            self.add(function.__globals__[name])
        if function.__module__ not in (None, "__main__"):
            self._add_module(function.__module__)

    def _add_class(self, cls: type) -> None:
        self.text("class", cls.__qualname__)
        if not is_users(cls.__module__):
            self.text(cls.__module__)
            return
        for base in cls.__bases__:
            self.add(base)
        for name in sorted(set(vars(cls)) - _UNNAMED):
            member = vars(cls)[name]
            if isinstance(member, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                continue
            self.text(name)
            self.add(member)
        if cls.__module__ != "__main__":
            self._add_module(cls.__module__)

    def _add_module(self, name: str) -> None:
        file = file_of(name)
        if file is None:
            self.text("module", name)
            return
        if not self._is_new(name):
            return
        digest, imports = contents_of(name, file)
        self.text("module", digest)
        loaded = vars(sys.modules[name]).values() if name in sys.modules else ()
        parts = {value.__name__ for value in loaded if isinstance(value, types.ModuleType)}
        for each in sorted({*imports, *(part for part in parts if file_of(part) is not None)}):
            self._add_module(each)

    # ------------------------------------------------------------ objects

    def _add_instance(self, value: Any) -> None:
        self.add(type(value))
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):  # a cache, a compiled function
            self.add(wrapped)
            return
        if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
            self.text(getattr(value, "__module__", "") or "", value.__qualname__)
            self.add(value.__self__)
            return
        if _is_tensor(value):
            self._add_tensor(value)
            return
        try:
            reduced = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        except Exception:
            self.add(getattr(value, "__dict__", None))
            return
        if isinstance(reduced, tuple):
            reduced = [list(part) if hasattr(part, "__next__") else part for part in reduced]
        self.add(reduced)

    def _add_tensor(self, value: Any) -> None:
        """Feed a PyTorch tensor by its values: what it pickles to also holds addresses."""
        try:
            self.text(str(value.dtype), str(tuple(value.shape)), str(value.layout))
            data = value.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
        except Exception:  # sparse, quantised, without data: it prints itself
            self.text(repr(value))
        else:
            self.text(hashlib.sha256(data).hexdigest())


def _is_tensor(value: Any) -> bool:
    return any(cls.__module__ == "torch" and cls.__qualname__ == "Tensor" for cls in type(value).__mro__)


def _named(module: str | None, qualname: str) -> Any:
    """Return what a module knows by this name; what it does not know was made while the program ran."""
    value: Any = sys.modules.get(module or "")
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


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
