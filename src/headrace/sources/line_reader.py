"""What ``TextSource`` does with bytes and pyarrow: cut files, find lines, lay them out as strings, count them.

A line ends as in Python's text files: at ``\\n``, ``\\r\\n`` or ``\\r``, and at the end of the file. Files are cut
behind ``\\n`` only, so that no ``\\r\\n`` is torn.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import concat, empty_columns
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad
from headrace.core.stores.objects import open_binary
from headrace.core.work import Split
from headrace.errors import UnreadableFile
from headrace.sources import text
from headrace.sources.file_source import damaged
from headrace.sources.schemas import repeated
from headrace.sources.text import newline_cuts, not_text, refuse_other_formats

_BLOCK = 1 << 20
_LONGEST = (1 << 31) - 1  # what the offsets of a string column can count
_GATHERED = _BLOCK // 2
# What ``str.isspace`` takes for white space, in UTF-8, and then the end of the line.
_BLANK = re.compile(
    rb"(?:[\t\x0b\x0c\x1c-\x20]|\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*"
    rb"(?:\n|\Z)"
)
_MAY_BE_BLANK = np.isin(np.arange(256), [*b"\t\n\x0b\x0c\x1c\x1d\x1e\x1f \xc2\xe1\xe2\xe3"])  # its first byte


# ---------------------------------------------------------------- planning


def uncompressed(files: Sequence[InputFile], encoding: str) -> tuple[bool, ...]:
    """Return which files can be cut: those not compressed, if the encoding lets newlines be found in their bytes."""
    if text.plain_encoding(encoding) is None:
        return (False,) * len(files)
    with ThreadPoolExecutor(4, thread_name_prefix="text") as threads:
        return tuple(threads.map(lambda file: text.compression_of(file.path) is None, files))


def splits_of(number: int, file: InputFile, block: int) -> Iterator[Split]:
    """Yield the splits of a plain file: at least ``block`` bytes each, and whole lines."""
    try:
        with open_binary(file.path) as data:
            cuts = newline_cuts(data, 0, block)
    except OSError as error:
        raise damaged(repr(file.path), error) from error
    for start, stop in pairwise([0, *cuts, file.size]):
        yield Split(number, start, stop, bytes=stop - start, first=-1 if start else 0)


# ---------------------------------------------------------------- reading


class Lines:
    """The lines of one file, or of a range of bytes in it, as often as they are asked for."""

    def __init__(self, path: str, split: Split, encoding: str, drop_empty: bool) -> None:
        self._path = path
        self._split = Split(0, split.start, max(split.stop, text.TO_THE_END))
        self._encoding = encoding
        self._drop_empty = drop_empty

    def arrays(self, *, exact: bool) -> Iterator[pa.Array | UnreadableFile]:
        """Yield columns of strings, and in the place of each line that is no text, an error.

        ``exact``: it has the line's number in the file, for which those before the split are counted.
        """
        line = 0
        for block in self._blocks():
            lines = _without_blank(block) if self._drop_empty else block
            try:
                strings = _strings(lines)
            except pa.ArrowInvalid:
                yield from self._each_line(block, line, exact=exact)
            else:
                if len(strings):
                    yield strings
            line += block.count(b"\n")

    def _each_line(self, block: bytes, line: int, *, exact: bool) -> Iterator[pa.Array | UnreadableFile]:
        good: list[bytes] = []
        for content in block.splitlines(keepends=True):  # only newlines are left as ends
            line += 1
            if self._drop_empty and _BLANK.fullmatch(content):
                continue
            try:
                content.decode()
            except UnicodeDecodeError as error:
                if good:
                    yield _strings(b"".join(good))
                    good = []
                yield self._not_text(line, error, exact=exact)
            else:
                good.append(content)
        if good:
            yield _strings(b"".join(good))

    def _not_text(self, line: int, error: UnicodeDecodeError, *, exact: bool) -> UnreadableFile:
        where = f"line {line + self._before() if exact else line:,}"
        if self._split.start and not exact:
            where += f" of the part that begins at byte {self._split.start:,}"
        known = error if self._is_utf8() else UnicodeError()  # the bytes are not those of the file
        return not_text(self._path, where, known, self._encoding.upper())

    def find(self, row: int) -> tuple[int | None, int]:
        """Return the number, in the file and from 1, of the line that row ``row`` holds; or None, and the rest."""
        line = self._before() + 1
        for block in self._blocks():
            for content in block.removesuffix(b"\n").split(b"\n"):
                if not (self._drop_empty and _BLANK.fullmatch(content)):
                    if row == 0:
                        return line, 0
                    row -= 1
                line += 1
        return None, row

    def _before(self) -> int:
        if not self._split.start:
            return 0
        before = Lines(self._path, Split(0, 0, self._split.start), "latin1", False)
        return sum(block.count(b"\n") for block in before._blocks())

    def _is_utf8(self) -> bool:
        return codecs.lookup(self._encoding).name in ("utf-8", "utf-8-sig")

    def _blocks(self) -> Iterator[bytes]:
        """Yield whole lines, each ended by ``\\n``, but perhaps the last; in UTF-8 but for what is no text."""
        chunks = self._chunks()
        return _whole_lines(
            self._path, chunks if self._is_utf8() else text.transcoded(chunks, self._encoding)
        )

    def _chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes, without a byte order mark of UTF-8."""
        try:
            with text.open_split(self._path, self._split) as stream:
                chunk = text.read_fully(stream, _BLOCK)
                if self._split.start == 0:
                    refuse_other_formats(self._path, chunk, "text", encoding=self._encoding)
                    chunk = chunk[text.skip_mark(chunk) if self._is_utf8() else 0 :]
                while chunk:
                    yield chunk
                    chunk = text.read_fully(stream, _BLOCK)
        except (pa.ArrowException, OSError) as error:
            if isinstance(error, MemoryError):
                raise
            raise damaged(repr(self._path), error) from error


