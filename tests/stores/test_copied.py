"""Columns of objects are copied as they are stored: the same parts as from files, by few requests."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from core.parquet.files import every_type, written
from headrace.core.parquet import chunks
from headrace.core.stores import objects
from headrace.errors import InputChanged
from headrace.sinks.parquet_joined import JoinedEncoder
from headrace.worker import copy_choice
from stores.outputs import copied as fetched


@pytest.fixture
def groups(monkeypatch):
    """The columns that were copied, by row group."""
    monkeypatch.setattr(copy_choice, "LEAST_ROWS", 1)
    monkeypatch.setattr(chunks, "REQUESTS", 1 << 30)
    found = []
    write_group = JoinedEncoder.write_group

    def counted(self, *arguments):
        found.append(sorted(self._copied))
        write_group(self, *arguments)

    monkeypatch.setattr(JoinedEncoder, "write_group", counted)
    return found


def doubled(batch):
    return batch["required"] * 2


def predicted(source, model=doubled, **options):
    data = hr.read_parquet(source).predict(model, inputs=["required"], output="twice")
    return data.with_options(**{"engine": "inline", "progress": False, **options})


def parts(folder: Path):
    return [path.read_bytes() for path in sorted(folder.glob("part-*"))]


def test_objects_give_the_parts_that_files_give(bucket, tmp_path, groups, monkeypatch):
    """Ranges that begin and end anywhere in what is fetched, into a folder and into the store."""
    table = every_type()
    files = {f"{n}.parquet": written(table.slice(n, 200), row_group_size=70) for n in range(2)}
    (tmp_path / "in").mkdir()
    for name, content in files.items():
        (tmp_path / "in" / name).write_bytes(content)
        bucket.put(f"in/{name}", content)
    said = hr.read_parquet(f"{bucket.url}/in").explain()
    assert "copied   as they are stored: flag, int8" in said and "not none: it has no type yet" in said
    predicted(tmp_path / "in").write_parquet(tmp_path / "here")
    expected = parts(tmp_path / "here")
    copied = len(groups)
    assert copied == 6 and len(groups[0]) == len(table.schema) - 1
    with monkeypatch.context() as patch:
        patch.setattr(objects, "REQUEST", 3_000)
        patch.setattr(objects, "_GAP", 100)
        predicted(f"{bucket.url}/in").write_parquet(tmp_path / "there")
    assert parts(tmp_path / "there") == expected
    predicted(f"{bucket.url}/in").write_parquet(f"{bucket.url}/out")
    assert parts(fetched(bucket, tmp_path / "out")) == expected
    assert hr.verify(f"{bucket.url}/out").state == "good"
    assert len(groups) == 3 * copied


def test_rejected_rows_of_objects(bucket, tmp_path, groups):
    table = pa.table({"required": range(400), "word": [f"word {i % 9}" for i in range(400)]})
    bucket.put("in/a.parquet", written(table, row_group_size=100))

    def model(batch):
        if np.isin(batch["required"], (120, 399)).any():
            raise ValueError("bad")
        return batch["required"] * 2

    data = predicted(f"{bucket.url}/in", model, on_error="reject", max_errors=10)
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected, len(groups)) == (398, 2, 2)
    left = [i for i in range(400) if i not in (120, 399)]
    made = pa.concat_tables([pq.read_table(path) for path in sorted((tmp_path / "out").glob("part-*"))])
    assert made["word"].to_pylist() == [f"word {i % 9}" for i in left]
    assert made["twice"].to_pylist() == [2 * i for i in left]


def test_an_object_that_changes_is_noticed(bucket, tmp_path, groups):
    table = pa.table({"required": np.arange(40_000), "x": np.random.default_rng(1).random(40_000)})
    path = bucket.put("a.parquet", written(table, row_group_size=10_000, use_dictionary=False))

    def model(batch):
        bucket.put("a.parquet", written(table.slice(1), row_group_size=10_000, use_dictionary=False))
        return batch["required"]

    with pytest.raises(InputChanged, match=re.escape(path)):
        predicted(path, model).write_parquet(tmp_path / "out")
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_damaged_pages_of_objects_are_told_as_ever(bucket, tmp_path, groups):
    table = pa.table({"required": np.arange(300), "x": np.arange(300.0)})
    data = bytearray(written(table, row_group_size=100))
    chunk = pq.read_metadata(pa.BufferReader(bytes(data))).row_group(1).column(1)
    data[chunk.data_page_offset : chunk.data_page_offset + 8] = b"\xff" * 8
    path = bucket.put("a.parquet", bytes(data))
    with pytest.raises(hr.errors.UnreadableFile, match="row group 1"):
        predicted(path).write_parquet(tmp_path / "out")


def test_few_requests_for_what_is_copied(bucket, proxy, tmp_path, groups, monkeypatch):
    monkeypatch.setattr(chunks, "REQUESTS", 24)
    chance = np.random.default_rng(3)
    columns = {f"c{number}": chance.integers(0, 1 << 62, 1 << 19) for number in range(8)}
    table = pa.table({"required": np.arange(1 << 19), **columns})
    content = written(table, row_group_size=1 << 17, compression="none", use_dictionary=False)
    assert len(content) > 36 << 20
    path = bucket.put("a.parquet", content)
    proxy.asked.clear()
    predicted(path).write_parquet(tmp_path / "out")
    asked = [each for each in proxy.asked if "range" in each.headers]
    assert len(groups) == 4 and len(proxy.asked) <= 30 * len(content) / (128 << 20) + 6  # and the beginning
    assert all("if-match" in each.headers for each in asked)
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", each.headers["range"]) for each in asked]
    assert sum(int(found[2]) - int(found[1]) + 1 for found in ranges if found) < 1.3 * len(content)
    made = pq.read_table(tmp_path / "out")
    assert made.drop(["twice"]).equals(table)
    bucket.put("a.parquet", written(table, row_group_size=1 << 14, compression="none", use_dictionary=False))
    assert "lies in many places, and decoding takes fewer requests" in predicted(path).explain()
    bucket.put("a.parquet", written(table[:1000], row_group_size=1 << 14))
    assert "it is a small object, and is fetched at once" in predicted(path).explain()


def test_row_groups_too_long_to_be_fetched_are_decoded(bucket, tmp_path, groups, monkeypatch):
    table = pa.table({"required": np.arange(200), "x": np.arange(200.0)})
    content = written(table, row_group_size=100)
    path = bucket.put("a.parquet", content)
    footer = pq.read_metadata(pa.BufferReader(content))
    of_groups = [[footer.row_group(n).column(i).total_compressed_size for i in range(2)] for n in range(2)]
    both = max(map(sum, of_groups))
    monkeypatch.setattr(chunks, "MOST_FETCHED", both - 1)
    said = hr.read_parquet(path).explain()
    assert "not required, x: its row groups in the store are longer than" in said
    predicted(path).write_parquet(tmp_path / "out")
    assert not groups and pq.read_table(tmp_path / "out")["x"].to_pylist() == list(range(200))
    monkeypatch.setattr(chunks, "MOST_FETCHED", both)
    predicted(path).write_parquet(tmp_path / "more")
    assert len(groups) == 2


def test_ranges_are_let_go_of_in_any_order(bucket):
    content = bytes(random.Random(1).randbytes(5_000))
    path = bucket.put("a.bin", content)
    hr.read_binary_files(path)
    from headrace.sources.lines import BinarySource

    source = BinarySource(path)
    source.splits()
    ranges = [(10 * i, 10 * i + 7) for i in range(400)]
    found = objects.RangesAhead(source.file(0).path, ranges)
    found.leave_out(*ranges[3])
    for start, stop in [*ranges[200:], *ranges[4:200], *ranges[:3]]:
        assert bytes(found.take(start, stop)) == content[start:stop]
    assert not found._spans
