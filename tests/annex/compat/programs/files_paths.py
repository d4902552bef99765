"""The path of its file beside each row."""

import json
import tempfile
from pathlib import Path

import ray

folder = Path(tempfile.mkdtemp())
for name in "ab":
    (folder / f"{name}.csv").write_text(f"x\n{ord(name)}\n")
    (folder / f"{name}.jsonl").write_text(json.dumps({"x": ord(name)}))
    (folder / f"{name}.txt").write_text(f"{name}\n")
for ds in (
    ray.data.read_csv([str(folder / "a.csv"), str(folder / "b.csv")], include_paths=True),
    ray.data.read_json([str(folder / "a.jsonl"), str(folder / "b.jsonl")], include_paths=True),
    ray.data.read_text([str(folder / "a.txt"), str(folder / "b.txt")], include_paths=True),
):
    rows = [
        {name: Path(value).name if name == "path" else value for name, value in row.items()}
        for row in ds.take_all()
    ]
    print(sorted(rows, key=lambda row: row["path"]))
