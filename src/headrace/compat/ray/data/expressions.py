"""Ray's ``ray.data.expressions``: ``col``, ``lit``, ``download``, and functions of columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from headrace.compat.ray.offered import missing
from headrace.errors import ArgumentError
from headrace.plan.column_expressions import ColumnExpression as Expr
from headrace.plan.column_expressions import Namespace, arrow_expression, lit
from headrace.plan.column_expressions import col as plain_column

__all__ = ["Expr", "col", "download", "lit", "pyarrow_udf", "udf"]

_AT_A_TIME = 16
_REASONS = {
    "monotonically_increasing_id": "zip(range(n)) numbers rows; include_paths=True says which file one is of",
    "random": "random_sample(fraction, seed=…) chooses rows, the same ones each time",
    "star": "with_column adds columns to those that there are",
    "uuid": "a run that goes on after a kill has to give the same values again: make a key of file and row",
}


class Download:
    """What ``download`` returns: a function of a batch, for ``with_column``."""

    def __init__(self, uri_column_name: str) -> None:
        self.column = uri_column_name
        self.__name__ = self.__qualname__ = f"download({uri_column_name})"

    def __call__(self, batch: pa.Table) -> pa.Array:
        from concurrent.futures import ThreadPoolExecutor

        if self.column not in batch.schema.names:
            raise ArgumentError(
                f"download({self.column!r}): the columns are {', '.join(batch.schema.names)}."
            )
        with ThreadPoolExecutor(_AT_A_TIME) as threads:
            return pa.array([*threads.map(_bytes_of, batch.column(self.column).to_pylist())], pa.binary())


def download(uri_column_name: str, **_: Any) -> Any:
    """Return the bytes of what a column names, null where it has no value: for ``with_column``.

    Addresses and paths may be all that readers take. What is not there ends the run, or rejects the row.

    >>> import pathlib, tempfile
    >>> from headrace.compat import ray
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a"
    >>> _ = path.write_bytes(b"abc")
    >>> ray.data.from_items([{"uri": str(path)}]).with_column("x", download("uri")).take_all()[0]["x"]
    b'abc'
    """
    return Download(uri_column_name)


def _bytes_of(uri: str | None) -> bytes | None:
    from headrace.core.files.storage import given
    from headrace.core.stores.objects import contents

    if uri is None:
        return None
    return bytes(next(iter(contents([given(uri, "download").record().path]))))


class Computed:
    """A function of columns; made by ``udf``."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._function, self._args, self._kwargs = function, args, kwargs
        self.__name__ = self.__qualname__ = getattr(function, "__name__", "udf")

    def __call__(self, batch: pa.Table) -> Any:
        args = [self._value(each, batch) for each in self._args]
        made = self._function(
            *args, **{name: self._value(each, batch) for name, each in self._kwargs.items()}
        )
        return made.combine_chunks() if hasattr(made, "combine_chunks") else made

    def _value(self, given: Any, batch: pa.Table) -> Any:
        from headrace.core.arrow.batch import one_batch
        from headrace.worker.user_code import evaluate

        if isinstance(given, (Computed, Download)):
            return given(batch)
        expression = arrow_expression(given)
        return given if expression is None else evaluate(expression, self.__name__, one_batch(batch))


class Chosen:
    """The rows of a batch for which a function of columns is true."""

    def __init__(self, condition: Computed) -> None:
        self._condition, self.__name__ = condition, f"filter {condition.__name__}"

    def __call__(self, batch: pa.Table) -> pa.Table:
        return pa.table(batch).filter(self._condition(batch))


