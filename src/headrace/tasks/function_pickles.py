"""Pickles of functions that are called again and again: made once, while nothing that they are made of changes."""

from __future__ import annotations

import dis
import pickle
import sys
import types
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.core.human import size
from headrace.core.warn import warn
from headrace.engines.plain import ATOMS, is_plain
from headrace.engines.references import collecting_references

BIG = 1 << 20  # bytes
_MOST_REMEMBERED = 256  # objects
_MISSING: Any = object()
_MOST = 32 << 10  # bytes of a call
_MOST_CHANGES = 8  # then a function is pickled for each call, as what it names changes all the time
_READS = ("LOAD_GLOBAL", "LOAD_NAME")
_WRITES = ("STORE_GLOBAL", "DELETE_GLOBAL")


class _Again:
    """Stands for a function in the pickle of a call: unpickled, it is the function."""

    __slots__ = ("_pickled",)

    def __init__(self, pickled: bytes) -> None:
        self._pickled = pickled

    def __reduce__(self) -> Any:
        return pickle.loads, (self._pickled,)


@dataclass(slots=True)
class _Part:
    """A function that is pickled by value, and what its pickle was made from. It is kept alive by nobody here."""

    function: weakref.ref[Any]
    code: types.CodeType
    defaults: Any
    names: list[tuple[str, Any]]  # global names, and what each was; a function: a weak reference to it

    def holds(self) -> bool:
        """Say whether all that is the same."""
        function = self.function()
        if (
            function is None
            or function.__code__ is not self.code
            or function.__defaults__ is not self.defaults
            or function.__kwdefaults__
            or function.__dict__
        ):
            return False
        globals_ = function.__globals__
        for name, found in self.names:
            if type(found) is weakref.ref:
                found = found()
            if globals_.get(name, _MISSING) is not found:
                return False
        return True


@dataclass(slots=True)
class _Known:
    """A pickle, and the functions that are in it by value.

    ``modules``: how many there were, since a pickle names those of a package that its function may use.
    """

    again: _Again
    parts: list[_Part]
    modules: int
    changes: int = 0  # how often it was made anew

    def holds(self) -> bool:
        """Say whether pickling would give the same."""
        if self.parts and len(sys.modules) != self.modules:
            return False
        for part in self.parts:  # noqa: SIM110 - a generator takes twice as long
            if not part.holds():
                return False
        return True


class FunctionPickles:
    """Pickles calls whose arguments are plain, of functions that were called before, or of methods by name.

    A function that is pickled by value is only kept if all that goes into its pickle cannot change, or is compared
    each time: its code, and the modules, numbers, texts and other such functions that it names. A closure, a list or
    a class of the program's main module can change unseen: those are pickled for each call.
    """

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, _Known | None] = weakref.WeakKeyDictionary()
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def of_call(self, what: Any, args: Sequence[Any], kwargs: dict[str, Any], strict: bool) -> bytes | None:
        """Return the pickle of ``(what, args, kwargs, strict)``; None if it takes more than this."""
        args = tuple(args)
        if not is_plain(args) or (kwargs and not is_plain(kwargs)):
            return None
        if type(what) is not str:
            what = self._again(what)
            if what is None:
                return None
        pickled = pickle.dumps((what, args, kwargs, strict), protocol=5)
        return pickled if len(pickled) <= _MOST else None

    def _again(self, function: Any) -> _Again | None:
        kind = type(function)
        if kind is not types.FunctionType and kind is not types.BuiltinFunctionType:
            return None
        from cloudpickle import list_registry_pickle_by_value

        if list_registry_pickle_by_value():
            return None
        known = self._known.get(function, _MISSING)
        if known is _MISSING and function not in self._seen:  # it may be made anew for each call
            self._seen.add(function)
            return None
        if known is _MISSING or (known is not None and not known.holds()):
            changes = 0 if known is _MISSING else known.changes + 1
            known = self._known[function] = _known(function) if changes <= _MOST_CHANGES else None
            if known is not None:
                known.changes = changes
        return None if known is None else known.again


def _known(function: Any) -> _Known | None:
    """Pickle a function; None if its pickle must be made anew for each call."""
    from headrace.engines.out_of_band_pickle import pickle_apart

    known = _Known(_Again(b""), [], len(sys.modules))
    try:
        if isinstance(function, types.BuiltinFunctionType):
            if not isinstance(function.__self__, types.ModuleType):
                return None
        elif not _is_imported(function) and not _collect(function, known.parts, set()):
            return None
        pickled, buffers = pickle_apart(function)
    except Exception:  # it is told with the call
        return None
    known.again = _Again(pickled)
    known.modules = len(sys.modules)
    return known if not buffers and len(pickled) <= _MOST else None


