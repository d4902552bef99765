"""A digest of the user's code: the same for the same behaviour, another one after an edit.

The code of a function is its bytecode and constants without file names, line numbers and docstrings, the
values that it reaches (globals, closure, defaults, attributes), and the syntax trees of the user's own modules
that it reaches. Sets hash alike in any order, dicts do not: a function may ask which key is the first. So a
comment, another folder or a reordered set literal change nothing; an edited constant, a helper's body or an
imported module of the user's does. Bytecode differs between Python versions: another Python is another code,
unless ``version=`` is given. What cannot be looked at, such as an open file, is listed in ``unknown``.
"""

from __future__ import annotations

import contextlib
import dis
import hashlib
import itertools
import pickle
import struct
import sys
import types
import uuid
from collections.abc import Collection, Iterable, Iterator
from typing import Any

from headrace.errors import HeadraceError
from headrace.plan import reached
from headrace.plan.functions import Function
from headrace.plan.reached import Attributes, contents_of, file_of, is_users, named, parts_of, with_parents

UNKNOWN = "unknown "
"""How a digest begins that says nothing, as something in a value cannot be looked at."""

_SCALARS = {type(None), bool, int, float, complex, str, bytes}
_AT_ONCE = 1 << 14


def parts_of_function(function: Function) -> Iterator[tuple[str, Any]]:
    """Yield what the identity of a function consists of, by name: its version, or its code; and its arguments."""
    if function.version is not None:
        yield "the version", function.version
        return
    identity = function.parts.identity
    if identity is not None:
        yield "the model", identity()
    else:
        yield "the code", function.call
    for kind, args, kwargs in (
        ("argument", function.args, function.kwargs),
        ("constructor argument", function.init_args, function.init_kwargs),
    ):
        for i, value in enumerate(args):
            yield f"{kind} {i + 1}", value
        for name, value in kwargs.items():
            yield f"{kind} {name!r}", value


def fingerprint(value: Any) -> str:
    """Return a hex digest of a function's code with the values that it reaches, or of any other value.

    If there is something in it that cannot be looked at, return what it is, in a text that never comes twice:
    it may be another one each time.
    """
    hasher = Hasher()
    try:
        for _, part in parts_of_function(value) if isinstance(value, Function) else [("", value)]:
            hasher.add(part)
    except RecursionError:
        hasher.unknown.append("a value that is nested too deeply")
    if hasher.unknown:
        return f"{UNKNOWN}{uuid.uuid4().hex}: {hasher.unknown[0]}"
    return hasher.digest()


