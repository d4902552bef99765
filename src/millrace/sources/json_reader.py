"""What ``JsonSource`` does with pyarrow: settle the schema, cut files, read splits, explain errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.json as pajson

from millrace.core.work import Split, tell
from millrace.errors import SchemaMismatch, UnreadableFile
from millrace.sources import text
from millrace.sources.files import InputFile
from millrace.sources.records import newline_cuts
from millrace.sources.schemas import conform, read_guarded, select, unify
from millrace.sources.signatures import refuse_other_formats
from millrace.sources.text import TextFile

_BLOCK = 1 << 20
_OTHER_HEADS = 1 << 16  # what is read of each file after the first
_SETTLE_BYTES = 1 << 24  # how far to read for a field that is null at first


@dataclass(frozen=True)
class Layout:
    """What was settled for all files. ``strict``: a field that ``schema`` lacks is an error."""

    schema: pa.Schema
    strict: bool
    texts: tuple[TextFile, ...]


# ---------------------------------------------------------------- settling the schema


def look(files: Sequence[InputFile], given: pa.Schema | None) -> Layout:
    """Read the start of every file; unify the schemas unless one is given."""
    found = [_look_at(files[0], given, text.HEAD_BYTES, _SETTLE_BYTES)] if files else []
    with ThreadPoolExecutor(4, thread_name_prefix="json") as threads:
        found.extend(threads.map(lambda file: _look_at(file, given, _OTHER_HEADS, 0), files[1:]))
    texts = tuple(known for known, _ in found)
    if given is not None:
        return Layout(given.remove_metadata(), False, texts)
    schemas = [
        (file.path, schema) for file, (_, schema) in zip(files, found, strict=True) if schema is not None
    ]
    if not schemas:
        return Layout(pa.schema([]), True, texts)
    try:
        return Layout(unify(schemas), True, texts)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"{error} For JSON, `schema=` settles the types.") from error


def _look_at(
    file: InputFile, given: pa.Schema | None, size: int, settle: int
) -> tuple[TextFile, pa.Schema | None]:
    cuttable = text.compression_of(file.path) is None
    for head in text.heads(file.path, size=size):
        refuse_other_formats(file.path, head.data, "JSON lines", encoding=None)
        body = text.skip_mark(head.data)
        end = len(head.data) if head.whole else head.data.rfind(b"\n") + 1
        lines = head.data[body:end]
        if not lines.strip():
            if head.whole:
                return TextFile(body, cuttable, -1), None
            continue
        if lines.lstrip().startswith(b"["):
            raise UnreadableFile(
                f"Cannot read {file.path!r}: it begins with '[', a JSON array, but JSON lines are wanted: one "
                "object per line. Convert it, for instance with `jq -c '.[]'`."
            )
        _check_first_line(file.path, lines)
        if given is not None:
            return TextFile(body, cuttable, 0), None
        try:
            schema = _open(pa.BufferReader(lines), None, "infer", len(lines) + 1).schema
        except pa.ArrowException as error:
            raise _explained(file.path, lines, 0, None, error) from error
        if not head.whole and len(head.data) < settle and any(_has_null(field.type) for field in schema):
            continue
        return TextFile(body, cuttable, 0), schema
    raise UnreadableFile(
        f"Cannot find the end of a line in the first {len(head.data):,} bytes of {file.path!r}; JSON lines "
        "are wanted: one object per line."
    )


def _check_first_line(path: str, lines: bytes) -> None:
    """Refuse objects over several lines, which Arrow would take as long as they end within a block."""
    first = lines.lstrip().split(b"\n", 1)[0]
    try:
        json.loads(first)
    except ValueError as error:
        raise _explained(path, first, 0, None, error) from error


def _has_null(type_: pa.DataType) -> bool:
    inner = (type_.field(i).type for i in range(type_.num_fields))
    return pa.types.is_null(type_) or any(map(_has_null, inner))


def _open(
    stream: pa.NativeFile, schema: pa.Schema | None, unexpected: str, block: int
) -> pajson.JSONStreamingReader:
    return pajson.open_json(
        stream,
        read_options=pajson.ReadOptions(use_threads=False, block_size=min(block, (1 << 31) - 1)),
        parse_options=pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior=unexpected),
    )


# ---------------------------------------------------------------- cutting and reading


def cut(layout: Layout, files: Sequence[InputFile], block: int) -> list[Split]:
    """List the splits of all files in order."""
    splits: list[Split] = []
    for number, (file, known) in enumerate(zip(files, layout.texts, strict=True)):
        cuts: list[int] = []
        if known.cuttable and known.header >= 0 and file.size - known.body > block:
            try:
                with open(file.path, "rb") as data:
                    cuts = newline_cuts(data, known.body, block)
            except OSError as error:
                raise text.unreadable(file.path, error) from error
        splits.extend(text.splits_of(number, known, file.size, cuts))
    return splits


def read(
    path: str, split: Split, layout: Layout, columns: Sequence[str] | None, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one split."""
    target = layout.schema if columns is None else select(layout.schema, columns)
    schema, unexpected = layout.schema, "error" if layout.strict else "ignore"
    if columns is not None and len(target) and not any(pa.types.is_nested(field.type) for field in target):
        # Fields that nobody asked for may be what they like. Not so within a struct: it would lose parts.
        schema, unexpected = target, "ignore"

    def explain(error: Exception) -> Exception:
        return _diagnosed(path, split, layout, schema, unexpected, error)

    for batch in read_guarded(_batches(path, split, schema, unexpected), explain):
        whole = batch if batch.schema.equals(target) else conform(batch, target, path, _no_constant)
        for start in range(0, whole.num_rows, batch_rows):
            yield whole.slice(start, batch_rows)