def _is_imported(function: Any) -> bool:
    """Say whether a worker imports the function, instead of getting its code."""
    from headrace.engines.out_of_band_pickle import pickle_apart

    if function.__module__ in (None, "__main__"):
        return False
    try:
        return pickle.dumps(function, protocol=5) == pickle_apart(function)[0]
    except Exception:
        return False


def _collect(function: Any, parts: list[_Part], seen: set[Any]) -> bool:
    """Collect what a function is made of; False if that can change unseen."""
    if function in seen:
        return True
    seen.add(function)
    if function.__closure__ or function.__dict__ or function.__kwdefaults__:
        return False
    if not all(type(each) in ATOMS for each in function.__defaults__ or ()):
        return False
    if not all(map(_is_builtin, function.__annotations__.values())):
        return False
    part = _Part(weakref.ref(function), function.__code__, function.__defaults__, [])
    parts.append(part)
    for name, is_read in _globals_of(function.__code__):
        found = function.__globals__.get(name, _MISSING)
        if not is_read or not _is_fixed(found, parts, seen):
            return False
        part.names.append((name, weakref.ref(found) if type(found) is types.FunctionType else found))
    return True


def _is_fixed(found: Any, parts: list[_Part], seen: set[Any]) -> bool:
    """Say whether what a global name stands for cannot change while it is the same object, or is compared."""
    if found is _MISSING or type(found) in ATOMS:
        return True
    if isinstance(found, types.ModuleType):
        return found.__name__ != "__main__" and sys.modules.get(found.__name__) is found
    if isinstance(found, types.BuiltinFunctionType):
        return isinstance(found.__self__, types.ModuleType)
    return type(found) is types.FunctionType and (_is_imported(found) or _collect(found, parts, seen))


def _is_builtin(annotation: Any) -> bool:
    if annotation is None or type(annotation) is str:
        return True
    return type(annotation) is type and annotation.__module__ == "builtins"


def _globals_of(code: types.CodeType) -> Iterator[tuple[str, bool]]:
    """Yield the global names that code uses, and whether it only reads them."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in _READS or instruction.opname in _WRITES:
            yield instruction.argval, instruction.opname in _READS
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _globals_of(constant)


# ---------------------------------------------------------------- big arguments that are sent again and again


class Repeats:
    """Warns once when an object of ``BIG`` bytes or more is an argument by value for the second time.

    An object is the same if it is alive since; one that cannot be weakly referenced (a list, a dict, bytes), if its
    pickle is the same, too.
    """

    def __init__(self) -> None:
        self._seen: dict[int, weakref.ref[Any] | int] = {}
        self._warned = False

    def check(self, label: str, sent: int, values: Iterable[Any]) -> None:
        """Warn if a call of ``sent`` bytes has an argument again."""
        if self._warned or sent < BIG:
            return
        for value in values:
            value = value.__self__ if isinstance(value, types.MethodType) else value
            if self._was_sent(value) and (nbytes := _size(value)) >= BIG:
                self._warned = True
                warn(
                    f"{label} was sent the same {type(value).__name__} of {size(nbytes)} again: each time it is "
                    "serialised and copied. Put it once, ref = executor.put(…), and pass ref instead.",
                )
                return

    def _was_sent(self, value: Any) -> bool:
        if isinstance(value, (int, float, type(None))):
            return False
        known = self._seen.get(id(value))
        fingerprint = _fingerprint(value)
        while len(self._seen) >= _MOST_REMEMBERED:
            del self._seen[next(iter(self._seen))]
        self._seen[id(value)] = fingerprint
        return (
            known() is value if isinstance(known, weakref.ref) else known is not None and known == fingerprint
        )


def _fingerprint(value: Any) -> weakref.ref[Any] | int:
    try:
        return weakref.ref(value)
    except TypeError:
        return zlib.crc32(value) if isinstance(value, bytes) else _pickled(value)[1]


def _size(value: Any) -> int:
    known = getattr(value, "nbytes", None)
    return known if isinstance(known, int) else _pickled(value)[0]


def _pickled(value: Any) -> tuple[int, int]:
    """Return the size of an object's pickle, and a checksum."""
    from headrace.engines.out_of_band_pickle import pickle_apart

    with collecting_references():
        pickled, buffers = pickle_apart(value)
    total, check = len(pickled), zlib.crc32(pickled)
    for buffer in buffers:
        with buffer.raw() as view:
            total, check = total + view.nbytes, zlib.crc32(view, check)
    return total, check
