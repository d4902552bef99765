"""What the user's functions, classes and objects are made of, and what they reach from there: modules above all."""

from __future__ import annotations

import ast
import copyreg
import dis
import functools
import hashlib
import os
import pickle
import sys
import threading
import types
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from typing import Any, cast

_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def is_users(module: str | None) -> bool:
    """Say whether a module is the user's own: not of Python, not installed, not ours.

    What cannot be found at all is the user's too: a notebook, a console, code that was handed to ``exec``.
    """
    return module is None or module == "__main__" or file_of(module) is not None or not _is_known(module)


def _is_known(module: str) -> bool:
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "headrace":
        return True
    return module in sys.modules or _find(top) is not None


def file_of(module: str) -> str | None:
    """Return the file of a module of the user's, imported or not; None for all others."""
    top = module.partition(".")[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names or top == "headrace":
        return None
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None) if loaded is not None else _find(module)
    if not isinstance(file, str) or file.startswith(_STANDARD_LIBRARY):
        return None
    return None if any(folder in file for folder in _INSTALLED) else file


def _find(module: str) -> str | None:
    """Look a module up as importing it would, but import nothing on the way."""
    from importlib.machinery import PathFinder

    path = None
    origin = None
    name = ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        try:
            spec = PathFinder.find_spec(name, path) or _find_elsewhere(name, path)
        except (ImportError, SyntaxError, ValueError):  # archives compile what they find
            return None
        if spec is None:
            return None
        origin, path = spec.origin, spec.submodule_search_locations
        if path is None and name != module:
            return None
    return origin


def _find_elsewhere(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask the other finders: one of them knows what ``pip install --editable`` has installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is imported: it is no use of ours that is deprecated
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = (
                find(name, path) if find is not None and not isinstance(finder, type) else None
            )
            if spec is not None:
                return spec
    return None


def contents_of(module: str, file: str) -> tuple[str | None, tuple[str, ...]]:
    """Return what a module says, as a digest, and the names of the user's modules that it imports.

    The digest is None if nobody can read the module.
    """
    try:
        status = os.stat(file)
        return _contents(module, file, status.st_mtime_ns, status.st_size)
    except OSError:  # in an archive, say
        data = _from_loader(module, file)
        return (None, ()) if data is None else _digest(module, file, data)


def _from_loader(module: str, file: str) -> bytes | None:
    from importlib.util import find_spec

    try:
        spec = getattr(sys.modules.get(module), "__spec__", None) or find_spec(module)
        data: bytes = spec.loader.get_data(file)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError, SyntaxError, ValueError):
        return None
    return data


@functools.lru_cache(maxsize=4096)
def _contents(module: str, file: str, mtime_ns: int, size: int) -> tuple[str, tuple[str, ...]]:
    with open(file, "rb") as source:
        return _digest(module, file, source.read())


def _digest(module: str, file: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    try:
        read = _Read(ast.parse(data)) if file.endswith(".py") else None
    except (SyntaxError, ValueError, RecursionError):  # it says what it says
        read = None
    if read is None:
        return hashlib.sha256(data).hexdigest(), ()
    package = module if os.path.basename(file) == "__init__.py" else module.rpartition(".")[0]
    names = {name for node in read.imports for name in _imported(node, package)}
    imports = {name for name in names if name != module and file_of(name) is not None}
    return hashlib.sha256(read.text().encode("utf-8", "surrogatepass")).hexdigest(), tuple(sorted(imports))


_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


class _Read:
    """A syntax tree as text: no comments, no layout, no docstrings, sets in one order. And what it imports.

    All in one pass, and with no more words than tell trees apart: ``ast.dump`` takes three times as long, and a job
    cannot begin before.
    """

    def __init__(self, tree: ast.Module) -> None:
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self._parts: list[str] = []
        self._node(tree)

    def text(self) -> str:
        """Return the text."""
        return "".join(self._parts)

    def _node(self, node: ast.AST) -> None:
        kind = node.__class__
        add = self._parts.append
        add(kind.__name__)
        add("(")
        if kind is ast.Import or kind is ast.ImportFrom:
            self.imports.append(node)  # type: ignore[arg-type]
        elif kind is ast.Set:
            _sort(node)  # type: ignore[arg-type]
        for name in kind._fields:
            if name == "ctx":  # where it stands says that
                continue
            value = getattr(node, name, None)
            if value.__class__ is list:
                skipped = name == "body" and kind in _DOCUMENTED and _begins_with_text(value)
                add("[")
                for each in value[1:] if skipped else value:
                    self._node(each) if isinstance(each, ast.AST) else add(repr(each))
                    add(",")
                add("]")
            elif isinstance(value, ast.AST):
                self._node(value)
            else:
                add(repr(value))
            add(",")
        add(")")


def _begins_with_text(body: list[ast.stmt]) -> bool:
    first = body[0] if body else None
    return isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)


