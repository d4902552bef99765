"""Which columns are copied as they are stored in Parquet files, and why others are decoded and encoded again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec
import pyarrow as pa

from headrace.core.arrow.forms import marked
from headrace.core.arrow.lossless import is_open
from headrace.core.parquet import chunks
from headrace.core.parquet.chunks import ChunkFile
from headrace.core.parquet.compact import NotUnderstood
from headrace.core.parquet.footer import INT96, Column, Footer
from headrace.core.source_ports import Source
from headrace.core.target_ports import Format
from headrace.core.work import Split
from headrace.errors import SourceError

LEAST_ROWS = 4_096  # of a row group on average; smaller ones are worth being put together,
LEAST_BYTES = 1 << 20  # unless they have so many bytes, decoded
MOST_FILES = 64  # of a shard: each is held open


class CopyChoice(msgspec.Struct, frozen=True):
    """Which columns of the output are copied, and what they are called in the source; why others are decoded.

    ``files`` has the files of a shard by their numbers, ``starts`` where each row group of these begins, ``whole``
    which of them lie in the shard as a whole. Copied columns in ``old_times`` are INT96, and stay it.
    """

    copied: Mapping[str, str]
    decoded: Mapping[str, str]
    files: Mapping[int, ChunkFile]
    starts: Mapping[int, Sequence[int]]
    whole: Mapping[int, Sequence[int]]
    old_times: Collection[str] = ()


def choose_copied(
    source: Source,
    format: Format,
    carried: Mapping[str, str],
    splits: Sequence[Split],
    settled: pa.Schema | None = None,
    looked_at: Collection[str] = (),
) -> CopyChoice:
    """Choose for the columns that a plan carries through.

    ``settled``: the schema of the output, if it is known; ``looked_at``: the columns of the source whose values steps
    need.
    """
    try:
        files, unchanged = _files(source, splits)
        starts = {
            number: [0, *accumulate(group.rows for group in file.footer.groups)]
            for number, file in files.items()
        }
        whole = _whole(splits, starts)
        _check_size(splits)
    except (NotUnderstood, OSError, SourceError) as error:  # what cannot be read is an error when it is read
        why = str(error) if isinstance(error, NotUnderstood) else "the file cannot be read"
        return CopyChoice({}, dict.fromkeys(carried, why), {}, {}, {})
    fields = typed_fields(source, carried)
    why_not = {
        name: "the columns of another file have other types"
        if original not in unchanged
        else _why_not_typed(fields[name], settled)
        for name, original in carried.items()
    }
    left = [fields[name] for name, why in why_not.items() if not why]
    old_times = [field.name for field in left if _is_int96(field, carried[field.name], files.values())]
    like = _like(format, left, old_times)
    for field in left:
        for file in files.values():
            why = _why_not(field, carried[field.name], file.footer, like, format)
            why_not[field.name] = why_not[field.name] or why
    copied = {name: carried[name] for name, why in why_not.items() if not why}
    read = {*looked_at, *carried.values()} - ({*copied.values()} - {*looked_at})
    for number, file in files.items():
        spans = [(split.start, split.stop) for split in splits if split.file == number]
        if copied and (why := file.why_not_fetched(copied.values(), read, spans)):
            why_not |= dict.fromkeys(copied, why)
            copied = {}
    decoded = {name: why for name, why in why_not.items() if why}
    old_times = [name for name in old_times if name in copied]
    return CopyChoice(copied, decoded, files, starts, whole, old_times)


def typed_fields(source: Source, carried: Mapping[str, str]) -> dict[str, pa.Field]:
    """Return carried columns with their types, as batches have them, by their names in the output."""
    schema = source.schema()
    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, type_) for type_ in schema.types], schema=schema)
    schema = marked(nothing, source.forms()).schema
    return {name: schema.field(original).with_name(name) for name, original in carried.items()}


def _files(source: Source, splits: Sequence[Split]) -> tuple[dict[int, ChunkFile], set[str]]:
    """Return the files of some splits, and the columns that all of them have as the source gives them."""
    if any(split.rows < 0 for split in splits):
        raise NotUnderstood("the number of rows is not known")
    _check_size([split for split in splits if split.stop - split.start > 1])
    if len({split.file for split in splits}) > MOST_FILES:
        raise NotUnderstood("a part of the output has rows of too many files")
    files: dict[int, ChunkFile] = {}
    unchanged: set[str] | None = None
    for split in splits:
        if split.file in files:
            continue
        files[split.file], names = source.chunk_file(split)
        unchanged = set(names) if unchanged is None else unchanged & names
        if sum(file.footer_size for file in files.values()) > chunks.MOST_FOOTERS:
            raise NotUnderstood("its footers are very long")
    return files, unchanged or set()


def _check_size(splits: Sequence[Split]) -> None:
    """Raise if row groups are so small on average that they are better put together; pieces of one count as one."""
    groups = sum(
        stop - start for _, start, stop in {(split.file, split.start, split.stop) for split in splits}
    )
    small = sum(split.rows for split in splits) < LEAST_ROWS * groups
    if small and sum(split.bytes for split in splits) < LEAST_BYTES * groups:
        raise NotUnderstood("its row groups are small, so they are joined")


def _whole(splits: Sequence[Split], starts: Mapping[int, Sequence[int]]) -> dict[int, list[int]]:
    """Return by file the row groups that lie in the shard as a whole; raise unless half of the rows are in such."""
    spans: list[list[int]] = []
    for split in splits:
        low, high = split.first + split.low, split.first + split.low + split.length
        if spans and spans[-1][0] == split.file and spans[-1][2] == low:
            spans[-1][2] = high
        else:
            spans.append([split.file, low, high])
    found: dict[int, list[int]] = {file: [] for file in starts}
    rows = 0
    for file, low, high in spans:
        for number, (start, stop) in enumerate(pairwise(starts[file])):
            if low <= start and stop <= high:
                found[file].append(number)
                rows += stop - start
    if 2 * rows < sum(high - low for _, low, high in spans):
        raise NotUnderstood("its row groups are divided among workers")
    return found


def _why_not_typed(field: pa.Field, settled: pa.Schema | None) -> str:
    if is_open(field.type):
        return "it has no type yet"
    if settled is not None:
        at = settled.get_field_index(field.name)
        if at < 0 or not settled.field(at).equals(field):
            return "the output has it with another type"
    return ""


def _is_int96(field: pa.Field, original: str, files: Iterable[ChunkFile]) -> bool:
    """Say whether all files have times as INT96; Arrow reads these as nanoseconds, in no time zone."""
    columns = [file.footer.column(original) for file in files]
    return field.type == pa.timestamp("ns") and all(
        column is not None and column.types == (INT96,) and len(column.elements) == 1 for column in columns
    )


def _like(format: Format, fields: Sequence[pa.Field], old_times: Collection[str]) -> Footer | None:
    try:
        return format.footer_like(pa.schema(fields), old_times) if fields else None
    except pa.ArrowException:  # which is an error when the output is opened
        return None


def _why_not(field: pa.Field, original: str, footer: Footer, like: Footer | None, format: Format) -> str:
    column = footer.column(original)
    wanted = like.column(field.name) if like is not None else None
    if column is None or wanted is None:
        return "it is part of another column in the file"
    if column.skeleton != wanted.skeleton:
        return _why_another_form(column, wanted)
    for group in footer.groups:
        for leaf in column.leaves if group.rows else ():
            if why := format.why_not_copied(field, group.chunks[leaf]):
                return why
    return ""


def _why_another_form(column: Column, wanted: Column) -> str:
    if INT96 in column.types:
        return "its times are INT96, an old form"
    if len(column.skeleton) == len(wanted.skeleton) and [each[2] for each in column.skeleton] != [
        each[2] for each in wanted.skeleton
    ]:
        return "the file has it without nulls, and the output with them"
    return "it is stored in a form that the output does not use"
