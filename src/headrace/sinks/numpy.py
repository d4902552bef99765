"""Parts as numpy's own files: ``.npy`` for one column, ``.npz`` for several."""

from __future__ import annotations

import contextlib
import io
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.forms import RaggedTensorType, as_fixed
from headrace.core.arrow.plain import holds, kind_of, plain, plain_type
from headrace.core.files import safe_files
from headrace.core.files.safe_files import writing
from headrace.core.files.staged import StagedStream
from headrace.core.target_ports import Encoder, Format
from headrace.errors import SinkError
from headrace.sinks.files import cannot_hold

_IN_MEMORY = 64 << 20  # of a column that is not yet written; what is more waits in a file without a name
_PIECE = 1 << 20
_ROWS = 8_192
_WORDS = {"text": np.dtype("<U1"), "binary": np.dtype("S1")}
_NULL = "it holds a null, and numpy has none among these"
_LONG_AGO = (1980, 1, 1, 0, 0, 0)  # in zip files time begins then; the same rows give the same bytes


@dataclass(frozen=True)
class Numpy(Format):
    """One ``.npz`` for each shard, with an array for each column; or one ``.npy``, with ``single``.

    Numbers, booleans, dates and times without a zone keep their dtypes, tensors their shapes. Null is NaN among
    fractions and NaT among times; elsewhere numpy has none, and it is refused. Texts become arrays of ``<U…``, bytes
    of ``S…``; one that ends in a NUL, which numpy would cut off, is refused.
    """

    single: bool = False

    kind: ClassVar[str] = "numpy"

    @property
    def suffix(self) -> str:
        return "npy" if self.single else "npz"

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise ``SinkError`` for columns without a numpy dtype, and unless there is one or more of them."""
        if self.single and len(schema) != 1:
            raise SinkError(f"A .npy file holds one column, not {', '.join(schema.names) or 'none'}.")
        if not len(schema):
            raise SinkError("numpy's files cannot hold rows without columns: keep at least one column.")
        for field in schema:
            _layout(field)

    def open(self, stream: StagedStream, schema: pa.Schema) -> Encoder:
        return _NumpyEncoder(stream, schema, single=self.single)

    @classmethod
    def rows_in(cls, path: Path, described: Mapping[str, Any]) -> int:
        """Return how long an array is, by its header; of several, which are of one length, the first."""
        with safe_files.file(path) as file, contextlib.ExitStack() as stack:
            array: IO[bytes] = file
            if not described.get("single"):
                archive = stack.enter_context(zipfile.ZipFile(file))
                array = stack.enter_context(archive.open(archive.namelist()[0]))
            np.lib.format.read_magic(array)
            return int(np.lib.format.read_array_header_1_0(array)[0][0])


class _NumpyEncoder:
    """Gathers columns, as an array's shape stands before its values."""

    def __init__(self, stream: StagedStream, schema: pa.Schema, *, single: bool) -> None:
        self._stream = stream
        self._single = single
        self._rows = 0
        self._columns: list[_Numbers | _Texts] = [
            (_Texts if _layout(field)[0].kind in "US" else _Numbers)(field, stream.path) for field in schema
        ]

    def write(self, batch: pa.RecordBatch) -> None:
        for column, values in zip(self._columns, batch.columns, strict=True):
            column.add(values)
        self._rows += batch.num_rows

    def close(self) -> int:
        if self._single:
            self._columns[0].write(self._stream.write, self._rows)
            return self._rows
        with zipfile.ZipFile(self._stream, "w", zipfile.ZIP_STORED) as archive:
            for column in self._columns:
                member = zipfile.ZipInfo(f"{column.name}.npy", _LONG_AGO)
                with archive.open(member, "w", force_zip64=True) as into:
                    column.write(into.write, self._rows)
        return self._rows


class _Numbers:
    """A column whose values have one size: they are kept as they will be written.

    Where shapes may differ, all have to be that of the first array.
    """

    def __init__(self, field: pa.Field, path: str) -> None:
        self.name = field.name
        self._field = field
        self._dtype, self._shape = _layout(field)
        self._open = isinstance(field.type, RaggedTensorType)  # no array has come that says the shape
        self._kept = _Kept(path)

    def _of_one_shape(self, column: pa.Array) -> pa.Array:
        if self._open and len(column) > column.null_count:
            self._shape = tuple(next(each.as_py() for each in column.storage.field(1) if each.is_valid))
            self._open = False
        try:
            return as_fixed(column, self._shape)
        except pa.ArrowInvalid as error:
            why = f"{error}, and a file holds arrays of one shape"
            raise cannot_hold("numpy", self._field, why) from None

    def add(self, column: pa.Array) -> None:
        column = self._of_one_shape(column)
        values = np.ascontiguousarray(_array(column, pa.field(self.name, column.type)), self._dtype)
        with self._kept.checked() as file:
            file.write(values.reshape(-1).view(np.uint8).data if values.size else b"")

    def write(self, into: Callable[[Any], Any], rows: int) -> None:
        into(_header(self._dtype, (rows, *self._shape)))
        with self._kept.checked() as file:
            file.seek(0)
            while piece := file.read(_PIECE):
                into(piece)