def _whole_lines(path: str, chunks: Iterable[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        newline = chunk.rfind(b"\n") + 1
        end = max(newline, chunk.rfind(b"\r", newline, -1) + 1)  # not the last: a newline may follow
        if end:
            yield _ended_by_newlines(path, [*held, chunk[:end]])
            held, size = [], 0
        if end < len(chunk):
            held.append(chunk[end:])
            size += len(chunk) - end
            if size > _LONGEST:
                raise _too_long(path)
    if held:
        yield _ended_by_newlines(path, held)


def _ended_by_newlines(path: str, pieces: Sequence[bytes]) -> bytes:
    block = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if len(block) > _LONGEST:
        raise _too_long(path)
    return block.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in block else block


def _too_long(path: str) -> UnreadableFile:
    return UnreadableFile(f"Cannot read {path!r} as text: it has a line of 2 GiB or more. Is it binary?")


def _without_blank(block: bytes) -> bytes:
    raw = np.frombuffer(block, np.uint8)
    starts = np.concatenate(([0], np.flatnonzero(raw == ord("\n")) + 1))
    starts = starts[starts < len(raw)]
    pieces, end = [], 0
    for start in starts[_MAY_BE_BLANK[raw[starts]]].tolist():
        if blank := _BLANK.match(block, start):
            pieces.append(block[end:start])
            end = blank.end()
    return b"".join([*pieces, block[end:]]) if end else block


def _strings(block: bytes) -> pa.Array:
    """Lay lines out as Arrow does: the bytes without their ends, and where each begins."""
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    count = len(ends) + (not block.endswith(b"\n") and bool(block))
    offsets = np.empty(count + 1, np.int32)
    offsets[0] = 0
    offsets[1 : len(ends) + 1] = ends - np.arange(len(ends))
    if count > len(ends):
        offsets[count] = len(block) - len(ends)
    data = block.translate(None, b"\n")
    strings = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))
    strings.validate(full=True)
    return strings


def read(
    parts: Iterable[tuple[str, Lines]], target: pa.Schema, batch_rows: int, bad: Bad | None
) -> Iterator[pa.RecordBatch]:
    """Yield the lines of ``(path, lines)`` pairs; those of small files share batches."""
    held: list[pa.RecordBatch] = []
    rows = size = row = 0
    for path, lines in parts:
        for strings in lines.arrays(exact=bad is None):
            if isinstance(strings, UnreadableFile):
                if bad is None:
                    raise strings
                yield from _cut(held, batch_rows)
                held, rows, size = [], 0, 0
                bad(row, 1, strings)
                row += 1
                continue
            row += len(strings)
            for start in range(0, len(strings), batch_rows):
                held.append(_batch(path, strings.slice(start, batch_rows), target))
                rows, size = rows + len(held[-1]), size + held[-1].nbytes
                if rows >= batch_rows or size >= _GATHERED:
                    yield from _cut(held, batch_rows)
                    held, rows, size = [], 0, 0
    yield from _cut(held, batch_rows)


def _batch(path: str, strings: pa.Array, target: pa.Schema) -> pa.RecordBatch:
    if not len(target):
        return empty_columns(len(strings))
    columns = [strings if field.name == "text" else repeated(path, len(strings)) for field in target]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cut(batches: Sequence[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    if batches:
        whole = concat(batches)
        for start in range(0, whole.num_rows, batch_rows):
            yield whole.slice(start, batch_rows)
