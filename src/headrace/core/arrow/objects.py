"""Columns of Python objects that no Arrow type holds: images of PIL, complex numbers, values of several kinds.

Within a process, such a column has numbers by which this module finds the objects: nothing is pickled, and each
object is the very one that a function gave. The objects live as long as the memory of their column does. What copies
a column makes it anew (``with_own_objects``), as the numbers alone keep nothing alive.
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from headrace.core import pickles
from headrace.core.arrow.buffers import holes_of, joined, present, raw, with_holes
from headrace.errors import BadInput, HeadraceError, NotPicklable, StepError

Objects = np.ndarray[Any, Any]
Columns = TypeVar("Columns", pa.RecordBatch, pa.Table)

_INDEX_BITS = 28
_HERE = os.urandom(8)  # this process: numbers of another one mean nothing here
_SAMPLED = 8
_DEEPEST = 3
_chunks: dict[int, _Chunk] = {}
_numbers = itertools.count(1)


class _Chunk:
    """The objects of one column, while ``memory``, in which their numbers are, is in use."""

    __slots__ = ("__weakref__", "_memory", "objects", "row_bytes")

    def __init__(self, number: int, objects: Objects, memory: np.ndarray[Any, Any]) -> None:
        self.objects = objects
        self.row_bytes = _row_bytes(objects)
        self._memory = weakref.ref(memory, lambda _: _chunks.pop(number, None))


class ObjectScalar(pa.ExtensionScalar):  # type: ignore[misc]
    """A value of a column of Python objects; ``as_py`` returns the object."""

    def as_py(self, **_: Any) -> Any:
        """Return the object."""
        return None if self.value is None else _object(self.value.as_py())


class ObjectType(pa.ExtensionType):  # type: ignore[misc]
    """The type of a column of Python objects in this process."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "headrace.object")

    def __hash__(self) -> int:
        return hash(self.extension_name)

    def __arrow_ext_serialize__(self) -> bytes:
        return _HERE

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> ObjectType:
        if serialized != _HERE:
            raise BadInput("These are references to Python objects of another process, which has ended.")
        return OBJECTS

    def __arrow_ext_scalar_class__(self) -> type[ObjectScalar]:
        return ObjectScalar


OBJECTS = ObjectType()
pa.register_extension_type(OBJECTS)


# ---------------------------------------------------------------- columns


def is_objects(type_: pa.DataType) -> bool:
    """Say whether a column of this type holds Python objects."""
    return isinstance(type_, ObjectType)


def object_indices(schema: pa.Schema) -> tuple[int, ...]:
    """Return which columns hold Python objects."""
    return tuple(i for i, type_ in enumerate(schema.types) if isinstance(type_, ObjectType))


def object_column(values: Iterable[Any]) -> pa.Array:
    """Make a column of these very objects; None is null.

    >>> column = object_column([1j, "a", None])
    >>> column.to_pylist(), column.null_count
    ([1j, 'a', None], 1)
    """
    values = values if isinstance(values, (list, tuple, np.ndarray)) else list(values)
    objects: Objects = np.empty(len(values), object)
    for at, value in enumerate(values):  # one by one: numpy would look into lists of one length
        objects[at] = value
    number = next(_numbers)
    memory = np.arange(len(objects), dtype=np.int64) + (number << _INDEX_BITS)
    if len(objects):
        _chunks[number] = _Chunk(number, objects, memory)
    return pa.ExtensionArray.from_storage(OBJECTS, with_holes(pa.int64(), memory, holes_of(objects)))


