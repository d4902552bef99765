"""A job that is killed with kill -9 in the middle, twice, and goes on with the same command."""

import os
import signal
import subprocess
import sys

import headrace as hr

ROWS = 200_000


def fare(batch):
    for number, row in enumerate((60_000, 140_000)):
        if row in batch["id"] and not os.path.exists(f"happened-{number}"):
            open(f"happened-{number}", "w").close()
            os.kill(os.getppid(), signal.SIGKILL)  # the program that started this worker
    return 3.0 + batch["id"] * 2.5


def job():
    rides = hr.range(ROWS).predict(fare, inputs=["id"], output="fare").with_options(shard_rows=10_000)
    rides = rides.accumulate(total=hr.Sum("fare"))
    return rides.write_parquet("fares/")


if __name__ == "__main__":
    if "--job" in sys.argv:
        job()
        sys.exit()
    codes = [subprocess.run([sys.executable, __file__, "--job"]).returncode for _ in range(3)]
    assert codes == [-signal.SIGKILL, -signal.SIGKILL, 0], codes
    result = job()
    assert (result.rows, result.rejected) == (ROWS, 0)
    assert result.metrics["total"] == sum(3.0 + i * 2.5 for i in range(ROWS))
    fares = hr.read_parquet("fares/").to_pandas()
    assert fares["id"].tolist() == list(range(ROWS))
    assert (fares["fare"] == 3.0 + fares["id"] * 2.5).all()
