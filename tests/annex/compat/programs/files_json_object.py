"""One object over several lines."""

import tempfile
from pathlib import Path

import ray

path = Path(tempfile.mkdtemp()) / "a.json"
path.write_text('{\n  "name": "one",\n  "values": [1, 2]\n}\n')
print(ray.data.read_json(str(path)).take_all())
