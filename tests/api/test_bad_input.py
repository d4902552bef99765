"""What a source cannot read takes the same road as rows that a step cannot process."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import headrace as hr
from headrace.errors import SourceError


def photos(folder: Path, count: int) -> Path:
    folder.mkdir()
    pixels = np.random.default_rng(3).integers(0, 256, (12, 16, 3), np.uint8)
    for i in range(count):
        Image.fromarray(np.roll(pixels, i, 0)).save(folder / f"{i:04d}.jpg")
    return folder


def test_photos(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", 200)
    bad = sorted(np.random.default_rng(5).permutation(200)[:27].tolist())
    for i in bad[:20]:
        path = folder / f"{i:04d}.jpg"
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    for i in bad[20:25]:
        (folder / f"{i:04d}.jpg").write_text("no photo at all")
    for i in bad[25:]:
        Image.new("L", (300, 300)).save(folder / f"{i:04d}.jpg")

    data = hr.read_images(str(folder), size=(8, 8), include_paths=True, max_pixels=50_000)
    data = data.map_batches(lambda b: b, num_cpus=1)
    data = data.predict(lambda b: b["image"].mean(axis=(1, 2, 3)), inputs=["image"], output="mean")
    data = data.with_options(progress=False, workers=2)
    with pytest.raises(SourceError, match=f"{bad[0]:04d}.jpg"):
        data.with_options(workers=1).write_parquet(tmp_path / "raise")
    result = data.drop_columns(["image"]).with_options(on_error="reject").write_parquet(tmp_path / "out")
    assert (result.ledger.read, result.rows, result.rejected) == (200, 173, 27)
    rejected = hr.read_rejected(tmp_path / "out").to_arrow()
    assert [int(Path(path).stem) for path in rejected.column("_file").to_pylist()] == bad
    assert set(rejected.column("_step").to_pylist()) == {"read"}
    written = [int(Path(path).stem) for path in pq.read_table(tmp_path / "out").column("path").to_pylist()]
    assert written == [i for i in range(200) if i not in bad]


def check(data: Any, out: Path, good: list[int], rows: list[int]) -> pa.Table:
    result = data.with_options(on_error="reject", progress=False).write_parquet(out)
    assert pq.read_table(out).column("id").to_pylist() == good
    assert result.ledger.read == result.rows + result.rejected
    rejected = hr.read_rejected(out).to_arrow()
    assert rejected.column("_row").to_pylist() == rows
    return rejected


def test_lines_of_csv_and_json(tmp_path: Path) -> None:
    text = "".join(f"{i},{'x' if i in (3, 500) else i * 2}\n" for i in range(1000))
    (tmp_path / "a.csv").write_text("id,n\n" + text)
    good = [i for i in range(1000) if i not in (3, 500)]
    data = hr.read_csv(str(tmp_path / "a.csv"), column_types={"n": "int64"})
    check(data.map_batches(lambda b: b), tmp_path / "csv", good, [3, 500])

    lines = ["{broken" if i == 700 else f'{{"id": {i}}}' for i in range(1000)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n")
    good = [i for i in range(1000) if i != 700]
    check(hr.read_json(str(tmp_path / "a.jsonl")), tmp_path / "json", good, [700])


def test_rows_that_the_source_and_a_step_refuse(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n" + "".join(f"{i},{'x' if i == 3 else i}\n" for i in range(100)))

    def picky(batch: Any) -> Any:
        if 50 in batch["n"]:
            raise ValueError("not 50")
        return batch

    data = hr.read_csv(str(tmp_path / "a.csv"), column_types={"n": "int64"})
    good = [i for i in range(100) if i not in (3, 50)]
    rejected = check(data.map_batches(picky), tmp_path / "out", good, [3, 50])
    assert rejected.column("id").to_pylist()[1] == 50, "what can be read is there"
    assert rejected.column("_step").to_pylist()[0] == "read"


def test_a_damaged_row_group(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"id": np.arange(3000)}), path, row_group_size=1000, use_dictionary=False, compression="zstd"
    )
    meta = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[meta.data_page_offset : meta.data_page_offset + 20] = bytes(20)
    path.write_bytes(data)
    result = (
        hr.read_parquet(str(path))
        .with_options(on_error="reject", progress=False)
        .write_parquet(tmp_path / "out")
    )
    assert (result.ledger.read, result.rejected) == (3000, 3000 - result.rows)
    ids = pq.read_table(tmp_path / "out").column("id").to_pylist()
    rejected = hr.read_rejected(tmp_path / "out").to_arrow().column("_row").to_pylist()
    assert sorted(ids + rejected) == list(range(3000)) and set(rejected) <= set(range(1000, 2000))


CANARY = "SECRET-7"
FAR = "x" * 1_000  # types are settled by the first megabyte
SPOILT = {
    "wide.csv": (hr.read_csv, f"id,name\n1,a\n2,{CANARY},x\n3,b\n"),
    "typed.csv": (hr.read_csv, "id,far\n" + f"1,{FAR}\n" * 1_500 + f"{CANARY},x\n2,x\n"),
    "open.csv": (hr.read_csv, 'id,name\n1,"' + "a\n" * 3 + f"{CANARY}\n"),
    "broken.json": (hr.read_json, f'{{"id": 1}}\n{{"id": "{CANARY}"\n{{"id": 2}}\n'),
    "first.json": (hr.read_json, f'{{"id": "{CANARY}"\n{{"id": 2}}\n'),
    "typed.json": (hr.read_json, f'{{"id": 1, "far": "{FAR}"}}\n' * 1_500 + f'{{"id": "{CANARY}"}}\n'),
}


@pytest.mark.parametrize("name", SPOILT)
def test_values_that_are_not_to_be_shown(name: str, tmp_path: Path, capfd: Any) -> None:
    reads, content = SPOILT[name]
    (tmp_path / name).write_text(content)
    try:
        data = reads(str(tmp_path / name)).with_options(show_data=False)
        for verb in (data.take_all, data.count, lambda: data.write_parquet(tmp_path / "raise")):
            try:
                verb()
            except SourceError as error:
                assert CANARY not in "".join(traceback.format_exception(error))
        out = tmp_path / "out"
        data.with_options(on_error="reject").write_parquet(out)
    except SourceError as error:  # the file as a whole makes no sense
        assert CANARY not in str(error)
    else:
        said = hr.read_rejected(out).to_arrow().column("_error").to_pylist()
        assert not any(CANARY in (text or "") for text in said)
        journal = b"".join(path.read_bytes() for path in (out / "_headrace").rglob("*") if path.is_file())
        assert CANARY.encode() not in journal
    assert CANARY not in "".join(capfd.readouterr())
