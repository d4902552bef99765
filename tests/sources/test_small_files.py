"""What is done once for each of many small files is little, and finds what it finds for one alone."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core.files.input_files import InputFile
from headrace.core.work import Split
from headrace.errors import ForeignOutput
from headrace.output.input_changes import check_apart
from headrace.sources.parquet.files import Footer, _footers
from headrace.sources.range import RangeSource

SHAPES = [
    pa.table({"id": [1, 2, None], "x": [0.5, 1.5, 2.5]}),
    pa.table({"id": [1, 2, 3], "x": [0.5, 1.5, 2.5]}),
    pa.table({"x": [0.5], "id": [2**60]}),
    pa.table({"id": pa.array([None], pa.int64()), "x": [[1.5]]}),
    pa.table({"box": [{"id": 1, "x": 2}], "id": [None]}),
    pa.table({"id": [1, 2], "x": [0.5, 1.5]}).replace_schema_metadata({"k": "v"}),
    pa.table({f"a rather long name of column {i}": [i] for i in range(900)} | {"id": [7], "x": [0.25]}),
]


def test_work_for_a_split_does_not_grow_with_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    length = Split.length.fget  # type: ignore[attr-defined]

    def counted(self: Split) -> int:
        nonlocal asked
        asked += 1
        return length(self)  # type: ignore[no-any-return]

    monkeypatch.setattr(Split, "length", property(counted))
    splits = 1_000
    data = hr.Dataset.from_source(RangeSource(splits, rows_per_split=1)).map_batches(lambda batch: batch)
    result = data.with_options(engine="inline", shard_rows=splits).write_parquet(tmp_path / "out")
    assert result.rows == splits
    assert asked < 60 * splits


@pytest.mark.parametrize("columns", [None, frozenset(("id", "x")), frozenset(("id",))])
def test_footers_in_one_go_are_those_of_each_file(tmp_path: Path, columns: frozenset[str] | None) -> None:
    files = []
    for number in range(21):
        path = tmp_path / f"{number:02}.parquet"
        pq.write_table(SHAPES[number % 7 if number < 14 else number // 3 % 7], path, row_group_size=2)
        files.append(InputFile(str(path), path.stat().st_size, path.stat().st_mtime_ns))
    alone: list[Footer] = [footer for file in files for footer in _footers([file], columns)]
    together = _footers(files, columns)
    assert together == alone
    for footer, file in zip(together, files, strict=True):
        metadata = pq.read_metadata(file.path)
        assert footer.schema.equals(metadata.schema.to_arrow_schema(), check_metadata=True)
        assert [rows for rows, _ in footer.groups] == [
            metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)
        ]
    assert [dict(footer.nulls) for footer in together[:5]] == [
        {"id": False},
        {},
        {},
        {"id": False},
        {"id": False},
    ]


def test_rows_of_many_small_files_of_many_kinds(tmp_path: Path) -> None:
    wanted = []
    for number in range(150):
        table = pa.table({"id": [number, number + 1000], "text": ["a" * (number * 40), None]})
        if number % 3 == 0:
            table = table.select(["text", "id"])
        pq.write_table(table, tmp_path / f"{number:03}.parquet", compression=["zstd", "none"][number % 2])
        wanted += table.select(["id", "text"]).to_pylist()
    found = hr.read_parquet(tmp_path, columns=["id", "text"]).with_options(engine="inline").take_all()
    assert found == wanted


def test_an_input_in_the_output_is_refused_behind_links_too(tmp_path: Path) -> None:
    out, beside = tmp_path / "out", tmp_path / "in"
    out.mkdir()
    beside.mkdir()
    (out / "part.parquet").touch()
    (beside / "own.parquet").touch()
    (beside / "link.parquet").symlink_to(out / "part.parquet")
    (tmp_path / "other").symlink_to(out)

    def check(*paths: Path) -> None:
        check_apart(str(out), [], [InputFile(os.fspath(path), 0, 0) for path in paths])

    check(beside / "own.parquet")
    for path in (out / "part.parquet", beside / "link.parquet", tmp_path / "other" / "part.parquet"):
        with pytest.raises(ForeignOutput, match="lies inside the output"):
            check(beside / "own.parquet", path)
