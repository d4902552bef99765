"""How long will it take, before a long run begins? The shell says it, and what it will cost."""

import json
import subprocess
import sys

import headrace as hr

MODEL = "def slow(batch):\n    return [sum(range(2_000)) + i for i in batch['id']]\n"

if __name__ == "__main__":
    with open("model.py", "w") as file:
        file.write(MODEL)
    hr.range(20_000).write_parquet("rides/")
    words = ["estimate", "model:slow", "rides", "--inputs", "id", "--seconds", "0.5", "--json"]
    done = subprocess.run([sys.executable, "-m", "headrace", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = json.loads(done.stdout)
    assert expected["rows"]["likely"] == 20_000, expected
    assert 0 < expected["seconds"]["likely"] < 3_600, expected
