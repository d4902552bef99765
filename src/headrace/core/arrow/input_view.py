"""The input of a user's function, to recognise its columns in the result.

A column that comes back unchanged keeps its Arrow column: its exact type, and no copy. All other Arrow and pandas
columns may view memory that the function reuses for the next batch, so they are copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import is_
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import column_taken
from headrace.core.arrow.batch_formats import (
    is_tensor,
    python_columns,
    shows_arrays,
    to_format,
    to_numpy,
)
from headrace.core.arrow.columns import column_from
from headrace.core.arrow.forms import OBJECT, are_lists, array_forms, is_list, mark_of, marked
from headrace.core.arrow.layout import is_fixed, own
from headrace.core.arrow.lossless import same
from headrace.core.arrow.objects import is_objects
from headrace.core.arrow.plain import is_encoded, is_nested, plain_type, types_within

PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


class _Input:
    """One input batch; ``shown`` is the batch that the function got."""

    def __init__(self, batch: pa.RecordBatch, shown: pa.RecordBatch | None = None) -> None:
        self.batch = batch
        self._shown = batch if shown is None else shown

    def type_of(self, name: str) -> pa.DataType | None:
        """Return the type that the column of this name had, if there was one."""
        at = self.batch.schema.get_field_index(name)
        return self.batch.schema.field(at).type if at >= 0 else None

    def has_lists(self, name: str) -> bool:
        """Say whether rows showed the column of this name as lists."""
        at = self.batch.schema.get_field_index(name)
        return at >= 0 and are_lists(self.batch.schema.field(at))


class InputView(_Input):
    """One input batch, and the view of it that the user's function got.

    ``shown`` is the batch that the view shows, if that is a copy, to which the function may have written. Then
    ``remake`` makes the array of a column as it was.
    """

    def __init__(
        self,
        batch: pa.RecordBatch,
        view: Any = None,
        shown: pa.RecordBatch | None = None,
        remake: Callable[[int], np.ndarray[Any, Any]] | None = None,
    ) -> None:
        super().__init__(batch, shown)
        self._remake = remake
        self._arrays = tuple(view.values()) if isinstance(view, dict) else ()
        self._cells = _cells_of(batch, view)
        self._cell_places: dict[int, tuple[int, int]] | None = None
        self._indices: dict[Any, int] | None = None
        self._input_addresses: set[int] | None = None
        self._copied_from: dict[tuple[int, ...], pa.Array] = {}

    def index_of(self, values: Any) -> int | None:
        """Return the index of the column that ``values`` is, if it is an unchanged array of the view."""
        if type(values) is not np.ndarray or not self._arrays:
            return None  # a masked array views the same memory, but has a mask
        if self._indices is None:
            self._indices = {id(array): i for i, array in enumerate(self._arrays)}
        found = self._indices.get(id(values))
        if values.flags.writeable:  # the function could have written to it
            found = None if self._remake is None or values.dtype == object else found
        elif found is None:  # a view of the same memory, perhaps
            if len(self._indices) == len(self._arrays):
                self._indices.update((_memory(array), i) for i, array in enumerate(self._arrays))
            found = self._indices.get(_memory(values))
        return found if found is not None and self._is_as_it_was(found, values) else None

    @property
    def is_writable(self) -> bool:
        """True if the function can change what it got, although that is read-only."""
        return self._remake is not None

    def _is_as_it_was(self, place: int, values: np.ndarray[Any, Any]) -> bool:
        """Say whether nothing was written to an array that was made of a column, and shows none of its memory."""
        if self._remake is None or values.dtype == object or _lies_in(values, self._shown.column(place)):
            return True
        return bool(np.array_equal(values, self._remake(place), equal_nan=values.dtype.kind in "fcmM"))

    def column(self, place: int) -> pa.Array:
        """Return one of the input's columns, with what the function wrote to it."""
        return _after_call(self._shown.column(place), self.batch.column(place))

    def column_of_cells(self, values: Sequence[Any]) -> pa.Array | None:
        """Return the column that lists or dicts were taken from, if all are the input's own and none has changed.

        The values alone do not say its type: arrays in the place of integers beside nulls hold floats.
        """
        if not self._cells:
            return None
        if self._cell_places is None:
            self._cell_places = {
                id(cell): (column, row)
                for column, cells in self._cells.items()
                for row, cell in enumerate(cells)
                if cell is not None
            }
        at, rows = -1, []
        for value in values:
            column, row = (at, -1) if value is None else self._cell_places.get(id(value), (-1, -1))
            if (column != at and at >= 0) or (column < 0 and value is not None):
                return None
            at = column
            rows.append(row)
        return _rows(self.column(at), rows) if at >= 0 and self._are_unchanged(at, rows, values) else None

    def _are_unchanged(self, at: int, rows: Sequence[int], values: Sequence[Any]) -> bool:
        """Say whether the function has written nothing into these cells of a column."""
        if self._arrays and self._remake is None and is_immutable(self.batch.column(at), arrays=True):
            return True
        again = to_format(self.batch.select([at]), "numpy" if self._arrays else "pandas")
        cells = again[self.batch.schema.names[at]].tolist()
        type_ = self.batch.schema.field(at).type
        before = _compared([cells[row] if row >= 0 else None for row in rows], type_)
        now = _compared(values, type_)
        return bool(now.type.equals(before.type) and same(now, before))

    def owned(self, array: pa.Array) -> pa.Array:
        """Return the column; a copy unless all its memory is that of the input, and nobody can write to it."""
        if self._input_addresses is None:
            self._input_addresses = {at for column in self.batch.columns for at in _addresses(column)}
            if self._shown is not self.batch:
                pairs = zip(self._shown.columns, self.batch.columns, strict=True)
                self._copied_from = {tuple(_addresses(shown)): before for shown, before in pairs}
        place = _addresses(array)
        if self._input_addresses.issuperset(place):
            return array
        before = self._copied_from.get(tuple(place))
        return before if before is not None and array.equals(before) else own(array)

    def owned_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch, with copies of all columns whose memory is not that of the input."""
        given = batch.columns
        columns = [self.owned(column) for column in given]
        if all(column is before for column, before in zip(columns, given, strict=True)):
            return batch
        return pa.RecordBatch.from_arrays(columns, schema=batch.schema)

    def marked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Give columns that came back as they went the marks that they had; and lists those of the same name."""
        fields = [field for field in self.batch.schema if mark_of(field) is not None]
        if not fields:
            return batch
        given = {tuple(_addresses(self.batch.column(field.name))): mark_of(field) for field in fields}
        arrays = array_forms(self.batch.schema)
        forms = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            place = tuple(_addresses(column))
            form = given.get(place) or (arrays.get(name) if is_list(column.type) else None)
            if place and form is not None:
                forms[name] = form
        return marked(batch, forms)

    def with_unchanged_restored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put back columns that pandas knows only in another form, where no value changed."""
        if len(batch) != len(self.batch):
            return batch
        for i, name in enumerate(batch.schema.names):
            at = self.batch.schema.get_field_index(name)
            if at >= 0 and self._is_same(at, batch.column(i)):
                batch = batch.set_column(i, name, self.batch.column(at))
        return batch

    def _is_same(self, at: int, column: pa.Array) -> bool:
        before, form = self.batch.column(at), mark_of(self.batch.schema.field(at))
        if form == OBJECT:
            return bool(column.equals(before))
        if not (before.null_count or form) or not pa.types.is_integer(before.type):
            return False
        if not pa.types.is_floating(column.type):
            return False
        return bool(np.array_equal(to_numpy(before), to_numpy(column), equal_nan=True))


class InputRowsView(_Input):
    """One input batch, and the Python values that its rows hold; ``shown`` as for ``InputView``."""

    def __init__(self, batch: pa.RecordBatch, shown: pa.RecordBatch | None = None) -> None:
        super().__init__(batch, shown)
        self.columns = python_columns(self._shown)

    @property
    def is_copy(self) -> bool:
        """True if the function got copies of arrays, which it can change although they are read-only."""
        return self._shown is not self.batch

    def has(self, name: str, row: int, value: Any) -> bool:
        """Say whether this very object is what row ``row`` holds as ``name``."""
        column = self.columns.get(name)
        return column is not None and column[row] is value

    def column(self, name: str, values: Sequence[Any], index: Sequence[int]) -> pa.Array | None:
        """Return the column of which ``values`` are untouched the rows ``index``, if they are; a range is all."""
        given = self.columns.get(name)
        every = isinstance(index, range)
        if given is None or not all(map(is_, values, given if every else map(given.__getitem__, index))):
            return None
        before = _after_call(self._shown.column(name), self.batch.column(name))
        return before if every else _rows(before, index)

    def marked(self, batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
        """Give the columns ``names``, whose values came back as they went, the marks that they had."""
        forms = {name: mark_of(self.batch.schema.field(name)) for name in names}
        return marked(batch, {name: form for name, form in forms.items() if form is not None})

    def shows_arrays(self, name: str) -> bool:
        """Say whether rows showed the column of this name as arrays."""
        return name in self.columns and shows_arrays(self.batch.schema.field(name))

    def restored_row(self, row: int) -> dict[str, Any]:
        """Return a row as it was, whatever a function that failed has made of it."""
        remake = python_columns(self.batch.slice(row, 1))
        for name, column in self.columns.items():
            if self.shows_arrays(name) and isinstance(column[row], np.ndarray):
                if self.is_copy:
                    _overwrite(column[row], remake[name][0])
            else:
                column[row] = remake[name][0]
        return {name: column[row] for name, column in self.columns.items()}


def is_immutable(column: pa.Array, *, arrays: bool) -> bool:
    """Say whether nobody can change the values that this column is handed out as.

    Dicts and lists can be changed. With ``arrays``, lists are handed out as read-only arrays.
    """
    return not _changeable(column.type, arrays)


def _changeable(type_: pa.DataType, arrays: bool) -> bool:
    if not (pa.types.is_nested(type_) or is_encoded(type_) or isinstance(type_, pa.BaseExtensionType)):
        return False
    if is_tensor(type_) or is_objects(type_):
        return False  # a column of objects has these very ones, whatever becomes of them
    if isinstance(type_, pa.ExtensionType):
        return True
    type_ = plain_type(type_)
    if arrays and is_list(type_):
        return not is_tensor(type_.value_type) and _changeable(type_.value_type, arrays)
    if pa.types.is_union(type_):
        return any(_changeable(each, arrays) for each in types_within(type_))
    return bool(pa.types.is_nested(type_))


def copied_value(value: Any, *, views: bool = True) -> Any:
    """Return a value of a row that stays as it is: a copy of what its owner may fill again.

    ``views``: arrays that are read-only are trusted to stay as they are.
    """
    if isinstance(value, np.ndarray):
        return value if views and is_fixed(value) else value.copy()
    if isinstance(value, list):
        if PLAIN.issuperset(map(type, value)):
            return list(value)
        return [copied_value(item, views=views) for item in value]
    if isinstance(value, tuple):
        return tuple(copied_value(item, views=views) for item in value)
    if isinstance(value, Mapping):
        return {key: copied_value(item, views=views) for key, item in value.items()}
    if isinstance(value, bytearray):
        return bytes(value)
    if hasattr(value, "detach"):  # torch
        return value.detach().cpu().numpy().copy()
    return value


def _overwrite(array: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> None:
    """Put values in the place of others, in memory of ours that is read-only to the user's code."""
    ctypes.memmove(array.ctypes.data, values.ctypes.data, values.nbytes)


