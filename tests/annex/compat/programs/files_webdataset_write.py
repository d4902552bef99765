"""Samples written to a tar file, and read again."""

import tempfile

import ray

folder = tempfile.mkdtemp()
rows = [{"__key__": f"s{i}", "txt": f"text {i}", "cls": i} for i in range(3)]
ray.data.from_items(rows).write_webdataset(folder)
for row in sorted(ray.data.read_webdataset(folder).take_all(), key=lambda row: row["__key__"]):
    print({name: row[name] for name in sorted(row) if name != "__url__"})
