"""Tables for the fingerprint: values and programs that are alike, that differ, and that nobody can compare.

Each entry of ``VALUES`` lists makers of things that must all differ. Each maker, called again, here or in
another process, makes the same thing once more. ``PROGRAMS`` does that with scripts that define ``f``.
"""

from __future__ import annotations

import abc
import array
import collections
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import importlib.util
import itertools
import math
import mmap
import operator
import pathlib
import re
import socket
import sqlite3
import struct
import sys
import tempfile
import textwrap
import threading
import types
import uuid
import warnings
import weakref
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from headrace.plan.fingerprint import fingerprint
from headrace.plan.functions import Function

ValuePools = list[Callable[[], Any]]


class Point(NamedTuple):
    x: int
    y: int = 2


class Other(NamedTuple):
    x: int
    y: int = 2


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


class Perm(enum.Flag):
    R = 1
    W = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: float = 1.0


@attrs.define
class Attrs:
    a: int = 1


class Struct(msgspec.Struct):
    a: int = 1


class Slots:
    __slots__ = ("__hidden", "a")

    def __init__(self, a: int, hidden: int = 0) -> None:
        self.a = a
        self.__hidden = hidden


class Text(str):
    """A string with more to it."""

    extra: Any = None


class Refuses:
    """Pickle gets nothing out of it, and yet it is plain Python."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")


class Slotted(Slots):
    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("no")


class Walks:
    """It pickles to iterators."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __reduce__(self) -> Any:
        return (Walks, (), None, iter(self.items), iter({"k": self.items}.items()))


class Wrapper:
    """A decorator that is a class; it says ``__wrapped__`` as functools would have it."""

    def __init__(self, function: Any, factor: int) -> None:
        functools.update_wrapper(self, function)
        self.factor = factor


class Locked:
    def __init__(self, value: int) -> None:
        self.value = value
        self.lock = threading.Lock()
        self.again = threading.RLock()
        self.local = threading.local()


class Base(abc.ABC):
    @abc.abstractmethod
    def go(self) -> int: ...


def double(x: Any, factor: Any = 2) -> Any:
    return x * factor


def _text(extra: Any) -> Text:
    text = Text("t")
    text.extra = extra
    return text


def _loop(size: int) -> list[Any]:
    items: list[Any] = [0] * size
    items.append({"self": items})
    return items


def _shared(one: bool) -> Any:
    a = [1]
    return [a, a] if one else [a, [1]]


def _module(value: int, *, known: bool = False) -> types.ModuleType:
    module = types.ModuleType("made_here")
    module.VALUE = value  # type: ignore[attr-defined]
    return module


def _made(default: int) -> type:
    return dataclasses.make_dataclass("Made", [("x", int, dataclasses.field(default=default))])


def _class(**members: Any) -> type:
    return type("Plain", (), members)


def _lambda(text: str) -> Any:
    return eval(text, {"__name__": "__main__"})


def _structured(order: str) -> Any:
    return np.zeros(2, [("a", f"{order}i4"), ("b", "f8")])


