"""A nightly job: each night there are more files, and only these are read."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr


def fare(batch):
    return 3.0 + 2.5 * batch["miles"]


def night():
    rides = hr.read_parquet("rides/").predict(fare, inputs=["miles"], output="fare")
    return rides.write_parquet("fares/", incremental=True)


if __name__ == "__main__":
    Path("rides").mkdir()
    for day in range(4):
        ids = list(range(day * 100, day * 100 + 100))
        pq.write_table(pa.table({"id": ids, "miles": [i / 8 for i in ids]}), f"rides/{day}.parquet")
        for _ in range(2):
            result = night()
            assert result.rows == 100 * (day + 1)
            assert [run["rows"] for run in result.runs] == [100] * (day + 1)
    rows = pq.read_table("fares/").to_pylist()
    assert sorted((row["id"], row["fare"]) for row in rows) == [(i, 3.0 + 2.5 * i / 8) for i in range(400)]
