"""``python -m bench.small_jobs``: a job that is done in a tenth of a second, once its libraries are imported.

A pipeline of scikit-learn predicts for 54,000 rows of one Parquet file. Whole processes in turn: Headrace as it is,
with ``engine="inline"``, with ``workers=2``, and Daft where it is installed. Beside the whole process, what the verb
takes once the model is there. The bars are for whole processes: 1.1 times inline and 1.3 times Daft; one file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 54_000
FEATURES = [f"x{i}" for i in range(8)]
BARS = {"inline": 1.1, "daft": 1.3}
OPTIONS: dict[str, dict[str, Any]] = {"here": {}, "inline": {"engine": "inline"}, "workers": {"workers": 2}}


def make(folder: Path) -> None:
    """Write the rows, and a pipeline that was fitted to them."""
    import joblib
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    points = np.random.default_rng(0).normal(size=(ROWS, len(FEATURES))).astype(np.float32)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    joblib.dump(model.fit(points, points[:, 0] + points[:, 1] ** 2 > 1), folder / "model.joblib")
    columns = dict(zip(FEATURES, points.T, strict=True))
    pq.write_table(pa.table({"id": np.arange(ROWS), **columns}), folder / "points.parquet")


def here(model: Any, source: str, out: str, way: str) -> None:
    import headrace as hr

    data = hr.read_parquet(source).predict(model, inputs=FEATURES, output="label")
    data.with_options(progress=False, **OPTIONS[way]).write_parquet(out)


def daft(model: Any, source: str, out: str) -> None:
    import daft

    @daft.func.batch(return_dtype=daft.DataType.bool())
    def label(*columns: Any) -> Any:
        return model.predict(np.stack([column.to_arrow().to_numpy() for column in columns], 1))

    frame = daft.read_parquet(source)
    frame.with_column("label", label(*map(daft.col, FEATURES))).write_parquet(out)


def run(way: str, folder: Path, out: str) -> None:
    """Run one way in this process; print how many seconds the verb took."""
    import joblib

    importlib.import_module("daft" if way == "daft" else "headrace")
    model = joblib.load(folder / "model.joblib")
    began = time.perf_counter()
    source = str(folder / "points.parquet")
    daft(model, source, out) if way == "daft" else here(model, source, out, way)
    print(json.dumps(time.perf_counter() - began))


def timed(way: str, folder: Path, out: Path) -> tuple[float, float]:
    """Return the seconds of a whole process, and of its verb."""
    command = [sys.executable, "-m", "bench.small_jobs", "--run", way, str(folder), str(out)]
    began = time.perf_counter()
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - began
    table = pq.read_table(out)
    if table.num_rows != ROWS or table["label"].to_numpy().sum() not in range(1, ROWS):
        raise SystemExit(f"{way}: the rows are not those of the input")
    return seconds, float(found.stdout.split()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        way, folder, out = options.run
        run(way, Path(folder), out)
        return 0
    ways = [*OPTIONS, *(["daft"] if importlib.util.find_spec("daft") else [])]
    readings: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="small-") as name:
        folder = Path(name)
        make(folder)
        for number in range(options.rounds):
            for way in ways:
                readings[way].append(timed(way, folder, folder / f"{way}-{number}"))
        files = {way: len(list((folder / f"{way}-0").glob("*.parquet"))) for way in ways}
    print(f"{'way':9}{'process':>9}{'verb':>8}{'files':>7}{'here is':>9}{'bar':>6}")
    missed = files["here"] != 1
    for way in ways:
        whole, verb = (statistics.median(each) for each in zip(*readings[way], strict=True))
        ratio = statistics.median(
            mine[0] / other[0] for mine, other in zip(readings["here"], readings[way], strict=True)
        )
        bar = BARS.get(way)
        missed |= bar is not None and ratio > bar
        print(f"{way:9}{whole:>8.2f}s{verb:>7.2f}s{files[way]:>7}{ratio:>8.2f}×{bar or '':>6}")
    return int(missed)


if __name__ == "__main__":
    raise SystemExit(main())