def _sort(node: ast.Set) -> None:
    if all(isinstance(member, ast.Constant) for member in node.elts):
        node.elts.sort(key=ast.dump)


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    """Yield what an import names, and the packages above."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield from with_parents(alias.name)
        return
    base = node.module or ""
    if node.level:
        above = package.split(".")
        above = above[: len(above) - node.level + 1]
        base = ".".join([*above, base] if base else above)
    if base:
        yield from with_parents(base)
        for alias in node.names:
            yield f"{base}.{alias.name}"


def with_parents(module: str) -> Iterator[str]:
    """Yield the packages above a module, then itself."""
    parts = module.split(".")
    for end in range(1, len(parts) + 1):
        yield ".".join(parts[:end])


# ------------------------------------------------------------ what code and values reach


# ---------------------------------------------------------------- objects, as pickle sees them

# They hold nothing that a function computes with, or, as the environment, what nobody can see beforehand.
_WITHOUT_VALUE = (type(threading.Lock()), type(threading.RLock()), threading.local, type(os.environ))
_COPIED = {"__annotations__", "__doc__", "__module__"}  # what wraps a function may have these of it
_CACHES = (type(functools.lru_cache(len)),)
# In these, ``__wrapped__`` is what a compiled function computes; the rest is made while it runs.
_COMPILERS = {"jax", "jaxlib", "numba"}


class NoFingerprintError(Exception):
    """An object holds something that cannot be looked at."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Values by their names, in no order; the names tell the way to them."""

    values: Mapping[str, Any]
    kind: str = "its attribute"


def parts_of(value: Any) -> list[Any]:
    """Return an object's class, and what tells it from others of its class; raise if that is hidden.

    >>> parts_of(range(3))
    [<class 'range'>, <class 'range'>, (0, 3, 1)]
    """
    if _is_standard_stream(value):  # whoever has put something in its place
        return ["a standard stream"]
    if hasattr(type(value), "__identified_by__"):  # a reference to a value
        return [value.__identified_by__()]
    return [type(value), *_held_by(value)]


def _held_by(value: Any) -> list[Any]:
    if isinstance(value, _WITHOUT_VALUE):
        return []
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords, _own(vars(value))]
    if isinstance(value, (types.BuiltinFunctionType, types.BuiltinMethodType)):
        return [getattr(value, "__module__", None), value.__qualname__, value.__self__]
    compiled = type(value).__module__.partition(".")[0] in _COMPILERS and hasattr(value, "__wrapped__")
    if compiled or isinstance(value, _CACHES):
        return [value.__wrapped__]
    if _is_tensor(value):
        return list(_tensor(value))
    return _reduced(value)


