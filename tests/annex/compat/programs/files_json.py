"""JSON lines written and read again."""

import tempfile
from pathlib import Path

import ray

folder = tempfile.mkdtemp()
rows = [{"i": i, "l": [i, None], "d": {"a": str(i)}, "n": None if i else 1.5} for i in range(3)]
ray.data.from_items(rows).write_json(folder)
print(sorted(ray.data.read_json(folder).take_all(), key=lambda row: row["i"]) == rows)
path = Path(tempfile.mkdtemp()) / "a.jsonl"
path.write_text('{"x": 1, "y": "a"}\n{"x": 2}\n')
print(ray.data.read_json(str(path)).take_all())
array = Path(tempfile.mkdtemp()) / "a.json"
array.write_text('[{"x": 1}, {"x": 2}]')
print(ray.data.read_json(str(array)).take_all())