def _batches(path: str, split: Split, schema: pa.Schema, unexpected: str) -> Iterator[pa.RecordBatch]:
    def batches(block: int) -> Iterator[pa.RecordBatch]:
        with text.open_split(path, split) as stream:
            for batch in _open(stream, schema, unexpected, block):
                batch.validate(full=True)  # Arrow takes any bytes for UTF-8 here
                yield batch

    return text.in_blocks(batches)


def _no_constant(name: str, rows: int) -> None:
    return None


# ---------------------------------------------------------------- explaining


def rows_before(path: str, split: Split, layout: Layout) -> int:
    """Count the lines of a file before a split, blank ones left out."""
    body = layout.texts[split.file].body
    if split.start == body:
        return 0
    before = Split(split.file, body, split.start)
    return sum(_count(lines) for lines in _lines(path, before))


def _count(lines: bytes) -> int:
    return sum(1 for line in lines.splitlines() if line.strip())


def _lines(path: str, split: Split) -> Iterator[bytes]:
    """Yield the bytes of a split in pieces of whole lines."""
    with text.open_split(path, split) as stream:
        rest = b""
        while data := stream.read(_BLOCK):
            rest += data
            end = rest.rfind(b"\n") + 1
            if end:
                yield rest[:end]
                rest = rest[end:]
        if rest:
            yield rest


def _diagnosed(
    path: str, split: Split, layout: Layout, schema: pa.Schema, unexpected: str, error: Exception
) -> UnreadableFile:
    """Find the line that Arrow stumbled over: the first piece that fails alone, then its first such line."""
    row = 0
    try:
        for lines in _lines(path, split):
            if _fails(lines, schema, unexpected) is not None:
                row += rows_before(path, split, layout)
                return _explained(path, lines, row, schema if unexpected == "error" else None, error, schema)
            row += _count(lines)
    except OSError:  # the compressed stream itself is damaged
        pass
    return text.unreadable(path, error)


def _fails(lines: bytes, schema: pa.Schema | None, unexpected: str) -> Exception | None:
    try:
        for batch in _open(pa.BufferReader(lines), schema, unexpected, len(lines) + 1):
            batch.validate(full=True)
    except pa.ArrowInvalid as error:
        return None if "Empty JSON" in str(error) else error
    return None


def _explained(
    path: str,
    lines: bytes,
    row: int,
    known: pa.Schema | None,
    error: Exception,
    schema: pa.Schema | None = None,
) -> UnreadableFile:
    """Explain the first line at fault among ``lines``, the first of which is row ``row``."""
    records = [line for line in lines.splitlines(keepends=True) if line.strip()]
    unexpected = "infer" if schema is None else ("error" if known is not None else "ignore")
    low, high = 0, len(records)
    while high - low > 1:
        middle = (low + high) // 2
        # Without a schema a line may fail only beside another, so whole prefixes are tried.
        start = 0 if schema is None else low
        failed = _fails(b"".join(records[start:middle]), schema, unexpected) is not None
        low, high = (low, middle) if failed else (middle, high)
    line = records[low]
    where = f"{path!r}, row {row + low} (counted from 0, without blank lines)"
    reason = str(_fails(line, schema, unexpected) or error).rstrip(".")
    reason = re.sub(r" in row \d+$", "", reason)
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        return UnreadableFile(f"Cannot read {where}: it is not valid UTF-8. Convert the file to UTF-8.")
    except ValueError as invalid:
        return UnreadableFile(
            f"Cannot read {where}: {tell(line.decode(errors='replace').strip())} is not JSON ({invalid}). One "
            "whole object per line is wanted; repair the line or leave the file out."
        )
    field = _unknown_field(value, known) if known is not None else None
    if field is not None:
        return UnreadableFile(
            f"Cannot read {where}: the field {field!r} was not there in the first part of the files, from which "
            "the schema was inferred. Give the whole schema with schema=pyarrow.schema([...]); fields that it "
            "does not name are passed over."
        )
    return UnreadableFile(
        f"Cannot read {where}: {reason}, against the schema that was given or inferred from the start of the "
        f"files. The row is {tell(line.decode(errors='replace').strip())}. Settle the types with "
        "schema=pyarrow.schema([...]), or repair the row."
    )


def _unknown_field(value: Any, known: Any, prefix: str = "") -> str | None:
    """Return the dotted name of the first field that a schema or struct type does not have."""
    if isinstance(value, list) and isinstance(known, pa.DataType) and pa.types.is_list(known):
        for item in value:
            found = _unknown_field(item, known.value_type, prefix)
            if found is not None:
                return found
    if not isinstance(value, dict) or not (isinstance(known, pa.Schema) or pa.types.is_struct(known)):
        return None
    types = {field.name: field.type for field in known}
    for name, item in value.items():
        if name not in types:
            return f"{prefix}{name}"
        deeper = _unknown_field(item, types[name], f"{prefix}{name}.")
        if deeper is not None:
            return deeper
    return None
