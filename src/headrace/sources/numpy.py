"""numpy's own files: ``.npy``, an array whose first axis is the rows, and ``.npz``, one such array per column."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad, Location
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources.file_source import FileSource, damaged
from headrace.sources.range import in_batches

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

COLUMN = "data"  # of a .npy file, as in Ray Data

_SPLIT_BYTES = 8 << 20
_BATCH_BYTES = 64 << 20
_ZIP = b"PK"
_DAMAGED = (OSError, ValueError, EOFError, KeyError, RuntimeError, zlib.error, zipfile.BadZipFile)


class _Header(NamedTuple):
    """What stands before the values of an array: dtype as numpy writes it, shape, order, and how long it is."""

    descr: Any
    shape: tuple[int, ...]
    fortran: bool
    offset: int

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def dtype(self) -> np.dtype[Any]:
        import numpy as np

        dtype: np.dtype[Any] = np.dtype(self.descr)
        return dtype

    @property
    def row_bytes(self) -> int:
        return int(self.dtype.itemsize * math.prod(self.shape[1:]))


class _File(NamedTuple):
    """The arrays of a file by column; ``packed``: they are members of a ``.npz``."""

    columns: dict[str, _Header]
    packed: bool

    @property
    def rows(self) -> int:
        return next(iter(self.columns.values())).rows

    @property
    def row_bytes(self) -> int:
        return sum(header.row_bytes for header in self.columns.values())

    @property
    def divisible(self) -> bool:
        """Whether some rows can be read without the others."""
        return not self.packed and not any(header.fortran for header in self.columns.values())


class _Found(NamedTuple):
    files: list[_File]
    schema: pa.Schema


class NumpySource(FileSource[_Found]):
    """Reads arrays: a row is what stands at one place of the first axis.

    A ``.npy`` file gives the column ``data``; a ``.npz`` file, compressed or not, one for each of its arrays, which
    are of one length. Values that are Python objects are refused, as loading them may run code. Headers are read
    before anything else, about 0.1 ms each.
    """

    kind = "numpy"
    suffixes = suffixes_read_by("read_numpy")
    reads_objects = True

    def inspect(self, files: list[InputFile]) -> _Found:
        from headrace.sources.schemas import unify

        found = [_inspected(file.path) for file in files]
        schemas = [(file.path, _schema(each, file.path)) for file, each in zip(files, found, strict=True)]
        return _Found(found, unify(schemas))

    def splits(self) -> list[Split]:
        """Cut each array into ranges of rows of about 8 MiB; what is packed, or lies column by column, is one."""
        return self.splits_in_batches(0)

    def splits_in_batches(self, rows: int) -> list[Split]:
        """Cut as ``splits`` does, but into multiples of ``rows`` rows, if they are not too big."""
        splits = []
        for number, file in enumerate(self.refreshed().files):
            most = max(1, _SPLIT_BYTES // max(1, file.row_bytes))
            step = in_batches(most, rows, most) if file.divisible else max(1, file.rows)
            for start in range(0, file.rows, step):
                stop = min(start + step, file.rows)
                splits.append(
                    Split(number, start, stop, stop - start, (stop - start) * file.row_bytes, start)
                )
        return splits

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read some rows of a file; a batch ends early at 64 MiB."""
        import pyarrow as pa

        from headrace.core.arrow.values import column_from
        from headrace.sources.schemas import conform, select

        path, known = self.file(split.file).path, self.inspected().files[split.file]
        target = select(self.inspected().schema, columns)
        wanted = {name: header for name, header in known.columns.items() if name in target.names}
        step = max(1, min(batch_rows, _BATCH_BYTES // max(1, known.row_bytes)))
        whole = None if known.divisible else {name: _array(path, name, known) for name in wanted}
        for start in range(split.start, split.stop, step):
            stop = min(start + step, split.stop)
            arrays = (
                {name: _some_rows(path, header, start, stop) for name, header in wanted.items()}
                if whole is None
                else {name: array[start:stop] for name, array in whole.items()}
            )
            made = {name: column_from(array) for name, array in arrays.items()}
            if not made:
                made = {"": pa.nulls(stop - start)}
            yield conform(pa.RecordBatch.from_pydict(made), target, path)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file, and the row counted from 0."""
        return Location(self.file(split.file).path, split.start + row)


# ---------------------------------------------------------------- headers


def _inspected(path: str) -> _File:
    """Read the headers of a file; what they promise has to be there."""
    try:
        with open_binary(path) as file:
            if file.read(2) != _ZIP:
                file.seek(0)
                header = _header(file, path, "")
                size = file.seek(0, 2) - header.offset
                _check_size(header, size, path, "")
                return _File({COLUMN: header}, packed=False)
            columns = {}
            with zipfile.ZipFile(file) as archive:
                for member in archive.infolist():
                    name = member.filename.removesuffix(".npy")
                    with archive.open(member) as values:
                        columns[name] = _header(values, path, name)
                    _check_size(columns[name], member.file_size - columns[name].offset, path, name)
    except UnreadableFile:
        raise
    except _DAMAGED as error:
        raise damaged(repr(path), error) from error
    lengths = {name: header.rows for name, header in columns.items()}
    if len(set(lengths.values())) != 1:
        said = ", ".join(f"{name!r} has {rows:,}" for name, rows in lengths.items()) or "it has none"
        raise UnreadableFile(
            f"Cannot read {path!r}: the arrays of a .npz file become columns, so they must have the same length, but "
            f"{said}. Load the file in your own function (read_binary_files), or save the arrays in separate files."
        )
    return _File(columns, packed=True)


def _header(file: IO[bytes], path: str, member: str) -> _Header:
    import numpy as np

    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"its version {version[0]}.{version[1]} is not known")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise UnreadableFile(
            f"Cannot read {_named(path, member)}: it holds Python objects, and loading those may run code. If you "
            "trust it, load it in a function: read_binary_files(paths).map_batches(load), with "
            "numpy.load(io.BytesIO(data), allow_pickle=True)."
        )
    if not shape:
        raise UnreadableFile(
            f"Cannot read {_named(path, member)}: it holds a single value; an array needs a first axis for the rows."
        )
    return _Header(np.lib.format.dtype_to_descr(dtype), tuple(shape), fortran and len(shape) > 1, file.tell())


def _check_size(header: _Header, size: int, path: str, member: str) -> None:
    needed = header.rows * header.row_bytes
    if size < needed:
        raise UnreadableFile(
            f"Cannot read {_named(path, member)}: its header says {needed:,} bytes of values, and there are "
            f"{size:,}. Its end is missing: restore the file or leave it out of the input."
        )


def _schema(file: _File, path: str) -> pa.Schema:
    import numpy as np
    import pyarrow as pa

    from headrace.core.arrow.objects import is_objects
    from headrace.core.arrow.values import ConversionError, column_from

    fields = []
    for name, header in file.columns.items():
        try:
            rows = int(header.dtype.kind in "US" and header.rows > 0)  # no texts have no type
            sample = column_from(np.zeros((rows, *header.shape[1:]), header.dtype))
            if is_objects(sample.type):
                raise ConversionError(f"numpy dtype {header.dtype} has no Arrow type")
        except ConversionError as error:
            raise UnreadableFile(
                f"Cannot read {_named(path, name if file.packed else '')}: its values cannot become a column: "
                f"{error}."
            ) from error
        fields.append(pa.field(name, sample.type))
    return pa.schema(fields)


# ---------------------------------------------------------------- values


def _some_rows(path: str, header: _Header, start: int, stop: int) -> np.ndarray[Any, Any]:
    """Read rows of a ``.npy`` file. No memory map: where a file is cut meanwhile, that would end the process."""
    import numpy as np

    size = (stop - start) * header.row_bytes
    try:
        with open_binary(path) as file:
            file.seek(header.offset + start * header.row_bytes)
            data = file.read(size)
    except OSError as error:
        raise damaged(repr(path), error) from error
    if len(data) < size:
        raise UnreadableFile(
            f"Cannot read {path!r}: it ends before row {stop:,}. It was cut while it was read."
        )
    if not header.dtype.itemsize:
        return np.zeros((stop - start, *header.shape[1:]), header.dtype)
    return np.frombuffer(data, header.dtype).reshape(stop - start, *header.shape[1:])


def _array(path: str, name: str, known: _File) -> np.ndarray[Any, Any]:
    """Read a whole array."""
    import numpy as np

    try:
        if not known.packed:
            with open_binary(path) as file:
                return np.load(file, allow_pickle=False)  # type: ignore[no-any-return]
        with open_binary(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.namelist()
            with archive.open(f"{name}.npy" if f"{name}.npy" in members else name) as values:
                array = np.lib.format.read_array(values, allow_pickle=False)
                values.read()  # to its end, where its checksum is
                return array
    except _DAMAGED as error:
        raise damaged(_named(path, name if known.packed else ""), error) from error


def _named(path: str, member: str) -> str:
    return f"{path!r}" if not member else f"{member!r} in {path!r}"
