"""The command line alone: a job, its check, and what it says to wrong input."""

import csv
import json
import subprocess
import sys


def headrace(*words):
    done = subprocess.run([sys.executable, "-m", "headrace", *words], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    with open("rides.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "miles"])
        writer.writerows([i, i / 4] for i in range(2_000))
    with open("fares.py", "w") as file:
        file.write("def fare(batch):\n    return 3.0 + 2.5 * batch['miles']\n")

    job = ["predict", "fares:fare", "rides.csv", "-o", "fares", "--inputs", "miles", "--output", "fare"]
    for _ in range(2):
        code, _, error = headrace(*job)
        assert code == 0, error
    assert headrace("verify", "fares")[0] == 0
    code, out, _ = headrace("status", "fares", "--json")
    assert code == 0 and json.loads(out)["rows_written"] == 2_000, out
    import pyarrow.parquet as pq

    rows = pq.read_table("fares").to_pylist()
    assert [(row["id"], row["fare"]) for row in rows] == [(i, 3.0 + 2.5 * i / 4) for i in range(2_000)]

    for wrong, word in [
        (["predict", "fares:fair", *job[2:]], "fare"),
        ([*job[:5], "--inputs", "mils", "--output", "fare"], "miles"),
    ]:
        code, _, error = headrace(*wrong)
        assert code != 0 and word in error and "Traceback" not in error, (wrong, error)
