"""Samples in a tar file."""

import io
import json
import tarfile
import tempfile

import ray

path = tempfile.mkdtemp() + "/a.tar"
with tarfile.open(path, "w") as tar:
    for i in range(2):
        for suffix, content in (("txt", f"text {i}"), ("cls", str(i)), ("json", json.dumps({"a": i}))):
            entry = tarfile.TarInfo(f"s{i}.{suffix}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content.encode()))
for row in ray.data.read_webdataset(path).take_all():
    print({name: row[name] for name in sorted(row) if name != "__url__"})
