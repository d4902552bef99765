"""Planning a read of JSON lines: the schema is settled, big files are cut between lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain

import pyarrow as pa

from headrace.core.arrow.forms import first_marked, forms_over, unmarked
from headrace.core.files.input_files import InputFile
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import SchemaMismatch, UnreadableFile
from headrace.sources import text
from headrace.sources.bisection import Faults, faults_of
from headrace.sources.folder_columns import FolderColumns
from headrace.sources.json import arrays
from headrace.sources.json.lines import TooDeep, count_of, explained, loaded, open_lines, records_of, rows_of
from headrace.sources.records import newline_cuts
from headrace.sources.schemas import unify
from headrace.sources.signatures import refuse_other_formats
from headrace.sources.text import TextFile

_CONTRADICTIONS = 100  # among the lines that the schema is inferred from
_OTHER_HEADS = 1 << 16  # what is read of each file after the first
_SETTLE_BYTES = 1 << 24  # how far to read for a field that is null at first


@dataclass(frozen=True)
class JsonLayout:
    """What planning inferred for all files. ``strict``: a field that ``schema`` lacks is an error.

    ``arrays``: the numbers of the files that are one array, or one object over several lines.
    """

    schema: pa.Schema
    strict: bool
    texts: tuple[TextFile, ...]
    faults: Faults
    forms: Mapping[str, str] = field(default_factory=dict)
    arrays: frozenset[int] = frozenset()
    folders: FolderColumns | None = None


@dataclass(frozen=True)
class _JsonStart:
    """What was inferred from the first bytes of one file."""

    text: TextFile
    schema: pa.Schema | None = None
    fault: UnreadableFile | None = None
    is_array: bool = False


def inspect(files: Sequence[InputFile], given: pa.Schema | None) -> JsonLayout:
    """Read the start of every file; unify the schemas unless one is given."""
    found = [_inspect_start(files[0], given, text.HEAD_BYTES, _SETTLE_BYTES)] if files else []
    with ThreadPoolExecutor(4, thread_name_prefix="json") as threads:
        found.extend(threads.map(lambda file: _inspect_start(file, given, _OTHER_HEADS, 0), files[1:]))
    texts = tuple(start.text for start in found)
    faults = faults_of(start.fault for start in found)
    lists = frozenset(number for number, start in enumerate(found) if start.is_array)
    if given is not None:
        seen = [start.schema for start in found if start.schema is not None]
        return JsonLayout(given.remove_metadata(), False, texts, faults, forms_over(seen, given), lists)
    schemas = [
        (file.path, start.schema)
        for file, start in zip(files, found, strict=True)
        if start.schema is not None
    ]
    if not schemas:
        return JsonLayout(pa.schema([]), True, texts, faults, arrays=lists)
    try:
        schema = unify(schemas)
        forms = forms_over([each for _, each in schemas], schema)
        return JsonLayout(unmarked(schema), True, texts, faults, forms, lists)
    except SchemaMismatch as error:
        raise SchemaMismatch(f"{error} For JSON, `schema=` settles the types.") from error


def _inspect_start(file: InputFile, given: pa.Schema | None, size: int, settle: int) -> _JsonStart:
    heads = text.heads(file.path, size=size)
    first = next(heads)
    is_array = arrays.is_array(first) or arrays.is_object(file.path, first)
    if is_array:
        heads = arrays.heads(arrays.lines_of(file.path), size)
        first = next(heads)
    cuttable = text.compression_of(file.path) is None and not is_array
    for head in chain([first], heads):
        refuse_other_formats(file.path, head.data, "JSON lines", encoding=None)
        body = text.skip_mark(head.data)
        end = len(head.data) if head.whole else head.data.rfind(b"\n") + 1
        lines = head.data[body:end]
        if not lines.strip():
            if head.whole:
                return _JsonStart(TextFile(body, cuttable, -1))
            continue
        schema, fault = _settled(file.path, lines, given)
        if given is not None:
            return _JsonStart(TextFile(body, cuttable, 0), schema, fault, is_array)
        if not head.whole and len(head.data) < settle and any(_has_null(field.type) for field in schema):
            continue
        return _JsonStart(TextFile(body, cuttable, 0), schema, fault, is_array)
    raise UnreadableFile(
        f"Cannot find the end of a line in the first {len(head.data):,} bytes of {file.path!r}; JSON lines "
        "are wanted: one object per line."
    )


def _settled(path: str, lines: bytes, given: pa.Schema | None) -> tuple[pa.Schema, UnreadableFile | None]:
    """Infer the schema, unless it is given; where some lines cannot be parsed, from the others."""
    try:
        _check_first_line(path, lines)
        _check_text(path, lines)
        if given is not None:
            return _marked(lines, given), None
        try:
            return first_marked(open_lines(lines, None, "infer")), None
        except pa.ArrowException as error:
            raise explained(lines, rows_of(path), None, error) from error
    except UnreadableFile as fault:
        objects = _fitting([line for line in records_of(lines) if _is_object(line)], given is not None)
        if not objects:
            raise
        schema = given if given is not None else open_lines(b"".join(objects), None, "infer").schema
        return schema, fault.with_traceback(None)


def _marked(lines: bytes, given: pa.Schema) -> pa.Schema:
    """Mark where these lines have nulls; what is wrong with them is reported where they are read."""
    try:
        return first_marked(open_lines(lines, given, "ignore"))
    except pa.ArrowException:
        return given


def _check_text(path: str, lines: bytes) -> None:
    """Refuse what is not UTF-8, which Arrow would take even for the names of fields."""
    try:
        lines.decode()
    except UnicodeDecodeError as error:
        where = rows_of(path)(max(count_of(lines[: error.start + 1]) - 1, 0))
        raise UnreadableFile(
            f"Cannot read {where}: it is not valid UTF-8. Convert the file to UTF-8."
        ) from error


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(loaded(line), dict)
    except ValueError:
        return False


def _fitting(lines: list[bytes], given: bool) -> list[bytes]:
    """Leave out lines that contradict those before; none is left if there are many such."""
    fitting: list[bytes] = []
    waiting, refused = [lines], 0
    while waiting and not given:
        part = waiting.pop()
        try:
            open_lines(b"".join(fitting + part), None, "infer")
            fitting += part
        except pa.ArrowException:
            middle = len(part) // 2
            if middle:
                waiting += [part[middle:], part[:middle]]
                continue
            refused += 1
            if refused > _CONTRADICTIONS:
                return []
    return lines if given else fitting


def _check_first_line(path: str, lines: bytes) -> None:
    """Refuse objects over several lines, which Arrow would take as long as they end within a block."""
    first = lines.lstrip().split(b"\n", 1)[0]
    try:
        loaded(first)
    except TooDeep:
        pass  # reported where a schema is inferred from it
    except ValueError as error:
        raise explained(first, rows_of(path), None, error) from error


def _has_null(type_: pa.DataType) -> bool:
    inner = (type_.field(i).type for i in range(type_.num_fields))
    return pa.types.is_null(type_) or any(map(_has_null, inner))


def cut(layout: JsonLayout, files: Sequence[InputFile], block: int) -> list[Split]:
    """List the splits of all files in order."""
    splits: list[Split] = []
    for number, (file, known) in enumerate(zip(files, layout.texts, strict=True)):
        cuts: list[int] = []
        if known.cuttable and known.header >= 0 and file.size - known.body > block:
            try:
                with open_binary(file.path) as data:
                    cuts = newline_cuts(data, known.body, block)
            except OSError as error:
                raise text.unreadable(file.path, error) from error
        splits.extend(text.splits_of(number, known, file.size, cuts))
    return splits