VALUES: dict[str, ValuePools] = {
    "one of each type": [lambda: 1, lambda: 1.0, lambda: True, lambda: "1", lambda: b"1", lambda: 1 + 0j],
    "in a list": [lambda: [1], lambda: [1.0], lambda: [True], lambda: ["1"], lambda: (1,), lambda: {1}],
    "kinds of sets": [lambda: {1, 2}, lambda: frozenset({1, 2}), lambda: [1, 2], lambda: {1: 2}],
    "zeros and what is no number": [lambda: 0.0, lambda: -0.0, lambda: math.nan, lambda: math.inf, lambda: 0],
    "zeros in a list": [lambda: [0.0], lambda: [-0.0], lambda: [math.nan], lambda: [0]],
    "payloads": [lambda: math.nan, lambda: struct.unpack("<d", struct.pack("<Q", 0x7FF8 << 48 | 1))[0]],
    "borders": [lambda: ["a", "b"], lambda: ["a', 'b"], lambda: ["ab"], lambda: [["a"], "b"]],
    "big": [lambda: [10**5000], lambda: [10**5000 + 1], lambda: {10**5000}, lambda: {10**5000: 1}],
    "none of them": [lambda: None, lambda: Ellipsis, lambda: NotImplemented, lambda: (), lambda: [], dict],
    "the order of a dict": [lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}],
    "the order of a dict of objects": [lambda: {"a": [1], "b": [2]}, lambda: {"b": [2], "a": [1]}],
    "sets of texts": [lambda: {"one", "two", "three"}, lambda: {"one", "two"}, lambda: {("one", "two")}],
    "sets of objects": [
        lambda: {Frozen(1), Frozen(2)},
        lambda: {Frozen(1)},
        lambda: {Frozen(1), Frozen(2, 0.0)},
    ],
    "sets in sets": [lambda: {frozenset({"a", "b"}), frozenset({"c"})}, lambda: {frozenset({"a", "b", "c"})}],
    "defaultdict": [
        lambda: collections.defaultdict(int, a=1),
        lambda: collections.defaultdict(float, a=1),
        lambda: collections.defaultdict(None, a=1),
        lambda: {"a": 1},
        lambda: collections.OrderedDict(a=1),
        lambda: collections.Counter(a=1),
        lambda: collections.UserDict(a=1),
        lambda: types.MappingProxyType({"a": 1}),
        lambda: types.MappingProxyType({"a": 2}),
        lambda: collections.ChainMap({"a": 1}),
        lambda: collections.ChainMap({}, {"a": 1}),
        lambda: types.SimpleNamespace(a=1),
    ],
    "deque": [
        lambda: collections.deque([1]),
        lambda: collections.deque([1], 3),
        lambda: collections.deque([2], 3),
    ],
    "ordered": [lambda: collections.OrderedDict(a=1, b=2), lambda: collections.OrderedDict(b=2, a=1)],
    "named tuples": [lambda: Point(1), lambda: Other(1), lambda: (1, 2), lambda: Point(1, 3), lambda: Point],
    "enum": [
        lambda: Color.RED,
        lambda: Color.BLUE,
        lambda: Level.LOW,
        lambda: 1,
        lambda: Perm.R,
        lambda: Perm.R | Perm.W,
    ],
    "dataclass": [lambda: Frozen(1), lambda: Frozen(2), lambda: Frozen(1, 2.0), lambda: Frozen],
    "attrs": [Attrs, lambda: Attrs(2), lambda: Attrs],
    "msgspec": [Struct, lambda: Struct(2), lambda: Struct],
    "made classes": [lambda: _made(1), lambda: _made(2), lambda: _made(1)(1), lambda: _made(1)(2)],
    "slots": [lambda: Slots(1), lambda: Slots(2), lambda: Slots(1, 5)],
    "texts with more": [lambda: _text(1), lambda: _text(2), lambda: "t", lambda: Text("u")],
    "pickle gets nothing": [lambda: Refuses(1), lambda: Refuses(2), lambda: Refuses([Refuses(1)])],
    "pickle gets nothing of slots": [lambda: Slotted(1), lambda: Slotted(2), lambda: Slotted(1, 5)],
    "it pickles to iterators": [lambda: Walks(1, 2), lambda: Walks(1, 3), lambda: Walks(1)],
    "regex": [
        lambda: re.compile("a"),
        lambda: re.compile("b"),
        lambda: re.compile("a", re.IGNORECASE),
        lambda: re.compile(b"a"),
    ],
    "wrapped by a class": [lambda: Wrapper(double, 1), lambda: Wrapper(double, 2)],
    "with locks": [lambda: Locked(1), lambda: Locked(2)],
    "partial": [
        lambda: functools.partial(double, factor=3),
        lambda: functools.partial(double, factor=4),
        lambda: functools.partial(double, 3),
        lambda: functools.partial(max, key=len),
        lambda: functools.update_wrapper(functools.partial(double, factor=3), double),
        lambda: functools.update_wrapper(functools.partial(double, factor=4), double),
    ],
    "partial method": [
        lambda: functools.partialmethod(double, 1),
        lambda: functools.partialmethod(double, 2),
    ],
    "operator": [
        lambda: operator.itemgetter("a"),
        lambda: operator.itemgetter("b"),
        lambda: operator.attrgetter("a"),
        lambda: operator.methodcaller("a", 1),
        lambda: operator.methodcaller("a", 2),
    ],
    "builtins": [
        lambda: len,
        lambda: max,
        lambda: math.sin,
        lambda: str.upper,
        lambda: str.lower,
        lambda: int.__add__,
    ],
    "bound": [
        lambda: "a".join,
        lambda: "b".join,
        lambda: [1].index,
        lambda: Point(1).count,
        lambda: dict.fromkeys,
        lambda: int.from_bytes,
    ],
    "iterators": [
        lambda: iter([1, 2]),
        lambda: iter([1, 3]),
        lambda: iter((1, 2)),
        lambda: iter(range(3)),
        lambda: map(double, [1]),
        lambda: map(double, [2]),
        lambda: zip([1], [2], strict=False),
        lambda: itertools.count(1),
        lambda: itertools.count(2),
    ],
    "times": [
        lambda: datetime.datetime(2026, 1, 2),
        lambda: datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        lambda: datetime.datetime(2026, 1, 2, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        lambda: datetime.datetime(2026, 1, 2, fold=1),
        lambda: datetime.date(2026, 1, 2),
        lambda: datetime.time(1),
        lambda: datetime.timedelta(1),
        lambda: datetime.UTC,
        lambda: zoneinfo.ZoneInfo("Europe/Berlin"),
        lambda: zoneinfo.ZoneInfo("Europe/Paris"),
    ],
    "numbers": [
        lambda: decimal.Decimal("1"),
        lambda: decimal.Decimal("1.0"),
        lambda: decimal.Context(prec=3),
        lambda: decimal.Context(prec=4),
        lambda: fractions.Fraction(1, 2),
        lambda: fractions.Fraction(1, 3),
        lambda: np.float64(1),
        lambda: np.float32(1),
        lambda: np.int64(1),
        lambda: np.bool_(True),
        lambda: np.datetime64(1, "s"),
        lambda: np.datetime64(1, "ms"),
    ],
    "paths": [
        lambda: pathlib.PurePosixPath("a"),
        lambda: pathlib.PurePosixPath("b"),
        lambda: pathlib.Path("a"),
    ],
    "small things": [
        lambda: uuid.UUID(int=1),
        lambda: uuid.UUID(int=2),
        lambda: range(3),
        lambda: range(4),
        lambda: range(0, 3, 2),
        lambda: slice(1),
        lambda: slice(1, 2),
    ],
    "bytes": [
        lambda: b"ab",
        lambda: bytearray(b"ab"),
        lambda: memoryview(b"ab"),
        lambda: memoryview(b"ac"),
        lambda: memoryview(array.array("h", [1])),
        lambda: memoryview(array.array("H", [1])),
        lambda: array.array("h", [1]),
        lambda: array.array("i", [1]),
        lambda: array.array("i", [2]),
    ],
    "arrays": [
        lambda: np.arange(6),
        lambda: np.arange(6.0),
        lambda: np.arange(6).reshape(2, 3),
        lambda: np.asfortranarray(np.arange(6).reshape(2, 3)),
        lambda: np.arange(6).astype(">i8"),
        lambda: np.arange(12)[::2],
        lambda: np.array(["a", "b"]),
        lambda: np.array(["a", "b"], object),
        lambda: np.array(["a", None], object),
        lambda: np.array([{"a": 1}], object),
        lambda: np.array([{"a": 2}], object),
        lambda: _structured("<"),
        lambda: _structured(">"),
        lambda: np.ma.masked_array([1, 2], [True, False]),
        lambda: np.ma.masked_array([1, 2], [False, True]),
    ],
    "of numpy": [
        lambda: np.add,
        lambda: np.multiply,
        lambda: np.dtype("f4"),
        lambda: np.dtype("f8"),
        lambda: np.random.default_rng(1),
        lambda: np.random.default_rng(2),
        lambda: np.vectorize(double),
        lambda: np.vectorize(double, otypes=[float]),
        lambda: np.poly1d([1, 2]),
        lambda: np.poly1d([1, 3]),
    ],
    "of arrow": [
        lambda: pa.table({"a": [1]}),
        lambda: pa.table({"a": [2]}),
        lambda: pa.table({"b": [1]}),
        lambda: pa.array([1]),
        lambda: pa.array([1.0]),
        lambda: pa.scalar(1),
        lambda: pa.scalar(2),
        lambda: pa.schema({"a": "int8"}),
        lambda: pa.schema({"a": "int16"}),
        lambda: pa.list_(pa.int8()),
        lambda: pa.list_(pa.int16()),
    ],
    "made modules": [lambda: _module(1), lambda: _module(2)],
    "modules": [lambda: math, lambda: re],
    "classes": [
        lambda: _class(a=1),
        lambda: _class(a=2),
        lambda: _class(a=property(double)),
        lambda: _class(a=property(lambda self: 1)),
        lambda: _class(a=functools.cached_property(double)),
        lambda: _class(a=classmethod(double)),
        lambda: _class(a=staticmethod(double)),
        lambda: _class(a=functools.partialmethod(double, 1)),
        lambda: _class(__slots__=("a",)),
        lambda: _class(__slots__=("a", "b")),
        lambda: Base,
        lambda: int,
        lambda: float,
        lambda: list[int],
        lambda: list[str],
        lambda: type(None),
    ],
    "lambdas": [
        lambda: _lambda("lambda x: x + 1"),
        lambda: _lambda("lambda x: x + 2"),
        lambda: _lambda("lambda x: x + 1.0"),
        lambda: _lambda("lambda x: x + True"),
        lambda: _lambda("lambda x: [y + 1 for y in x]"),
        lambda: _lambda("lambda x: [y + 2 for y in x]"),
        lambda: _lambda("lambda x: (lambda y: lambda z: 1)"),
        lambda: _lambda("lambda x: (lambda y: lambda z: 2)"),
        lambda: _lambda("lambda x, y=1: x"),
        lambda: _lambda("lambda x, y=2: x"),
        lambda: _lambda("lambda x, *, y=1: x"),
        lambda: _lambda("lambda x, /, y=1: x"),
        lambda: _lambda("lambda x: x in {'a', 'b', 'c'}"),
        lambda: _lambda("lambda x: x in {'a', 'b', 'd'}"),
    ],
    "loops": [lambda: _loop(1), lambda: _loop(2)],
    "one thing twice": [lambda: _shared(True), lambda: _shared(False)],
    "streams": [lambda: sys.stdout, lambda: 1],
}


