"""What a function or a class of the user's is made of, and what it reaches from there."""

from __future__ import annotations

import dis
import functools
import sys
import types
from typing import Any

from headrace.plan.instances import Attributes

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
_HEAP_TYPE = 1 << 9
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
