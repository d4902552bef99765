"""A disk that is full, at each place where a query writes: our error, nothing half-visible; and it goes on with room.

The disk is a small one in memory, in a mount namespace of its own, so that nothing is left behind.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace import errors

ROWS = 400_000
Rows = Callable[[hr.Dataset], hr.Dataset]


def doubled(batch: dict) -> dict:
    return {**batch, "y": batch["x"] * 2}


# What fills it: MiB that there are, the part that is said to be full, the bytes of memory, and the rows.
CASES: dict[str, tuple[int, str, str | None, Rows]] = {
    "an input": (2, "input-0", None, lambda data: data.map_batches(doubled).sort("x")),
    "what spills": (
        2,
        "DuckDB cannot write",
        "64MiB",
        lambda data: hr.sql(
            "SELECT max(n) AS n FROM (SELECT row_number() OVER (ORDER BY md5(i::VARCHAR), x) AS n FROM t)",
            t=data,
        ),
    ),
    "the result": (3, "DuckDB cannot write", None, lambda data: data.sort("x")),
    "its groups": (
        13,
        "queries",
        None,
        lambda data: data.with_column("g", lambda batch: batch["i"] % 9).groupby("g").map_groups(doubled),
    ),
    "the output": (9, "staging", None, lambda data: data.sort("x").map_batches(doubled)),
}


def inside(name: str, disk: Path, source: Path) -> None:
    """Run with too little room, and again with enough; the disk is mounted here, in a namespace of our own."""
    size, place, memory, rows = CASES[name]
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "tmpfs", str(disk)], check=True)
    data = rows(hr.read_parquet(source)).with_options(engine="inline", progress=False, report=False)
    small = data.with_options(memory_limit=memory) if memory else data
    with pytest.raises(errors.OutputWriteFailed, match=f"(?s){place}.*(Free|run the same)") as raised:
        small.write_parquet(disk / "out")
    assert str(disk) in str(raised.value), raised.value
    assert not [*disk.glob("out/_SUCCESS"), *disk.glob("out/_headrace/queries/*/made")]
    assert not [*disk.glob("out/_headrace/queries/*/spill"), *disk.glob("**/*.groups")]
    del raised
    subprocess.run(["mount", "-o", "remount,size=400m", "tmpfs", str(disk)], check=True)
    result = data.write_parquet(disk / "out")
    expected = data.to_arrow()
    assert result.rows == len(expected) and hr.verify(disk / "out").good
    assert (
        pq.read_table(disk / "out")
        .sort_by(expected.column_names[0])
        .equals(expected.sort_by(expected.column_names[0]))
    )
    assert not (disk / "out" / "_headrace" / "queries").exists()


@pytest.mark.parametrize("name", CASES)
def test_a_full_disk(tmp_path: Path, name: str) -> None:
    disk, source = tmp_path / "disk", tmp_path / "rows.parquet"
    disk.mkdir()
    own = ["unshare", "--mount", *(["--map-root-user"] if os.geteuid() else [])]
    try:
        mount = [*own, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
        subprocess.run(mount, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"a disk of our own cannot be mounted here: {error}")
    numbers = np.random.default_rng(0).random(ROWS)
    pq.write_table(pa.table({"i": np.arange(ROWS), "x": numbers}), source, row_group_size=ROWS // 8)
    text = "import sys; from pathlib import Path; from annex.queries.test_full_disk import inside; "
    text += "inside(sys.argv[1], *map(Path, sys.argv[2:]))"
    found = subprocess.run(
        [*own, sys.executable, "-c", text, name, str(disk), str(source)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stderr
