"""Parts as Parquet files into which column chunks of the input are copied as they are."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from headrace.core.files.staged import KeptBytes, StagedStream
from headrace.core.parquet.chunks import ChunkFile, Chunks
from headrace.core.parquet.footer import (
    MAGIC,
    TAIL,
    Chunk,
    Column,
    Footer,
    FooterJoiner,
    Placed,
    parse,
    read_tail,
)
from headrace.core.target_ports import Encoder
from headrace.errors import SinkError

MakeEncoder: TypeAlias = "Callable[[io.BytesIO, pa.Schema, int | None], Encoder]"

_NOTHING = Footer({}, (), (), "", {}, ())
_PIECE = 32 << 20  # encoded; rows that are not copied are appended when there are so many bytes of them


class OldTimes(NamedTuple):
    """Columns that are INT96 in a part, and what encodes a table of them, in row groups of so many rows."""

    names: Collection[str]
    encode: Callable[[pa.Table, Sequence[int]], memoryview]


class JoinedEncoder:
    """Writes row groups: some columns copied from a file, the others encoded; or all of them encoded.

    ``copied`` says for columns of ``schema`` what they are called in the files that they are copied from. ``like``
    is the footer of such a file; ``encoder`` makes what encodes into a stream, in row groups of so many rows.
    """

    def __init__(
        self,
        stream: StagedStream,
        schema: pa.Schema,
        copied: Mapping[str, str],
        like: Footer,
        encoder: MakeEncoder,
        old_times: OldTimes | None = None,
    ) -> None:
        self._make = encoder
        self._stream = stream
        self._schema = schema
        self._copied = copied
        self._made = pa.schema([field for field in schema if field.name not in copied])
        self._like = like
        self._joiner = FooterJoiner(self._like)
        self._old_times = old_times if old_times is not None and old_times.names else None
        old = self._old_times.names if self._old_times is not None else ()
        self._new = [i for i, field in enumerate(schema) if field.name not in old]
        self._old = [i for i, field in enumerate(schema) if field.name in old]
        self._times: list[pa.RecordBatch] = []  # of the piece
        self._piece: _Piece | None = None
        self._files: list[ChunkFile] = []
        self._stream.write(MAGIC)

    def write(self, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        if self._piece is None:
            self._piece = _Piece(self._make, pa.schema([self._schema.field(i) for i in self._new]))
        self._piece.write(batch.select(self._new) if self._old else batch)
        if self._old:
            self._times.append(batch.select(self._old))
        if self._piece.size + sum(times.nbytes for times in self._times) >= _PIECE:
            self._end_piece()

    def write_group(self, file: Chunks, number: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Copy a row group of ``file``; ``batches`` have its rows of the columns that are not copied."""
        self._end_piece()
        if isinstance(file, ChunkFile) and file not in self._files:
            self._files.append(file)
        group = file.footer.groups[number]
        encoded = _Piece(self._make, self._made, group.rows)
        if len(self._made):
            for batch in batches:
                encoded.write(batch)
        data, made = encoded.close()
        if len(self._made) and [each.rows for each in made.groups] != [group.rows]:
            raise SinkError(
                f"The row group {number} of an input has {group.rows:,} rows, and the columns next to it were "
                f"encoded in another way, as {', '.join(f'{each.rows:,}' for each in made.groups) or 'no'} rows. "
                "Write with compression='zstd' or another codec, which copies no columns."
            )
        places = _Places(self._stream)
        for column in self._like.columns:
            name = self._copied.get(column.name)
            if name is None:
                own = _column(made, column.name)
                places.take(data, made, made.groups[0].chunks[own.first : own.leaves.stop], own.first)
            else:
                own = _column(file.footer, name)
                places.take(file, file.footer, group.chunks[own.first : own.leaves.stop], own.first)
        self._joiner.add(group.rows, places.done())

    def close(self) -> int:
        """Write the footer, once all files that were copied from are seen to be unchanged."""
        self._end_piece()
        for file in self._files:
            file.check_unchanged()
        self._files.clear()
        self._stream.write(self._joiner.footer())
        return self._joiner.rows

    def _end_piece(self) -> None:
        if self._piece is None:
            return
        data, footer = self._piece.close()
        self._piece = None
        times, of_times, rows = self._end_times([group.rows for group in footer.groups])
        for number, of_group in enumerate(rows):
            places = _Places(self._stream)
            for column in self._like.columns:
                bytes_, there = (times, of_times) if of_times.column(column.name) else (data, footer)
                own = _column(there, column.name)
                chunks = there.groups[number].chunks
                places.take(bytes_, there, chunks[own.first : own.leaves.stop], own.first)
            self._joiner.add(of_group, places.done())

    def _end_times(self, groups: list[int]) -> tuple[memoryview, Footer, list[int]]:
        """Encode the times of a piece in its row groups; of a piece that has only times, in one."""
        if self._old_times is None:
            return memoryview(b""), _NOTHING, groups
        table = pa.Table.from_batches(self._times)
        self._times = []
        groups = groups or [len(table)]
        data = self._old_times.encode(table, groups)
        return data, parsed(data), groups


class _Piece:
    """A Parquet file in memory, for its chunks; with ``group_rows``, of one row group."""

    def __init__(self, make: MakeEncoder, schema: pa.Schema, group_rows: int | None = None) -> None:
        self._bytes = KeptBytes()
        self._encoder = make(self._bytes, schema, group_rows) if len(schema) else None
        self.write = self._encoder.write if self._encoder is not None else lambda batch: None

    @property
    def size(self) -> int:
        return self._bytes.tell()

    def close(self) -> tuple[memoryview, Footer]:
        if self._encoder is None:
            return memoryview(b""), _NOTHING
        self._encoder.close()
        data = self._bytes.getbuffer()
        return data, parsed(data)


class _Places:
    """Lays the chunks of a row group behind one another in a stream; ranges of a file that touch are one copy."""

    def __init__(self, stream: StagedStream) -> None:
        self._stream = stream
        self._at = stream.size
        self._placed: list[Placed] = []
        self._range: tuple[Chunks | memoryview, int, int] | None = None

    def take(self, source: Chunks | memoryview, footer: Footer, chunks: Sequence[Chunk], first: int) -> None:
        """Take chunks, the first of which is that of leaf ``first`` of its footer."""
        for leaf, chunk in enumerate(chunks, first):
            self._placed.append(Placed(chunk, self._at, footer.ordered[leaf]))
            self._at += chunk.size
            if self._range is not None and self._range[0] is source and self._range[2] == chunk.start:
                self._range = source, self._range[1], chunk.stop
                continue
            self._flush()
            self._range = source, chunk.start, chunk.stop

    def done(self) -> list[Placed]:
        """Return the chunks in their new places, once their bytes are written."""
        self._flush()
        return self._placed

    def _flush(self) -> None:
        if self._range is None:
            return
        source, start, stop = self._range
        self._range = None
        if isinstance(source, memoryview):
            self._stream.write(source[start:stop])
        else:
            source.hand_on(start, stop, self._stream.write)


def parsed(data: memoryview) -> Footer:
    """Return the footer of a file in memory."""
    length = read_tail(bytes(data[-TAIL:]), len(data))
    end = len(data) - TAIL - length
    return parse(bytes(data[end:-TAIL]), end)


def _column(footer: Footer, name: str) -> Column:
    column = footer.column(name)
    assert column is not None, "it was there when its road was chosen"
    return column
