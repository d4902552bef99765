"""What stands in examples/fleet: run where it can be, and read by what would read it where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

import headrace as hr

FOLDER = Path(__file__).parents[3] / "examples" / "fleet"


def test_two_machines_by_the_shell_loop(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for i in range(4):
        pq.write_table(
            pa.table({"x": [float(i * 1_500 + j) for j in range(1_500)]}), tmp_path / "in" / f"{i}.parquet"
        )
    environment = {**os.environ, "PYTHON": sys.executable, "HEADRACE_PROGRESS": "off"}
    ran = subprocess.run(
        [FOLDER / "ssh.sh", FOLDER, tmp_path / "in", tmp_path / "out"],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.stdout.count(f"6,000 rows in {tmp_path / 'out'}") == 2, ran.stderr
    rows = hr.read_parquet(tmp_path / "out").with_options(engine="inline").to_arrow()
    assert rows["score"].to_pylist() == [2.0 * i for i in range(6_000)]


def test_manifests_name_the_program() -> None:
    job = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert job["spec"]["completions"] == job["spec"]["parallelism"] > 1
    assert container["command"][:2] == ["python", "job.py"] and len(container["command"]) == 4
    assert yaml.safe_load((FOLDER / "sky.yaml").read_text())["run"].startswith("python job.py ")
    assert "python job.py" in (FOLDER / "slurm.sbatch").read_text()
    subprocess.run(["bash", "-n", FOLDER / "slurm.sbatch"], check=True)
