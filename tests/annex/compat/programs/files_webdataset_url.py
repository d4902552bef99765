"""The path of a sample's tar file: a column that is asked for, as it is for other formats."""

import io
import tarfile
import tempfile

import ray

path = tempfile.mkdtemp() + "/a.tar"
with tarfile.open(path, "w") as tar:
    entry = tarfile.TarInfo("s.txt")
    entry.size = 1
    tar.addfile(entry, io.BytesIO(b"x"))
print(sorted(ray.data.read_webdataset(path).take(1)[0]))
