"""Tar archives of samples, as WebDataset has them: members with one key are a row.

A member ``a/0001.seg.png`` is the column ``seg.png`` of the sample ``a/0001``: up to the first dot of its last part,
a name is the key. The members of a sample stand side by side.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad, Location
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources.file_source import FileSource, PathArgument, batches_of, damaged

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "__key__"
SAMPLES = 64  # of a file, from which types are settled
FILES = 8
_BYTES = 16 << 20
_LARGEST = (1 << 31) - 1


class Sample(NamedTuple):
    """A row: its key, its members' bytes, and what is wrong with it as a whole."""

    key: str
    members: dict[str, bytes]
    fault: str


class Found(NamedTuple):
    """The columns of all archives, and the forms in which functions see them."""

    schema: pa.Schema
    forms: dict[str, str]


class WebDatasetSource(FileSource[Found]):
    """Reads tar archives, plain or compressed; a split is a file.

    Columns and types are settled by the first 64 samples of each of the first eight files.
    """

    kind = "webdataset"
    suffixes = suffixes_read_by("read_webdataset")
    reads_objects = True
    decodes = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        suffixes: Sequence[str] | None = None,
        decoder: bool | None = True,
        include_paths: bool = False,
    ) -> None:
        super().__init__(paths, include_paths=include_paths)
        if decoder not in (True, False, None):
            raise ArgumentError(
                "read_webdataset: decoder= is True or None. Read the bytes with decoder=None, and unpack them in map."
            )
        if suffixes is not None and (
            isinstance(suffixes, str) or not all(isinstance(each, str) and each for each in suffixes)
        ):
            raise ArgumentError(f"suffixes={suffixes!r}: it takes a list of names such as ['jpg', 'cls'].")
        self._columns = None if suffixes is None else tuple(each.removeprefix(".") for each in suffixes)
        self._decode = bool(decoder)

    def options(self) -> dict[str, Any]:
        return {
            "columns": None if self._columns is None else list(self._columns),
            "decode": self._decode,
        }

    def forms(self) -> Mapping[str, str]:
        """Return the forms of arrays, and of the numbers that some sample lacks."""
        return self.inspected().forms

    def inspect(self, files: list[InputFile]) -> Found:
        import pyarrow as pa

        from headrace.annex.formats.webdataset import members
        from headrace.core.arrow.forms import ARRAYS, form_of, is_list

        counts: Counter[str] = Counter()
        looked_at = 0
        found: dict[str, list[tuple[str, pa.DataType]]] = {name: [] for name in self._columns or ()}
        for file in files[:FILES]:
            size = 0
            for number, sample in enumerate(samples(file.path, self._columns)):
                if number >= SAMPLES or size > _BYTES:
                    break
                looked_at += 1
                counts.update(list(sample.members))
                for name, data in sample.members.items():
                    size += len(data)
                    seen = found.setdefault(name, [])
                    if members.fixed_type(name, decode=self._decode) is None:
                        try:
                            value = members.value_of(name, data, decode=True)
                        except ValueError:
                            continue  # reported where it is read
                        seen.append((_named(sample, name, file.path), value.type))
        fields = [pa.field(KEY, pa.string())]
        forms: dict[str, str] = {}
        for name, types in found.items():
            type_ = members.fixed_type(name, decode=self._decode)
            type_ = members.type_over(name, types) if type_ is None else type_
            fields.append(pa.field(name, type_))
            arrays = self._decode and members.ending(name) == "npy" and is_list(type_)
            form = ARRAYS if arrays else form_of(type_) if counts[name] < looked_at else None
            if form is not None:
                forms[name] = form
        return Found(pa.schema(fields), forms)

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the samples of a file; a batch ends early at 64 MiB."""
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import select

        path, known = self.file(split.file).path, self.inspected().schema
        target = select(known, columns)
        wanted = None if self._columns is None and columns is None else target.names

        def rows() -> Iterator[tuple[list[pa.Array], int] | UnreadableFile]:
            for sample in samples(path, wanted):
                try:
                    row = self._row(sample, path, target, known)
                except UnreadableFile as error:
                    yield error
                else:
                    yield row, sum(value.nbytes for value in row)

        def batch(rows: list[list[pa.Array]]) -> pa.RecordBatch:
            if not len(target):
                return empty_columns(len(rows))
            arrays = [pa.concat_arrays(column) for column in zip(*rows, strict=True)]
            return pa.RecordBatch.from_arrays(arrays, schema=target)

        return batches_of(rows(), batch, batch_rows, bad)

    def _row(self, sample: Sample, path: str, target: pa.Schema, known: pa.Schema) -> list[pa.Array]:
        """Return a sample as columns of one row; raises ``UnreadableFile``, which names the member."""
        import pyarrow as pa

        from headrace.annex.formats.webdataset import members

        if sample.fault:
            raise UnreadableFile(f"Cannot read the sample {sample.key!r} in {path!r}: {sample.fault}.")
        for name in sample.members:
            if known.get_field_index(name) < 0:
                raise UnreadableFile(
                    f"Cannot read {_named(sample, name, path)}: none of the first samples has such a member, so "
                    "there is no column for it. Name the columns with suffixes=."
                )
        row = []
        for field in target:
            if field.name == KEY:
                row.append(pa.array([sample.key], pa.string()))
                continue
            data = sample.members.get(field.name)
            if data is None:
                row.append(pa.nulls(1, field.type))
                continue
            try:
                row.append(
                    members.fitted(members.value_of(field.name, data, decode=self._decode), field.type)
                )
            except MemoryError:
                raise
            except Exception as error:  # decoders of images raise what they like
                reason = str(error).rstrip(".") or type(error).__name__
                raise UnreadableFile(
                    f"Cannot read {_named(sample, field.name, path)}: {reason}. Repair it, or read its bytes with "
                    "decoder=None."
                ) from error
        return row

    def locate(self, split: Split, row: int) -> Location:
        """Name the file, and the sample counted from 0."""
        return Location(self.file(split.file).path, row)


def _named(sample: Sample, column: str, path: str) -> str:
    return f"{f'{sample.key}.{column}'!r} in {path!r}"


def samples(path: str, columns: Sequence[str] | None) -> Iterator[Sample]:
    """Yield the samples of an archive; of their members, ``columns`` only, if given.

    Raises ``UnreadableFile`` for an archive that is damaged or cut short.
    """
    import pyarrow as pa

    from headrace.annex.formats.webdataset import members
    from headrace.sources import text

    packed = text.compression_of(path) is not None
    last = ""
    try:
        with (
            text.open_stream(path) if packed else open_binary(path) as file,
            members.opened(file, stream=packed) as tar,
        ):
            current: Sample | None = None
            seen: set[str] = set()
            for member in tar:
                last = member.name
                key, column = members.member_of(member.name)
                if not member.isreg() or not column:
                    continue
                if current is None or key != current.key:
                    if current is not None:
                        yield current
                    current = Sample(key, {}, _apart(key) if key in seen else "")
                    seen.add(key)
                if columns is not None and column not in columns:
                    continue
                if column in current.members:
                    current = current._replace(fault=f"it has two members {column!r}")
                elif member.size > _LARGEST:
                    current = current._replace(fault=f"its member {column!r} has 2 GiB or more")
                else:
                    values = tar.extractfile(member)
                    assert values is not None
                    current.members[column] = values.read()
            if current is not None:
                yield current
    except (tarfile.TarError, EOFError, OSError, pa.ArrowException, UnicodeError, ValueError) as error:
        where = f", behind its member {last!r}" if last else ""
        raise damaged(f"{path!r} as a tar archive{where}", error) from error


def _apart(key: str) -> str:
    return "its members are not next to each other; sort the archive by name (tar --sort=name)"