def _is_standard_stream(value: Any) -> bool:
    streams = (sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return any(value is stream for stream in streams)


# ---------------------------------------------------------------- as pickle takes it apart


def _reduced(value: Any) -> list[Any]:
    try:
        reducer = copyreg.dispatch_table.get(type(value))
        reduced = reducer(value) if reducer else value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # it refuses; Python code can be looked at all the same
        if _has_hidden_state(type(value)):
            raise NoFingerprintError from error
        return [_attributes(value)]
    if isinstance(reduced, str):
        return _named_parts(value, reduced)
    made = list(reduced)
    if len(made) > 2:
        made[2] = _state(made[2])
    return [*made[:3], *(list(part) if part is not None else None for part in made[3:5]), *made[5:]]


def _state(state: Any) -> Any:
    """Take the order out of attributes; everything else stays as it is."""
    if type(state) is tuple and len(state) == 2 and type(state[1]) is dict:  # that of slots
        return tuple(_state(each) for each in state)
    return _own(state) if type(state) is dict and all(type(name) is str for name in state) else state


def _own(attributes: Mapping[str, Any]) -> Attributes:
    return Attributes({name: value for name, value in attributes.items() if name not in _COPIED})


def _attributes(value: Any) -> Attributes:
    known = dict(getattr(value, "__dict__", {}))
    for name in _slots(type(value)):
        if hasattr(value, name):
            known[name] = getattr(value, name)
    return _own(known)


def _slots(cls: type) -> list[str]:
    names = []
    for each in cls.__mro__:
        own = each.__dict__.get("__slots__", ())
        for name in [own] if isinstance(own, str) else own:
            if name in ("__dict__", "__weakref__"):
                continue
            private = name.startswith("__") and not name.endswith("__")
            names.append(f"_{each.__name__.lstrip('_')}{name}" if private else name)
    return names


def _has_hidden_state(cls: type) -> bool:
    """Say whether objects of a class hold more than attributes: what a C extension keeps to itself."""
    word = object.__basicsize__ // 2
    seen = len(_slots(cls)) + (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return cls.__itemsize__ != 0 or cls.__basicsize__ > object.__basicsize__ + word * seen


def _named_parts(value: Any, name: str) -> list[Any]:
    """Return what stands for an object that pickle knows by its name: that, and what can be seen of it."""
    module = cast(Any, pickle).whichmodule(value, name)
    if named(module, name) is not value and not hasattr(value, "__wrapped__"):
        raise NoFingerprintError
    seen = getattr(value, "__dict__", None) if type(value).__flags__ & _HEAP_TYPE else None
    return [module, name, Attributes(dict(seen)) if seen else None, getattr(value, "__wrapped__", None)]


_HEAP_TYPE = 1 << 9


def named(module: str | None, qualname: str) -> Any:
    """Return what a module knows by this name; what it does not know was made while the program ran."""
    value: Any = sys.modules.get(module or "")
    for part in qualname.split("."):
        value = getattr(value, part, None)
    return value


# ---------------------------------------------------------------- PyTorch


def _is_tensor(value: Any) -> bool:
    return any(cls.__module__ == "torch" and cls.__qualname__ == "Tensor" for cls in type(value).__mro__)


def _tensor(value: Any) -> Iterator[Any]:
    """Yield what a tensor holds: what it pickles to also holds addresses."""
    torch = sys.modules["torch"]
    if value.layout is not torch.strided or value.is_quantized:
        raise NoFingerprintError
    yield from (str(value.dtype), tuple(value.shape), str(value.layout))
    yield Attributes(vars(value))
    if value.device.type == "meta":
        return
    try:
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        yield plain.reshape(-1).view(torch.uint8).numpy().data
    except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
        raise NoFingerprintError from error


# Of a class: what says nothing about its behaviour, and what Python or a library makes of the rest.
_UNNAMED = {
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__module__",
    "__pydantic_complete__",
    "__pydantic_core_schema__",
    "__pydantic_parent_namespace__",
    "__pydantic_serializer__",
    "__pydantic_setattr_handlers__",
    "__pydantic_validator__",
    "__signature__",
    "__slotnames__",
    "__static_attributes__",
    "__struct_config__",
    "__weakref__",
    "_abc_impl",
    "_value2member_map_",
}
_DESCRIPTORS = (
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_EMPTY = Attributes({}, "an empty variable")


def closure_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the variables of the functions around it that a function uses."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: _content(cell) for name, cell in cells}


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def globals_of(function: types.FunctionType) -> dict[str, Any]:
    """Return the global variables that a function uses, and the functions in it."""
    names = _names(function.__code__, ("LOAD_GLOBAL", "LOAD_NAME"))
    return {name: function.__globals__[name] for name in names & function.__globals__.keys()}


def attribute_names(code: types.CodeType) -> set[str]:
    """Return what some code asks of objects, whichever they are."""
    return _names(code, ("LOAD_ATTR", "LOAD_METHOD"))


def _names(code: types.CodeType, loads: tuple[str, ...]) -> set[str]:
    names = {each.argval for each in dis.get_instructions(code) if each.opname in loads}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names(constant, loads)
    return names


def dispatched_by(function: Any) -> dict[str, Any] | None:
    """Return what ``functools.singledispatch`` calls for which class; None for other functions."""
    ways = getattr(function, "registry", None)
    if function.__globals__ is not vars(functools) or not isinstance(ways, types.MappingProxyType):
        return None
    return {f"{cls.__module__}.{cls.__qualname__}": way for cls, way in ways.items()}


def is_built_in(cls: type) -> bool:
    """Say whether a class was there before the program ran."""
    return not cls.__flags__ & _HEAP_TYPE


def members_of(cls: type) -> dict[str, Any]:
    """Return what the body of a class has defined, as far as it matters."""
    members = {
        name: value
        for name, value in vars(cls).items()
        if name not in _UNNAMED and not isinstance(value, _DESCRIPTORS)
    }
    return members if type(cls) is type else members | {"its annotations": _annotations(cls)}


def _annotations(cls: type) -> dict[str, Any]:
    """Return the annotations of a class: a metaclass may have made fields of them."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(cls, format=annotationlib.Format.STRING)
    return dict(vars(cls).get("__annotations__") or {})


def modules_named(call: Any) -> set[str]:
    """Return the modules of what a function, a class or an object uses by name, as far as a first look tells."""
    if isinstance(call, functools.partial):
        values = [call.func, *call.args, *call.keywords.values()]
        return {module for value in values for module in (*modules_named(value), *_module_of(value))}
    held = [] if isinstance(call, (type, types.FunctionType)) else [*getattr(call, "__dict__", {}).values()]
    members = [*vars(call if isinstance(call, type) else type(call)).values(), call]
    for each in members:
        function = getattr(each, "__func__", each)
        if isinstance(function, types.FunctionType):
            held += [*globals_of(function).values(), *closure_of(function).values()]
    return {module for value in held for module in _module_of(value)}


def _module_of(value: Any) -> list[str]:
    if isinstance(value, types.ModuleType):
        return [value.__name__]
    named = value if isinstance(value, (type, types.FunctionType)) else type(value)
    return [str(named.__module__)]