def _installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def _torch(text: str) -> Callable[[], Any]:
    def make() -> Any:
        import torch

        torch.manual_seed(1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # quantised tensors will be no more
            return eval(text, {"torch": torch})

    return make


if _installed("torch"):
    VALUES["of torch"] = [
        _torch(text)
        for text in (
            "torch.arange(6)",
            "torch.arange(6.0)",
            "torch.arange(6).reshape(2, 3)",
            "torch.zeros(2, dtype=torch.bool)",
            "torch.zeros(2, dtype=torch.complex64)",
            "torch.ones(2, dtype=torch.complex64).conj() * 1j",
            "torch.zeros(2, dtype=torch.bfloat16)",
            "torch.zeros(0)",
            "torch.float32",
            "torch.float64",
            "torch.device('cpu')",
            "torch.device('meta')",
            "torch.Size([1])",
            "torch.nn.Linear(2, 2)",
            "torch.nn.Linear(2, 3)",
            "torch.nn.Dropout(0.1)",
            "torch.nn.Dropout(0.2)",
            "torch.nn.Dropout(0.2).eval()",
        )
    ]

if _installed("pandas"):
    import pandas as pd

    VALUES["of pandas"] = [
        lambda: pd.DataFrame({"a": [1]}),
        lambda: pd.DataFrame({"a": [2]}),
        lambda: pd.DataFrame({"a": [1.0]}),
        lambda: pd.DataFrame({"a": ["x"]}),
        lambda: pd.DataFrame({"a": [1]}, index=["r"]),
        lambda: pd.Series([1]),
        lambda: pd.Series([1], name="n"),
        lambda: pd.Series(["a"], dtype="category"),
        lambda: pd.Series(["b"], dtype="category"),
        lambda: pd.Timestamp(1),
        lambda: pd.Timestamp(1, tz="UTC"),
    ]

if _installed("pydantic"):
    import pydantic

    class Model(pydantic.BaseModel):
        a: int = 1

    class Strict(pydantic.BaseModel):
        a: float = 1

    VALUES["of pydantic"] = [Model, lambda: Model(a=2), lambda: Model, lambda: Strict, Strict]


PROGRAMS: dict[str, list[str]] = {
    "a regex": [
        "R = re.compile('a')\ndef f(x): return R.match(x)",
        "R = re.compile('b')\ndef f(x): return R.match(x)",
    ],
    "a factory": [
        f"D = collections.defaultdict({factory})\ndef f(x): return D[x]"
        for factory in ("int", "float", "lambda: 3", "lambda: 4")
    ],
    "which key is the first": [
        f"L = {text}\ndef f(x): return list(L)[0]" for text in ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}")
    ],
    "closures in closures": [
        f"def outer(k):\n def middle(m):\n  def inner(x): return x * k + m + {c}\n  return inner\n return middle\n"
        f"f = outer({a})({b})"
        for a, b, c in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))
    ],
    "an empty variable of a closure": [
        f"def outer():\n def f(x): return y\n {line}\n return f\nf = outer()"
        for line in ("y = None", "y = 1; del y")
    ],
    "a dispatcher": [
        "@functools.singledispatch\n"
        "def g(x): return 1\n"
        f"@g.register\ndef _(x: int): return {value}\n"
        f"{call}\n"
        "def f(x): return g(x)"
        for value, call in ((2, ""), (3, ""))
    ],
    "a cache": [
        f"@functools.{cache}\ndef g(x): return {value}\ndef f(x): return g(x)"
        for cache, value in (("cache", 1), ("cache", 2), ("lru_cache(8)", 3))
    ],
    "a metaclass": [
        f"class M(type):\n def __call__(cls): return {value}\nclass C(metaclass=M): pass\ndef f(x): return C()"
        for value in (1, 2)
    ],
    "a descriptor": [
        f"class D:\n def __get__(self, o, t=None): return {value}\nclass C:\n a = D()\ndef f(x): return C().a"
        for value in (1, 2)
    ],
    "a static method": [
        f"class C:\n @{kind}\n def g(*x): return x\ndef f(x): return C.g(x)"
        for kind in ("staticmethod", "classmethod")
    ],
    "an inherited attribute": [
        f"class A:\n a = {value}\nclass B(A): pass\ndef f(x): return B().a" for value in (1, 2)
    ],
    "fields of a dataclass": [
        f"@dataclasses.dataclass\nclass C:\n a: int = {value}\ndef f(x): return C()" for value in (1, 2)
    ],
    "members of an enum": [f"class E(enum.Enum):\n A = {value}\ndef f(x): return E.A" for value in (1, 2)],
    "a bound method": [
        f"class C:\n def __init__(self, a): self.a = a\n def g(self, x): return self.a\nf = C({value}).g"
        for value in (1, 2)
    ],
    "an attribute of a function": [
        f"def g(x): return g.a\ng.a = {value}\ndef f(x): return g(x)" for value in (1, 2)
    ],
    "a wrapper": [
        "def w(k):\n def d(fn):\n  @functools.wraps(fn)\n  def inner(x): return fn(x) * k\n  return inner\n"
        f" return d\n@w({value})\ndef f(x): return {constant}"
        for value, constant in ((1, 1), (2, 1), (1, 2))
    ],
    "a made module": [f"m = types.ModuleType('m')\nm.K = {value}\ndef f(x): return m.K" for value in (1, 2)],
}

