"""The benchmark finds what an engine got wrong before it counts its time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from bench import report, verify
from bench.workloads import documents

N = 1_000
RIGHT: dict[str, Any] = {
    "path": [f"/data/{i % 90}.jpg" for i in range(N)],
    "fare": np.arange(N) % 7 / 4,
    "time": np.arange(N).astype("M8[us]"),
    "prediction": np.sin(np.arange(N)).astype(np.float32),
}


def written(folder: Path, table: pa.Table, files: int = 1) -> verify.Output:
    folder.mkdir()
    rows = -(-table.num_rows // files)
    for number in range(files):
        pq.write_table(table.slice(number * rows, rows), folder / f"part-{number}.parquet")
    (folder / "_hidden").mkdir()
    pq.write_table(table, folder / "_hidden" / "staged.parquet")
    return verify.read(folder)


def changed(**columns: Any) -> pa.Table:
    return pa.table({**RIGHT, **columns})


def test_order_files_types_and_the_last_bits_do_not_matter(tmp_path: Path) -> None:
    expected = written(tmp_path / "a", changed())
    other = changed(
        path=[f"file:///elsewhere/{i % 90}.jpg" for i in range(N)],
        fare=RIGHT["fare"].astype(np.float32),
        time=RIGHT["time"].astype("M8[ns]"),
        prediction=(RIGHT["prediction"] + 1e-6).astype(np.float64),
    )
    other = other.take(pa.array(np.random.default_rng(0).permutation(N))).select(reversed(other.column_names))
    assert verify.difference(expected, written(tmp_path / "b", other, files=7)) is None
    assert expected.rows == N


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: changed().slice(1), "999 rows instead of 1,000"),
        (lambda: pa.concat_tables([changed().slice(1), changed().slice(5, 1)]), "are carried (of"),
        (lambda: changed().drop_columns("fare"), "other columns: fare"),
        (lambda: changed(fare=np.roll(RIGHT["fare"], 1)), "other values in the columns that are carried"),
        (lambda: changed(prediction=np.roll(RIGHT["prediction"], 1)), "other predictions in "),
        (lambda: changed(prediction=np.full(N, np.nan, np.float32)), "other predictions in 1,000 rows"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, made: Any, message: str) -> None:
    expected = written(tmp_path / "a", changed())
    assert message in str(verify.difference(expected, written(tmp_path / "b", made(), files=3)))


def test_vectors_are_compared_number_by_number(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).random((N, 8), np.float32)
    lists = pa.FixedSizeListArray.from_arrays(vectors.ravel(), 8)
    expected = written(tmp_path / "a", changed(prediction=lists))
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(vectors)
    assert verify.difference(expected, written(tmp_path / "b", changed(prediction=tensor))) is None
    vectors[17, 3] += 1
    wrong = changed(prediction=list(vectors))
    assert verify.difference(expected, written(tmp_path / "c", wrong)) == "other predictions in 1 rows"


def test_a_document_has_the_words_that_were_put_into_it() -> None:
    pytest.importorskip("pypdfium2")
    lines = [[f"word{page}x{line} (and) more." for line in range(20)] for page in range(3)]
    plain = [[line.replace("(", "").replace(")", "") for line in page] for page in lines]
    found = " ".join(documents.chunks(documents.pdf(plain))).split()
    assert found == " ".join(line for page in plain for line in page).split()


def test_the_price_is_that_of_the_time() -> None:
    assert report.price(3600, 1_000_000, 2.5) == 2.5
