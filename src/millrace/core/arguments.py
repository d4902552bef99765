"""A wrong argument name is answered with the nearest right one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from millrace.errors import MillraceError, UnknownArgument, nearest

P = ParamSpec("P")
R = TypeVar("R")


def known_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make ``function`` raise ``UnknownArgument`` for a keyword that it does not take.

    >>> @known_arguments
    ... def read(path, *, columns=None): ...
    >>> read("a", colums=["x"])
    Traceback (most recent call last):
    ...
    millrace.errors.UnknownArgument: read() has no argument 'colums'. Did you mean 'columns'?
    """
    code = function.__code__
    first = code.co_posonlyargcount
    names = code.co_varnames[first : code.co_argcount + code.co_kwonlyargcount]
    known = frozenset(names)
    called = f"{function.__qualname__.removesuffix('.__init__').rpartition('.')[2]}()"

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in known:
                shown = [known_name for known_name in names if known_name != "self"]
                hint = nearest(name, shown) or f" It takes: {', '.join(shown)}."
                raise UnknownArgument(f"{called} has no argument {name!r}.{hint}")
        try:
            return function(*args, **kwargs)
        except (MillraceError, KeyboardInterrupt) as error:
            raise without_our_frames(error)  # noqa: B904 - the cause that it has is the one that counts

    return checked


def without_our_frames(error: BaseException) -> BaseException:
    """Drop the frames of ours from an error's traceback and its causes': the message says what they would."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__
    error.__suppress_context__ = True
    return error
