"""Footers: what is copied is what was there, and a footer that was tampered with is refused, or says the same."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.core.parquet import compact
from headrace.core.parquet.compact import NotUnderstood
from headrace.core.parquet.footer import CODECS, parse, read_tail, why_not_copied
from headrace.errors import InputChanged

from .files import WAYS, every_type, footer_of, joined, opened, parsed, written


@pytest.mark.parametrize("way", WAYS)
def test_every_type_written_in_every_way_is_copied(way, tmp_path):
    table = every_type()
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    options = {"row_group_size": 110, **WAYS[way]}
    for path, part in zip(paths, (table, table.slice(40, 200)), strict=True):
        path.write_bytes(written(part, **options))
    like = written(table.slice(0, 0), **WAYS[way])
    made = joined(paths, table.schema.names, like)
    together = pa.concat_tables([pq.read_table(path) for path in paths])
    back = pq.ParquetFile(pa.BufferReader(made))
    assert back.schema_arrow.equals(pq.read_schema(paths[0]), check_metadata=True)
    assert back.read().combine_chunks().equals(together.combine_chunks())  # dictionaries are cut otherwise
    originals = [pq.read_metadata(path) for path in paths]
    groups = [one.row_group(i) for one in originals for i in range(one.num_row_groups)]
    assert back.metadata.num_row_groups == len(groups)
    for i, group in enumerate(groups):
        copy = back.metadata.row_group(i)
        assert (copy.num_rows, copy.total_byte_size) == (group.num_rows, group.total_byte_size)
        for j in range(group.num_columns):
            mine, theirs = copy.column(j), group.column(j)
            assert mine.encodings == theirs.encodings and mine.compression == theirs.compression
            assert mine.is_stats_set == theirs.is_stats_set
            if theirs.is_stats_set:
                assert mine.statistics.equals(theirs.statistics)
            assert not mine.has_offset_index and not mine.has_column_index


def test_the_footer_agrees_with_arrow():
    table = every_type()
    data = written(table, row_group_size=100)
    mine, theirs = parsed(data), pq.read_metadata(pa.BufferReader(data))
    assert [column.name for column in mine.columns] == table.schema.names
    assert mine.created_by == theirs.created_by
    assert [len(group.chunks) for group in mine.groups] == [theirs.num_columns] * 3
    for i, group in enumerate(mine.groups):
        for j, chunk in enumerate(group.chunks):
            told = theirs.row_group(i).column(j)
            assert chunk.values == told.num_values and chunk.size == told.total_compressed_size
            assert CODECS[compact.number(chunk.meta[4])] == told.compression.lower() == chunk.codec
            assert chunk.nulls == (told.statistics.null_count if told.is_stats_set else chunk.nulls)
    leaves = [".".join(map(bytes.decode, path)) for column in mine.columns for path in column.paths]
    assert leaves == [theirs.schema.column(j).path for j in range(theirs.num_columns)]


@pytest.mark.parametrize(
    ("writer", "copied"),
    [
        ("parquet-cpp-arrow version 25.0.1", True),
        ("parquet-mr version 1.12.2 (build 77e)", True),
        ("parquet-mr version 1.10.0", True),
        ("DuckDB version v1.3.0 (build 1)", True),
        ("Polars", True),
        ("parquet-rs version 55.0.0", True),
        ("parquet-mr version 1.8.1 (build 4a)", False),
        ("parquet-mr", False),
        ("parquet-cpp version 1.5.1-SNAPSHOT", False),
        ("parquet-cpp-arrow version 2.0.0", False),
        ("impala version 1.0", False),
        ("", False),
    ],
)
def test_writers_that_readers_treat_apart_are_not_copied(writer, copied):
    assert (why_not_copied(writer) == "") is copied


def test_statistics_without_a_declared_order_are_left_out(tmp_path):
    path = tmp_path / "a.parquet"
    data = written(pa.table({"x": [3, 1, None]}))
    footer = footer_of(data)
    fields = parsed(data)
    assert fields.ordered == (True,)
    orders = compact.write_struct({7: fields.fields[7]})
    at = footer.index(orders[1:-1])
    assert footer[at - 1] >> 4 == 1  # the field before it is number 6
    old = footer[: at - 1] + footer[at - 1 + len(orders) - 1 :]
    path.write_bytes(data[: -len(footer) - 8] + old + len(old).to_bytes(4, "little") + b"PAR1")
    assert opened(path).footer.ordered == (False,)
    made = pq.read_metadata(pa.BufferReader(joined([path], ["x"], data))).row_group(0).column(0).statistics
    assert made.null_count == 1 and not made.has_min_max


def test_a_file_that_changes_is_noticed_and_one_that_is_cut_is_refused(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(written(pa.table({"x": [1, 2]})))
    file = opened(path)
    path.write_bytes(path.read_bytes())
    with pytest.raises(InputChanged):
        file.check_unchanged()
    for data in (b"", b"PAR1", b"PAR1PARE", path.read_bytes()[:-1], b"\xff" * 8 + b"PAR1"):
        path.write_bytes(data)
        with pytest.raises(NotUnderstood):
            opened(path)


def test_pages_that_do_not_fill_their_chunk_are_refused(tmp_path):
    path = tmp_path / "a.parquet"
    data = written(pa.table({"x": list(range(1000))}), use_dictionary=False, data_page_size=512)
    path.write_bytes(data)
    file = opened(path)
    chunk = file.footer.groups[0].chunks[0]
    file.check(chunk, 1000)
    refused = 0
    for at in range(chunk.start, chunk.start + 30):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])
        file = opened(path)
        try:
            file.check(file.footer.groups[0].chunks[0], 1000)
        except NotUnderstood:
            refused += 1
    assert refused >= 10  # statistics of a page, and its values, are for readers


def _tampered(data: bytes, chance: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(made)) if made else 0
        how = chance.randrange(5)
        if how == 0 and made:
            made[at] ^= 1 << chance.randrange(8)
        elif how == 1 and made:
            made[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif how == 2:
            del made[at : at + chance.choice((1, 1, 4, 40))]
        elif how == 3:
            made[at:at] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 1, 8))))
        else:
            other = chance.randrange(len(made)) if made else 0
            made[at : at + 8] = made[other : other + 8]
    return bytes(made)


def _fuzz(cases: int, seed: int) -> tuple[int, int]:
    """Parse mutated footers: what is understood must be what Arrow understands, if that does."""
    chance = random.Random(seed)
    names = ["flag", "int32", "string", "lists", "pairs", "struct", "required", "coded"]
    data = written(every_type(60).select(names), row_group_size=25)
    footer, end = footer_of(data), len(data) - 8 - len(footer_of(data))
    refused = understood = 0
    for _ in range(cases):
        mutated = _tampered(footer, chance)
        try:
            mine = parse(mutated, end)
        except NotUnderstood:
            refused += 1
            continue
        understood += 1
        whole = data[:end] + mutated + len(mutated).to_bytes(4, "little") + b"PAR1"
        try:
            theirs = pq.read_metadata(pa.BufferReader(whole))
        except (pa.ArrowException, OSError):
            continue  # stricter than we are: a reader opens the file with Arrow, too
        _agree(mine, theirs)
    return refused, understood


def _agree(mine, theirs) -> None:
    assert len(mine.groups) == theirs.num_row_groups
    for i, group in enumerate(mine.groups):
        told = theirs.row_group(i)
        assert group.rows == told.num_rows
        assert len(group.chunks) == theirs.num_columns


def test_tampered_footers_are_refused_or_mean_what_arrow_reads():
    refused, understood = _fuzz(3_000, 1)
    assert refused > 1_000 and understood > 100


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_a_million_tampered_footers():
    for seed in range(100):
        _fuzz(10_000, seed)


def test_the_tail_is_checked():
    assert read_tail(b"\x05\0\0\0PAR1", 100) == 5
    for tail, size in ((b"\x05\0\0\0PARE", 100), (b"\x5f\0\0\0PAR1", 100), (b"\x05\0\0PAR1", 100)):
        with pytest.raises(NotUnderstood):
            read_tail(tail, size)
