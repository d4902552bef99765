"""Lines without text, where nothing is said of them."""

import tempfile
from pathlib import Path

import ray

path = Path(tempfile.mkdtemp()) / "a.txt"
path.write_text("one\n\ntwo\n")
print(ray.data.read_text(str(path)).take_all())