class _Texts:
    """A column of texts or bytes: how wide its array is, the longest of them says."""

    def __init__(self, field: pa.Field, path: str) -> None:
        self.name = field.name
        self._field = field
        self._kept = _Kept(path)
        self._bytes = plain_type(field.type) in (pa.binary(), pa.large_binary())
        self._width = 1
        self._writer: Any = None

    def add(self, column: pa.Array) -> None:
        values = plain(column).cast(pa.large_binary() if self._bytes else pa.large_string())
        _refuse_nulls(values, self._field)
        cut = pc.any(pc.ends_with(values.cast(pa.large_binary()), b"\0")).as_py()
        if cut:
            raise cannot_hold("numpy", self._field, "a value ends in a NUL, which numpy would cut off")
        lengths = pc.binary_length(values) if self._bytes else pc.utf8_length(values)
        self._width = max(self._width, pc.max(lengths).as_py() or 0)
        with self._kept.checked() as file:
            if self._writer is None:
                self._writer = pa.ipc.new_stream(pa.PythonFile(file, "w"), pa.schema([("", values.type)]))
            self._writer.write_batch(pa.RecordBatch.from_arrays([values], [""]))

    def write(self, into: Callable[[Any], Any], rows: int) -> None:
        dtype = np.dtype(f"{'S' if self._bytes else '<U'}{self._width}")
        into(_header(dtype, (rows,)))
        if self._writer is None:
            return
        with self._kept.checked() as file:
            self._writer.close()
            file.seek(0)
        step = max(1, min(_ROWS, _PIECE // dtype.itemsize))
        for batch in pa.ipc.open_stream(pa.PythonFile(file, "r")):
            for start in range(0, batch.num_rows, step):
                values = np.array(batch.column(0).slice(start, step).to_pylist(), dtype)
                into(values.tobytes())


class _Kept:
    """Bytes that wait: in memory, or in a file without a name beside the part."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: IO[bytes] | None = None

    @contextlib.contextmanager
    def checked(self) -> Iterator[IO[bytes]]:
        """Give the file, and raise ``OutputWriteFailed`` for what the system refuses."""
        with writing(self._path, "write"):
            if self._file is None:
                folder = self._path.rpartition("/")[0]
                self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=folder)  # noqa: SIM115
            assert self._file is not None
            yield self._file

    def __del__(self) -> None:
        if self._file is not None:  # a part that was dropped closes nothing
            self._file.close()


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Return what stands before the values in a ``.npy`` file, as numpy writes it."""
    into = io.BytesIO()
    written = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(into, written)
    return into.getvalue()


# ---------------------------------------------------------------- types and values


def _layout(field: pa.Field) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """Return the dtype and shape of one row's value; raises ``SinkError`` where there are none."""
    type_ = field.type
    shape: tuple[int, ...] = ()
    if isinstance(type_, RaggedTensorType):
        type_, shape = type_.value_type, (0,) * type_.ndim
    order = getattr(type_, "permutation", None)
    if order is not None and order != sorted(order):
        raise cannot_hold("numpy", field, "its axes are permuted")
    if kind_of(type_) in _WORDS and not (shape or pa.types.is_fixed_size_binary(plain_type(type_))):
        return _WORDS[kind_of(type_)], shape
    empty = to_numpy(pa.nulls(0, type_))
    if holds(type_, lambda each: pa.types.is_timestamp(each) and each.tz is not None):
        raise cannot_hold("numpy", field, "numpy's times have no zone")
    if empty.dtype.kind == "O":
        lists = kind_of(type_) == "list" and not pa.types.is_fixed_size_list(type_)
        why = "its lists may differ in length" if lists else "numpy has no dtype for it"
        raise cannot_hold("numpy", field, why)
    return empty.dtype.newbyteorder("<"), (*shape, *empty.shape[1:])


def _array(column: pa.Array, field: pa.Field) -> np.ndarray[Any, Any]:
    """Return a column of numbers or times, or of tensors of them, as one array."""
    array, (dtype, _) = to_numpy(column), _layout(field)
    if array.dtype.kind != dtype.kind:
        raise cannot_hold("numpy", field, _NULL)
    return array


def _refuse_nulls(values: pa.Array, field: pa.Field) -> None:
    if values.null_count:
        raise cannot_hold("numpy", field, _NULL)
