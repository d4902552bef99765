"""Lines of text."""

import tempfile
from pathlib import Path

import ray

path = Path(tempfile.mkdtemp()) / "a.txt"
path.write_text("one\ntwo words\n\nüber\n")
print(ray.data.read_text(str(path), drop_empty_lines=True).take_all())
print(
    ray.data.read_text([str(path)], drop_empty_lines=True).map(lambda row: {"n": len(row["text"])}).take_all()
)