def _cells_of(batch: pa.RecordBatch, view: Any) -> dict[int, list[Any]]:
    """Return the lists and dicts that a view shows, by the index of their column."""
    found: dict[int, list[Any]] = {}
    if isinstance(view, dict) or hasattr(view, "iloc"):
        for at, (name, type_) in enumerate(zip(batch.schema.names, batch.schema.types, strict=True)):
            if is_nested(type_) and view[name].dtype == object:
                found[at] = view[name].tolist()
    return found


def _compared(cells: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return cells as a column to compare; the entries of a map, which are tuples of two kinds, as that map."""
    made = column_from(cells, ragged=True)
    if not is_objects(made.type):
        return made
    try:
        return pa.array(cells, type_, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return made


def _rows(column: pa.Array, index: Sequence[int]) -> pa.Array:
    """Return some rows of a column, without a copy where they are neighbours; null for the row -1."""
    places = np.array(index, np.int64)
    if len(places) and places[0] >= 0 and (np.diff(places) == 1).all():
        return column.slice(index[0], len(index))
    return column_taken(column, places)


def _after_call(shown: pa.Array, before: pa.Array) -> pa.Array:
    """Return what became of a column: the one that it was, or a copy that nobody can write to any more."""
    return before if shown is before or shown.equals(before) else own(shown)


def _lies_in(array: np.ndarray[Any, Any], column: pa.Array) -> bool:
    start = array.__array_interface__["data"][0]
    return any(each and each.address <= start < each.address + each.size for each in column.buffers())


def _memory(array: np.ndarray[Any, Any]) -> Any:
    return array.__array_interface__["data"][0], array.shape, array.strides, array.dtype.str


def _addresses(column: pa.Array) -> list[int]:
    found = [buffer.address for buffer in column.buffers() if buffer is not None and buffer.size]
    if pa.types.is_dictionary(column.type):
        found += _addresses(column.dictionary)
    return found