class Hasher:
    """Feeds values to one hash.

    What has an identity and was seen before is named by its number, so cycles end. Numbers depend on the order
    of the walk, so members of sets, which have none, are hashed each on their own: they know what was seen
    ``outer``, and nobody learns what they have seen.

    ``unknown`` names what could not be looked at, by the way to it. Two digests say nothing if there is any.
    """

    def __init__(self, outer: Hasher | None = None) -> None:
        self._hash = hashlib.sha256()
        self._outer = outer
        self._seen: dict[Any, int] = {}
        self._first: int = outer._count if outer is not None else 0
        self._alive: list[Any] = []  # ids stay unique while their objects live
        self._way: list[str] = outer._way if outer is not None else []
        self.unknown: list[str] = outer.unknown if outer is not None else []

    @property
    def _count(self) -> int:
        return self._first + len(self._seen)

    def digest(self) -> str:
        """Return the hex digest of what was fed."""
        return self._hash.hexdigest()

    def text(self, *parts: str) -> None:
        """Feed strings; their borders count."""
        for part in parts:
            data = part.encode("utf-8", "surrogatepass")
            self._hash.update(len(data).to_bytes(8, "little") + data)

    def add(self, value: Any) -> None:
        """Feed any value. Types are compared, not classes asked: 1, 1.0 and True are three values."""
        kind = type(value)
        if kind in _SCALARS:
            self._add_scalar(value)
        elif kind is tuple:  # equal constants may or may not be one object: nothing hangs on it
            self._ordered("tuple", value)
        elif kind is frozenset:
            self._unordered("frozenset", value)
        elif kind.__module__ == "numpy.dtypes":  # as are these
            self._add_instance(value)
        elif self._is_new(id(value)):
            self._alive.append(value)
            self._add_object(value)

    def _add_scalar(self, value: Any) -> None:
        if type(value) is int:
            self.text("int", f"{value:x}")  # decimal digits are limited
        elif type(value) is float:
            self.text("float", struct.pack("<d", value).hex())
        else:
            self.text(type(value).__name__, repr(value))

    def _is_new(self, key: Any) -> bool:
        hasher: Hasher | None = self
        while hasher is not None:
            if key in hasher._seen:
                self.text("again", str(hasher._seen[key]))
                return False
            hasher = hasher._outer
        self._seen[key] = self._count
        return True

    def _add_object(self, value: Any) -> None:
        kind = type(value)
        if kind is list:
            self._ordered("list", value)
        elif kind is set:
            self._unordered("set", value)
        elif kind is dict:
            self._add_dict("dict", value)
        elif kind is types.MappingProxyType:
            self._add_dict("mappingproxy", dict(value))
        elif kind is Attributes:
            self._add_attributes(value)
        elif kind in (bytearray, memoryview, pickle.PickleBuffer):
            self._add_buffer(value)
        elif kind is types.CodeType:
            self._add_code(value)
        elif kind is types.FunctionType:
            self._add_function(value)
        elif kind in (types.MethodType, classmethod, staticmethod):
            self.text(kind.__name__)
            self.add(value.__func__)
            self.add(getattr(value, "__self__", None))
        elif kind is property:
            self.text("property")
            self.add([value.fget, value.fset, value.fdel])
        elif issubclass(kind, types.ModuleType):
            self._add_loaded(value)
        elif issubclass(kind, type):
            self._add_class(value)
        else:
            self._add_instance(value)

    # ------------------------------------------------------------ containers

    def _ordered(self, kind: str, values: Collection[Any]) -> None:
        self.text(kind, str(len(values)))
        for part in _chunks(values):
            if set(map(type, part)) <= _SCALARS and (shown := _shown(part)):
                self.text(shown)
                continue
            for value in part:
                self.add(value)

    def _add_dict(self, kind: str, values: dict[Any, Any]) -> None:
        self.text(kind, str(len(values)))
        for part in _chunks(values.items()):
            if set(map(type, itertools.chain(*part))) <= _SCALARS and (shown := _shown(part)):
                self.text(shown)
                continue
            for key, value in part:
                self.add(key)
                self.add(value)

    def _unordered(self, kind: str, values: Collection[Any]) -> None:
        self.text(kind, str(len(values)))
        if set(map(type, values)) <= _SCALARS and (members := _each_shown(values)):
            for part in _chunks(members):
                self.text(*part)
            return
        for cls in sorted(set(map(type, values)), key=lambda each: (str(each.__module__), each.__qualname__)):
            self.add(cls)  # once, and not in each member
        digests = []
        for value in values:
            hasher = Hasher(self)
            hasher.add(value)
            digests.append(hasher.digest())
        self.text(*sorted(digests))

    def _add_attributes(self, value: Attributes) -> None:
        names = sorted(value.values, key=str)
        self.text("attributes", *map(str, names))
        for name in names:
            with self._under(f"{value.kind} {name!r}"):
                self.add(value.values[name])

    def _add_buffer(self, value: Any) -> None:
        try:
            opened = memoryview(value)
        except ValueError:  # it was released
            self._unknown(f"a value of type {type(value).__name__}")
            return
        with opened as view:
            data = view if view.c_contiguous else view.tobytes()
            self.text(type(value).__name__, view.format, str(view.shape), hashlib.sha256(data).hexdigest())

    # ------------------------------------------------------------ code

    def _add_code(self, code: types.CodeType) -> None:
        counts = (code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
        self.text("code", str(counts), getattr(code, "co_exceptiontable", b"").hex())
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
        self.text("function")
        ways = reached.dispatched_by(function)
        if ways is not None:  # its closure holds a cache, which fills while it runs
            self.add(Attributes(ways, "what it does for"))
            return
        users = is_users(function.__module__)
        if users:
            self.add(function.__code__)
        else:
            self.text(function.__module__, function.__qualname__)
            if named(function.__module__, function.__qualname__) is function:
                return
        self.add(function.__defaults__)
        self.add(Attributes(function.__kwdefaults__ or {}, "the default of its parameter"))
        self.add(Attributes(reached.closure_of(function), "the variable"))
        self.add(Attributes(vars(function)))
        if not users:
            return
        values = reached.globals_of(function)
        self.add(Attributes(values, "the variable"))
        names = reached.attribute_names(function.__code__)
        for _, value in sorted(values.items()):
            if isinstance(value, types.ModuleType):
                self._add_used(value, names)
        if function.__module__ not in (None, "__main__"):
            self._add_module(function.__module__)

    def _add_class(self, cls: type) -> None:
        self.text("class", cls.__qualname__)
        if not is_users(cls.__module__):
            self.text(cls.__module__)
            if reached.is_built_in(cls) or named(cls.__module__, cls.__qualname__) is cls:
                return
        for base in cls.__bases__:
            self.add(base)
        if type(cls) is not type:
            self.add(type(cls))
        self.add(Attributes(reached.members_of(cls), f"the class {cls.__qualname__}: attribute"))
        if cls.__module__ != "__main__":
            self._add_module(cls.__module__)

    # ------------------------------------------------------------ modules

    def _add_loaded(self, module: types.ModuleType) -> None:
        name = module.__name__
        made = getattr(module, "__spec__", None) is None and getattr(module, "__file__", None) is None
        if made and name != "__main__":  # by code, while the program ran
            self.add(Attributes({key: each for key, each in vars(module).items() if key[:2] != "__"}))
        else:
            self._add_module(name)

    def _add_module(self, name: str) -> None:
        file = file_of(name)
        if file is None:
            self.text("module", name)
            return
        if not self._is_new(name):
            return
        digest, imports = contents_of(name, file)
        if digest is None:
            self._unknown(f"the module {name}, whose source cannot be read")
            return
        self.text("module", digest)
        loaded = vars(sys.modules[name]).values() if name in sys.modules else ()
        parts = {value.__name__ for value in loaded if isinstance(value, types.ModuleType)}
        for each in sorted({*imports, *(part for part in parts if file_of(part) is not None)}):
            self._add_module(each)

    def _add_used(self, module: types.ModuleType, names: set[str]) -> None:
        """Feed what the user's module holds now, under the names that the code asks for: it may have come from
        the command line or the environment."""
        if not file_of(module.__name__) or not self._is_new((module.__name__, *sorted(names))):
            return
        used = {name: vars(module)[name] for name in names & vars(module).keys()}
        self.add(Attributes(used, f"{module.__name__}:"))
        for _, value in sorted(used.items()):
            if isinstance(value, types.ModuleType):
                self._add_used(value, names)

    # ------------------------------------------------------------ objects

    def _add_instance(self, value: Any) -> None:
        try:
            parts = parts_of(value)
        except HeadraceError:  # a value that is gone
            raise
        except Exception:  # whatever it raises when it is looked at
            kind = type(value)
            place = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
            self._unknown(f"a value of type {place}{kind.__qualname__}")
            return
        for part in parts:
            self.add(part)

    def _unknown(self, what: str) -> None:
        self.text("unknown")
        self.unknown.append(" → ".join([*self._way, what]))

    @contextlib.contextmanager
    def _under(self, name: str) -> Iterator[None]:
        self._way.append(name)
        try:
            yield
        finally:
            self._way.pop()


def _chunks(values: Iterable[Any]) -> Iterator[list[Any]]:
    walk = iter(values)
    while part := list(itertools.islice(walk, _AT_ONCE)):
        yield part


def _shown(scalars: list[Any]) -> str:
    """Return many scalars as one text, fast; empty if there are too many digits."""
    try:
        return repr(scalars)
    except ValueError:
        return ""


def _each_shown(scalars: Iterable[Any]) -> list[str]:
    try:
        return sorted(map(repr, scalars))
    except ValueError:
        return []
