"""A wrong argument name is answered with the nearest right one; another library's, with what becomes of it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, overload

from headrace.errors import HeadraceError, UnknownArgument, nearest

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An argument that a verb of the same name has elsewhere, and that ours has no use for.

    It is taken without effect where it is harmless: with any value (``harmless`` None), or with one of these.
    Anything else is refused for ``reason``, which also says what to do.
    """

    reason: str
    harmless: tuple[Any, ...] | None = (None,)

    def takes(self, value: Any) -> bool:
        """Say whether nothing that was asked for is lost if the argument is passed over."""
        if self.harmless is None:
            return True
        return any(value is same or (type(value) is type(same) and value == same) for same in self.harmless)


@dataclass(frozen=True, slots=True)
class Translated(Unsupported):
    """An argument that ours says by others: ``into`` gives these by name for a value."""

    into: Callable[[Any], Mapping[str, Any]] = dict


_NOTHING: Mapping[str, Unsupported] = {}


@overload
def known_arguments(function: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def known_arguments(
    *, also: Mapping[str, Unsupported] = ..., options: type | None = ...
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def known_arguments(
    function: Any = None,
    /,
    *,
    also: Mapping[str, Unsupported] = _NOTHING,
    options: type | None = None,
) -> Any:
    """Make ``function`` raise ``UnknownArgument`` for a keyword that it does not take.

    ``also`` has names that are no mistake, but belong to another library's verb of this name. ``options`` is the
    TypedDict with the keywords that ``function`` takes as ``**options``: they are shown as its own.

    >>> @known_arguments(also={"parallelism": Unsupported("there are no blocks here.", (None, -1))})
    ... def read(path, *, columns=None): ...
    >>> read("a", parallelism=-1)
    >>> read("a", colums=["x"])
    Traceback (most recent call last):
    ...
    headrace.errors.UnknownArgument: read() has no argument 'colums'. Did you mean 'columns'?
    >>> read("a", parallelism=200)
    Traceback (most recent call last):
    ...
    headrace.errors.UnknownArgument: read() has no use for parallelism=200: there are no blocks here.
    """
    if function is None:
        return functools.partial(_checked, also=also, options=options)
    return _checked(function, also, options)


def _checked(
    function: Callable[..., Any], also: Mapping[str, Unsupported], options: type | None
) -> Callable[..., Any]:
    code = function.__code__
    first = code.co_posonlyargcount
    shared = {} if options is None else options.__annotations__
    names = (*code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount], *shared)
    known = frozenset(names)
    makes = function.__name__ == "__init__"  # maybe of a class that is derived from the one that has it
    verb = f"{function.__qualname__.rpartition('.')[2]}()"

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        called = f"{type(args[0]).__name__}()" if makes else verb
        for name in kwargs.keys() - known:
            _settle(called, name, kwargs, names, also)
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
            said = str(error).replace(function.__qualname__, called.removesuffix("()"), 1)
        raise UnknownArgument(f"{said}.")  # Python's own words: an argument is missing, or there are too many

    made = unframed(checked)
    if shared:
        made.__signature__ = _signature(function, shared)  # type: ignore[attr-defined]
    return made


def _signature(function: Callable[..., Any], options: Mapping[str, Any]) -> inspect.Signature:
    """Return the signature with ``options`` as keywords of their own, each None by default."""
    signature = inspect.signature(function)
    kind = inspect.Parameter.KEYWORD_ONLY
    own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
    shared = [
        inspect.Parameter(name, kind, default=None, annotation=getattr(it, "__forward_arg__", it))
        for name, it in options.items()
    ]
    return signature.replace(parameters=[*own, *shared])


def unframed(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function leave no frame of ours in the traceback of an error of ours, or of Ctrl-C.

    >>> @unframed
    ... def fails():
    ...     raise HeadraceError("no")
    >>> try:
    ...     fails()
    ... except HeadraceError as error:
    ...     error.__traceback__.tb_next is None
    True
    """

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except (HeadraceError, KeyboardInterrupt) as error:
            drop_our_frames(error)
            raise

    return called


def _settle(
    called: str, name: str, kwargs: dict[str, Any], names: tuple[str, ...], also: Mapping[str, Unsupported]
) -> None:
    """Take an argument that the function does not have out of ``kwargs``: translated, passed over, or refused."""
    value, other = kwargs.pop(name), also.get(name)
    if not isinstance(other, Translated) or other.takes(value):
        unknown = _unknown(called, name, value, names, also)
        if unknown:
            raise UnknownArgument(unknown)
        return
    for ours, said in other.into(value).items():
        if kwargs.get(ours) is not None:
            raise UnknownArgument(f"{called}: {name}= and {ours}= say the same. Leave one of them out.")
        kwargs[ours] = said


def _unknown(
    called: str, name: str, value: Any, names: tuple[str, ...], also: Mapping[str, Unsupported]
) -> str:
    """Say why an argument cannot be taken; an empty string if it can be passed over."""
    unsupported = also.get(name)
    if unsupported is None:
        shown = [known for known in names if known != "self"]
        takes = f" It takes: {', '.join(shown)}." if shown else " It takes no arguments."
        return f"{called} has no argument {name!r}.{nearest(name, shown) or takes}"
    if unsupported.takes(value):
        return ""
    text = repr(value)
    given = text if len(text) <= 80 else text[:77] + "..."
    return f"{called} has no use for {name}={given}: {unsupported.reason}"


def drop_our_frames(error: BaseException) -> None:
    """Drop the frames of ours from an error's traceback and its causes': the message says what they would.

    A bare ``raise`` after this adds none again; ``raise error`` would add one.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link.__suppress_context__ = True
        link = link.__cause__
