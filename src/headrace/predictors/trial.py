"""A model file is loaded once in a process of its own, before the user's process loads it.

Readers of models trust the sizes and indices in a file: a damaged one can end the process, hang it,
or fill the memory.
A worker may die of that, and the run says so. In the process of the user's program the child dies instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

from headrace.core.files.artifacts import Artifact
from headrace.core.files.model_files import NotReadable
from headrace.core.human import size
from headrace.core.process import become_worker, is_worker

SECONDS = 60
"""CPU time of a trial. The libraries themselves take up to ten seconds to import."""
MEMORY = 4 << 30
"""Bytes that a trial may use, and four times the size of the file on top."""

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000  # https://man7.org/linux/man-pages/man2/unshare.2.html
_OUT_OF_MEMORY = 3
_tried: set[tuple[str, str]] = set()


def try_elsewhere(predictor: Any, artifact: Artifact) -> None:
    """Load a predictor's file in a child, and predict one row, unless this process is a worker or did so before.

    Raises ``NotReadable`` if the child dies, takes more than ``SECONDS`` or more than ``MEMORY``. An error that the
    library raises is no reason: this process gets the same one.
    """
    if is_worker():
        return
    known = (artifact.path, artifact.digest())
    if known in _tried:
        return
    import cloudpickle

    limit = MEMORY + 4 * os.path.getsize(artifact.path)
    own = {"PYTHONPATH": os.pathsep.join(each for each in sys.path if each), "OPENBLAS_NUM_THREADS": "1"}
    try:
        child = subprocess.run(
            [
                sys.executable,
                "-c",
                "from headrace.predictors import trial; trial.main()",
                str(limit),
                str(SECONDS),
            ],
            env={**os.environ, **own},
            input=cloudpickle.dumps(predictor),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=4 * SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NotReadable(
            f"a trial in a process of its own did not end within {4 * SECONDS} seconds"
        ) from None
    if child.returncode == _OUT_OF_MEMORY:
        raise NotReadable(f"a trial in a process of its own needed more than {size(limit)} of memory")
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        raise NotReadable(f"a trial in a process of its own did not end within {SECONDS} seconds of CPU time")
    if child.returncode < 0:
        how = signal.Signals(-child.returncode).name
        raise NotReadable(f"a trial in a process of its own was ended by {how}")
    _tried.add(known)


def main() -> None:
    """Be the child: load the predictor that comes by standard input, and predict one row."""
    import resource

    import cloudpickle

    become_worker()
    limit, seconds = int(sys.argv[1]), int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):  # where the system allows it, there is no network
        ctypes.CDLL(None).unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
    try:
        predictor = cloudpickle.load(sys.stdin.buffer)
        predictor.load()
        predictor.predict_one_row()
    except MemoryError:
        os._exit(_OUT_OF_MEMORY)
    except Exception as error:
        os._exit(_OUT_OF_MEMORY if "bad_alloc" in str(error) or "bad allocation" in str(error) else 0)
    os._exit(0)