def udf(return_dtype: Any = None, **_: Any) -> Callable[[Any], Any]:
    """Make a function of Arrow arrays one of columns, for ``with_column``; the type is that of what it returns.

    >>> import pyarrow.compute as pc
    >>> from headrace.compat import ray
    >>> @udf()
    ... def squared(values):
    ...     return pc.multiply(values, values)
    >>> ray.data.range(3).with_column("square", squared(col("id"))).take(3)[2]
    {'id': 2, 'square': 4}
    """

    def made(function: Any) -> Callable[..., Any]:
        if isinstance(function, type):  # AddOffset(5)(col("id"))
            return lambda *args, **kwargs: made(function(*args, **kwargs))
        return lambda *args, **kwargs: Computed(function, args, kwargs)

    return made


pyarrow_udf = udf


class _Column(Expr):
    """A column, with what needs a function of Arrow arrays: keys and values of maps, and sorted lists."""

    __slots__ = ()

    @property
    def map(self) -> Any:
        """``keys()`` and ``values()`` of each map."""
        keys, values = (partial(Computed, partial(_part_of_maps, place), (self,), {}) for place in (0, 1))
        return SimpleNamespace(keys=keys, values=values)

    @property
    def arr(self) -> Any:
        """``to_list()``: lists of any length, of those that have one."""
        return SimpleNamespace(to_list=lambda: self.list.slice(0, None, 1, False))

    @property
    def list(self) -> Namespace:
        """What there is for lists, and ``sort()``."""
        return _Lists("list", self)

    @property
    def str(self) -> Namespace:
        """What there is for text, and ``pad()`` and ``repeat()``."""
        return _Text("str", self)


class _Text(Namespace):
    __slots__ = ()

    def pad(self, width: int, fillchar: Any = " ", side: Any = "right") -> Any:
        """Fill texts up to a width at their ``side``: ``left``, ``right`` or ``both``."""
        verb = {"left": "lpad", "right": "rpad", "both": "center"}.get(side)
        if verb is None:
            raise ArgumentError(f"pad(side={side!r}): it is left, right or both.")
        return getattr(self, verb)(width, fillchar)

    def repeat(self, num_repeats: int) -> Computed:
        """Say each text so many times."""
        return Computed(_repeated, (self._of, num_repeats), {})


class _Lists(Namespace):
    __slots__ = ()

    def sort(self, order: str = "ascending", null_placement: str = "at_end") -> Computed:
        """Sort the elements of each list."""
        return Computed(_sorted_lists, (self._of, order, null_placement), {})


def col(name: str) -> Expr:
    """Return the column ``name``; see ``headrace.col``.

    >>> import pyarrow as pa
    >>> from headrace.compat import ray
    >>> maps = pa.array([[("a", 1), ("b", 2)], None], pa.map_(pa.string(), pa.int64()))
    >>> keys = ray.data.from_arrow(pa.table({"m": maps})).with_column("k", col("m").map.keys())
    >>> [row["k"] for row in keys.take_all()]
    [['a', 'b'], None]
    """
    return _Column(plain_column(name).arrow)


def _part_of_maps(place: int, maps: Any) -> Any:
    if pa.types.is_map(maps.type):
        part = (maps.keys, maps.items)[place]
    elif pa.types.is_list(maps.type) and pa.types.is_struct(maps.type.value_type):
        part = maps.values.field(place)
    else:
        raise ArgumentError(f".map takes a column of maps, and this one has {maps.type}.")
    # The offsets of a part of an array: without a copy, Arrow takes no mask beside them.
    return pa.ListArray.from_arrays(pa.array(maps.offsets.to_numpy()), part, mask=maps.is_null())


def _repeated(texts: Any, times: int) -> Any:
    import pyarrow.compute as pc

    return pc.binary_repeat(texts, times)


def _sorted_lists(lists: Any, order: str, null_placement: str) -> Any:
    import pyarrow.compute as pc

    def of_one(elements: Any) -> Any:
        places = pc.array_sort_indices(elements, order=order, null_placement=null_placement)
        return elements.take(places).to_pylist()

    return pa.array([each.values and of_one(each.values) for each in lists], lists.type)


def __getattr__(name: str) -> Any:
    raise missing("ray.data.expressions", name, __all__, _REASONS.get(name, ""))
