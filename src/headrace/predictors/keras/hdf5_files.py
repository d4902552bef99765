"""HDF5 files, tried in a process of their own before anybody reads them here.

The library trusts its files: a damaged one of 21 KB made it take 3.2 GiB, others end the process. So a child walks
through all that the file holds, with limits on memory and time, and refuses what weights never are: links, storage in
other files, arrays bigger than the file. What the child has read can be read here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

from headrace.core.files.model_files import NotReadable

SECONDS = 8
"""CPU time of the child; its headers are read in a hundredth of one."""

# Runs in the child, where nothing of ours is imported: it takes a quarter of a second, most of it for h5py.
_TRIAL = """
import io, os, resource, sys, zipfile
import h5py, numpy
path, seconds, growth = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
class Refused(Exception): pass
def walk(file, size):
    total = found = 0
    seen, waiting = set(), [(file, 0)]
    while waiting:
        each, depth = waiting.pop()
        address = h5py.h5o.get_info(each.id).addr
        if address in seen:
            continue
        seen.add(address)
        if depth > 100 or len(seen) > 1_000_000:
            raise Refused("it nests too deep, or holds more than any model")
        for name in each.attrs:
            each.attrs[name]
        if isinstance(each, h5py.Dataset):
            if each.external or each.is_virtual:
                raise Refused("an array in it lies in another file")
            if each.dtype.hasobject:
                each[()]
            elif each.chunks is None:
                total += each.nbytes
                if each.id.get_storage_size() != each.nbytes or total > size:
                    raise Refused("an array in it is bigger than the file")
            else:
                found += each.nbytes
                if found > max(256 << 20, 20 * size):
                    raise Refused("its arrays inflate to far more than weights do")
                for part in each.iter_chunks():
                    each[part]
        elif isinstance(each, h5py.Group):
            for name in each:
                if not isinstance(each.get(name, getlink=True), h5py.HardLink):
                    raise Refused("it holds a link")
                waiting.append((each[name], depth + 1))
def tried(file, size):
    with h5py.File(file, "r") as opened:
        walk(opened, size)
with open("/proc/self/statm") if os.path.exists("/proc/self/statm") else io.StringIO("0") as statm:
    growth += int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (growth, growth))
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
try:
    if zipfile.is_zipfile(path) and not h5py.is_hdf5(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if entry.filename.endswith(".h5"):
                    tried(io.BytesIO(archive.read(entry)), entry.file_size)
    else:
        tried(path, os.path.getsize(path))
except Refused as error:
    print(error)
    sys.exit(3)
except MemoryError:
    print("it takes far more memory than it is big")
    sys.exit(3)
except Exception as error:
    print(str(error) or type(error).__name__)
    sys.exit(3)
"""


def check(path: str) -> None:
    """Raise ``NotReadable`` unless a file, or each HDF5 file in an archive, can be read within its limits."""
    own = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.run(
        [sys.executable, "-c", _TRIAL, path, str(SECONDS), str((256 << 20) + 2 * _size(path))],
        env={**os.environ, **own},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if child.returncode == 3:
        raise NotReadable(child.stdout.decode(errors="replace").strip())
    if child.returncode:
        said = child.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        how = (
            f"a signal ({-child.returncode})"
            if child.returncode < 0
            else f"status {child.returncode}: {said}"
        )
        raise NotReadable(f"reading it in a process of its own ended that by {how}")


def _size(path: str) -> int:
    """Return the bytes of the file, or of the biggest HDF5 file in an archive."""
    if not zipfile.is_zipfile(path):
        return os.path.getsize(path)
    with zipfile.ZipFile(path) as archive:
        return max(
            (each.file_size for each in archive.infolist() if each.filename.endswith(".h5")), default=0
        )