def objects_of(column: pa.Array | pa.ChunkedArray) -> Objects:
    """Return the objects of a column, None where it is null."""
    if isinstance(column, pa.ChunkedArray):
        parts = [objects_of(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.empty(0, object)
    made: Objects = np.empty(len(column), object)
    if column.null_count == len(column):
        return made
    numbers = raw(column.storage)
    if not column.null_count and (numbers[0] >> _INDEX_BITS) == (numbers[-1] >> _INDEX_BITS):
        which = numbers >> _INDEX_BITS
        if (which == which[0]).all():
            taken: Objects = _chunk(int(which[0])).objects[numbers & ((1 << _INDEX_BITS) - 1)]
            return taken
    for at in np.flatnonzero(present(column.storage)).tolist():
        made[at] = _object(int(numbers[at]))
    return made


def _object(number: int) -> Any:
    return _chunk(number >> _INDEX_BITS).objects[number & ((1 << _INDEX_BITS) - 1)]


def _chunk(number: int) -> _Chunk:
    try:
        return _chunks[number]
    except KeyError:
        raise BadInput(
            "A column of Python objects was copied, and its objects are gone since the batch is that it was copied "
            "from. Take batches with batch_format='numpy' or 'pandas' to keep objects."
        ) from None


def with_own_objects(data: Columns) -> Columns:
    """Return the batch or table, in which columns of Python objects keep them alive: for one that was just copied."""
    for i in object_indices(data.schema):
        field = data.schema.field(i)
        data = data.set_column(i, field, object_column(objects_of(data.column(i))))
    return data


def kinds_of(column: pa.Array | pa.ChunkedArray) -> str:
    """Name the types of the objects in a column: ``"int and str"``."""
    names = dict.fromkeys(_type_name(type(value)) for value in objects_of(column) if value is not None)
    *first, last = list(names)[:4] or ["None"]
    return f"{', '.join(first)} and {last}" if first else last


def _type_name(kind: type) -> str:
    module = kind.__module__
    return kind.__qualname__ if module in ("builtins", "__main__") else f"{module}.{kind.__qualname__}"


# ---------------------------------------------------------------- bytes


def bytes_of(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch; of Python objects, an estimate."""
    total = batch.nbytes
    for i in object_indices(batch.schema):
        total += _bytes_of_column(batch.column(i))
    return int(total)


def _bytes_of_column(column: pa.Array) -> int:
    if column.null_count == len(column):
        return 0
    chunk = _chunks.get(int(raw(column.storage)[0]) >> _INDEX_BITS)
    return int(chunk.row_bytes * len(column)) if chunk is not None else 0


def _row_bytes(objects: Objects) -> float:
    few = objects[np.linspace(0, max(len(objects) - 1, 0), min(len(objects), _SAMPLED)).astype(np.int64)]
    return sum(map(weight, few)) / max(len(few), 1)


def weight(value: Any, depth: int = 0) -> int:
    """Estimate the bytes of an object: those of its arrays, pixels, texts, items and attributes."""
    known = getattr(value, "nbytes", None)
    if isinstance(known, int):
        return known
    if hasattr(value, "getbands") and hasattr(value, "height"):  # PIL's images show their memory to nobody
        return int(value.width * value.height * len(value.getbands()))
    size = sys.getsizeof(value, 64)
    if depth >= _DEEPEST or isinstance(value, (str, bytes, bytearray, int, float, complex)):
        return size
    if isinstance(value, Mapping):
        return size + _of_some(list(value.values()), depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return size + _of_some(list(value), depth)
    attributes = getattr(value, "__dict__", None)
    return size + (_of_some(list(attributes.values()), depth) if isinstance(attributes, dict) else 0)


def _of_some(values: Sequence[Any], depth: int) -> int:
    few = values[:_SAMPLED]
    return sum(weight(value, depth + 1) for value in few) * len(values) // max(len(few), 1)


# ---------------------------------------------------------------- to another process, and to others' tables


def packed(batch: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
    """Return the batch as it travels to another process: the objects of a column are one pickle, in its first row.

    ``unpacked`` must be told ``indices``: nothing in a batch makes anybody unpickle what is in it.
    """
    for i in indices:
        name, column = batch.schema.names[i], batch.column(i)
        pickled = [pickled_objects(name, column), *[b""] * (len(column) - 1)] if len(column) else []
        batch = batch.set_column(i, name, joined(pickled, pa.large_binary()))
    return batch


def unpacked(batch: pa.RecordBatch, indices: Sequence[int]) -> pa.RecordBatch:
    """Return the batch that ``packed`` was given."""
    for i in indices:
        name, column = batch.schema.names[i], batch.column(i)
        batch = batch.set_column(i, name, object_column(_loaded(name, column) if len(column) else []))
    return batch


def _loaded(name: str, column: pa.Array) -> Any:
    try:
        return pickles.loads(column[0].as_buffer())
    except Exception as error:
        raise StepError(
            f"Column {name!r} holds Python objects, which could not be unpickled after they came from another "
            f"process: {error}. Give plain values or arrays instead, or run with with_options(engine='inline')."
        ) from error


def pickled_objects(name: str, column: pa.Array | pa.ChunkedArray) -> bytes:
    """Pickle the objects of a column together; raises ``NotPicklable`` that names it."""
    return _dumped(name, column, objects_of(column).tolist())


def _dumped(name: str, column: Any, value: Any) -> bytes:
    import cloudpickle  # classes of the user's script are known to no other process

    try:
        return bytes(cloudpickle.dumps(value, protocol=5))
    except Exception as error:
        raise NotPicklable(
            f"Column {name!r} holds Python objects ({kinds_of(column)}) that cannot be pickled, and so cannot leave "
            f"their process: {error}. Make plain values or arrays of them before the rows go to the next stage or "
            "to the reader; or run all in this process, with with_options(engine='inline')."
        ) from error


def refuse_objects(data: Columns, error: type[HeadraceError]) -> None:
    """Raise ``error`` for a column of Python objects, which an Arrow table and what is made of one cannot hold."""
    for i in object_indices(data.schema):
        name = data.schema.names[i]
        raise error(
            f"Column {name!r} holds Python objects ({kinds_of(data.column(i))}), which only rows, numpy and pandas "
            f"get. Make plain values of them, or leave it out: .drop_columns([{name!r}])."
        )


TEXTS = pa.large_string()


def without_objects(schema: pa.Schema, type_: pa.DataType) -> pa.Schema:
    """Return the schema with another type for Python objects: ``TEXTS`` as ``as_texts`` makes them, or null."""
    for i in object_indices(schema):
        schema = schema.set(i, pa.field(schema.names[i], type_))
    return schema


def as_texts(column: pa.Array) -> pa.Array:
    """Return a column with the ``repr`` of each object: for a file that only shows them."""
    texts = [
        None if value is None else repr(value).encode("utf-8", "replace") for value in objects_of(column)
    ]
    return joined(texts, TEXTS)
