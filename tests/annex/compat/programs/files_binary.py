"""Files as bytes, with their paths."""

import tempfile
from pathlib import Path

import ray

folder = Path(tempfile.mkdtemp())
for name in ("a.bin", "b.bin"):
    (folder / name).write_bytes(name.encode() * 2)
print(ray.data.read_binary_files(str(folder)).take_all())
found = ray.data.read_binary_files([str(folder / "b.bin")], include_paths=True).take_all()
print([(row["bytes"], Path(row["path"]).name) for row in found])