# A name that only looks like one that is used; a cache that was used before.
ALIKE: dict[str, tuple[str, str]] = {
    "an attribute by the name of a global": ("m = 1\ndef f(x): return x.m", "m = 2\ndef f(x): return x.m"),
    "a dispatcher that was called": (
        "@functools.singledispatch\ndef g(x): return 1\ndef f(x): return g(x)",
        "@functools.singledispatch\ndef g(x): return 1\ng(3)\ndef f(x): return g(x)",
    ),
    "a cache that was used": (
        "@functools.cache\ndef g(x): return 1\ndef f(x): return g(x)",
        "@functools.cache\ndef g(x): return 1\ng(3)\ndef f(x): return g(x)",
    ),
}

_IMPORTS = "import re, collections, functools, dataclasses, enum, types\n"


def of_program(text: str) -> str:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(_IMPORTS + textwrap.dedent(text), "/home/me/script.py", "exec"), space)
    return fingerprint(Function(space["f"]))


def digests() -> dict[str, list[str]]:
    """Return all of them; for another process to compare with."""
    values = {f"values: {name}": [fingerprint(make()) for make in makers] for name, makers in VALUES.items()}
    return values | {
        f"programs: {name}": [of_program(text) for text in texts] for name, texts in PROGRAMS.items()
    }


def _generator() -> Iterator[int]:
    yield 1


def _released() -> memoryview:
    view = memoryview(b"a")
    view.release()
    return view


def _deep() -> list[Any]:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


UNKNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "an open file": (tempfile.TemporaryFile, "_io.BufferedRandom"),
    "a socket": (socket.socket, "socket.socket"),
    "a generator": (_generator, "generator"),
    "a memory map": (lambda: mmap.mmap(-1, 10), "mmap.mmap"),
    "a database": (lambda: sqlite3.connect(":memory:"), "sqlite3.Connection"),
    "a function of numpy's that has no name": (lambda: np.frompyfunc(double, 1, 1), "numpy.ufunc"),
    "a view of nothing": (_released, "memoryview"),
    "what is nested without end": (_deep, "nested too deeply"),
    "a view of a dict": ({"a": 1}.items, "dict_items"),
    "a weak set": (weakref.WeakSet, "_remove"),
    "a context variable": (lambda: contextvars.ContextVar("variable", default=1), "ContextVar"),
}
if _installed("torch"):
    UNKNOWN["a sparse tensor"] = (_torch("torch.eye(3).to_sparse()"), "Tensor")
