"""Programs in processes of their own, in a hundredth of a second: forks of one that has imported the library.

A new interpreter takes a third of a second of a core until it has imported what each of them needs, and the tests
start hundreds. ``Forked`` is a ``subprocess.Popen`` of a Python program that is a child of the test's process as any
other, with its descriptors, folder and variables; all but the imports is done anew. Where forks are not possible,
it is a new interpreter. A test of imports, of memory, or of how the interpreter itself starts needs a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import forked_workers
from headrace.engines.local import template

MARK = "FAULT_TEST_MARK"
"""The variable by which a test finds a process and those that it has started: 32 characters."""

_NO_MARK = "0" * 32
_TESTS = str(Path(__file__).parent)
_LIBRARY = """
    faults.job numpy.random psutil pyarrow.compute pyarrow.csv pyarrow.parquet
    headrace.annex.cli headrace.core.parquet.compact headrace.driver.loop headrace.driver.block_tasks
    headrace.engines.out_of_band_pickle headrace.annex.report.page headrace.output.commit headrace.output.resume
    headrace.session.read headrace.annex.report.writing headrace.plan.identity headrace.predictors
    headrace.session.build_runner headrace.session.job_events headrace.session.write headrace.sinks.parquet
    headrace.sinks.dividing headrace.sources.parquet.reader headrace.sources.union headrace.worker.attempt
    headrace.worker.stage_worker headrace.worker.steps.map_batches
"""
_START = (
    f"import sys; sys.path[:0] = [{_TESTS!r}]; import forked; "
    "exec(forked.serve({fd}, {also!r}), forked.fresh())"
)
_Nursery = tuple[subprocess.Popen[bytes], socket.socket]
_nurseries: dict[str, _Nursery] = {}  # by what they have imported besides

# What a shell starts cannot ask us for a fork: this asks the process that forks, and ends as the fork does.
_ASK = """
import json, os, signal, socket, sys
if sys.argv[2:3] and sys.argv[2][0] == "-" and sys.argv[2] not in ("-", "-c", "-m"):
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
program = os.memfd_create("program")
told = {{"args": sys.argv[2:], "cwd": os.getcwd(), "env": dict(os.environ)}}
os.write(program, json.dumps(told | {{"workers": {workers}}}).encode())
way = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
way.connect("\\0" + sys.argv[1])
socket.send_fds(way, [b"fork"], [0, 1, 2, program])
status = int(way.recv(32))
if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) != signal.SIGKILL:
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
sys.exit(os.waitstatus_to_exitcode(status))
"""


class Forked(subprocess.Popen):  # type: ignore[type-arg]
    """A process of Python: ``args`` are ``[sys.executable, SCRIPT or "-c" or "-m", …]``.

    ``also``: modules that it has imported besides, with spaces between them. ``workers``: all workers that it starts
    are forks, see ``forked_workers``.
    """

    def __init__(self, *args: Any, also: str = "", workers: bool = False, **named: Any) -> None:
        self._also, self._workers = also, workers
        super().__init__(*args, **named)

    def _execute_child(self, *given: Any, **named: Any) -> None:
        usual = super()._execute_child  # type: ignore[misc]
        asked = inspect.signature(usual).bind(*given, **named).arguments
        if not template.supported():
            usual(*given, **named)
            return
        assert not asked["pass_fds"] and not asked["shell"]
        streams, opened = [], []
        for number, name in enumerate(("p2cread", "c2pwrite", "errwrite")):
            if asked[name] == -1:  # as in this process
                opened.append(os.dup(number))
            streams.append(opened[-1] if asked[name] == -1 else asked[name])
        told: dict[str, Any] = {"args": list(map(str, asked["args"][1:])), "workers": self._workers}
        told["session"] = asked["start_new_session"]
        told["cwd"] = str(asked["cwd"] or os.getcwd())
        told["env"] = dict(asked["env"] if asked["env"] is not None else os.environ)
        nursery = _started(self._also)[1]
        try:
            with os.fdopen(os.memfd_create("program"), "w+") as text:
                json.dump(told, text)
                text.flush()
                socket.send_fds(nursery, [b"fork"], [*streams, text.fileno()])
            self.pid = int(nursery.recv(32))
        finally:
            for fd in opened:
                os.close(fd)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def run(
    args: Sequence[Any], *, timeout: float | None = None, **more: Any
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` with ``text=True`` and ``capture_output=True``, by a fork."""
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | more
    given = more.pop("input", None)
    if given is not None:
        more["stdin"] = subprocess.PIPE
    with Forked(args, **more) as process:
        try:
            out, err = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(list(args), process.returncode, out, err)


def killed(at: str, work: str, *arguments: object, also: str = "") -> bool:
    """Do some lines of Python with ``argv``, and say whether a kill at a point, ``stage.write@2``, ended them."""
    point, _, passage = at.partition("@")
    kill = {point: f"kill@{passage or 1}"}
    begin = (
        f"import sys; from headrace.core import failpoints; failpoints.activate({kill}); argv = sys.argv[1:]"
    )
    words = [sys.executable, "-c", f"{begin}\n{work}", *map(str, arguments)]
    ended = run(words, cwd=Path(__file__).parent, also=also)
    assert ended.returncode in (0, -signal.SIGKILL), ended.stderr
    return ended.returncode != 0


def command(folder: Path, arguments: str = "", *, also: str = "", workers: bool = False) -> str:
    """Return a line of a shell script that is ``python`` with some arguments, and those of the script."""
    if not template.supported():
        return f'exec {sys.executable} {arguments} "$@"'
    (folder / ".ask.py").write_text(_ASK.format(workers=workers))
    return f'exec {sys.executable} -I -S {folder}/.ask.py {_name(_started(also)[0].pid)} {arguments} "$@"'


def _name(pid: int) -> str:
    """Return where shells find the process that forks: it is no file, as a path may be too long for a socket."""
    return f"headrace-tests-{pid}"


def _end() -> None:
    for process, way in _nurseries.values():
        way.close()
        process.wait()


def _started(also: str) -> _Nursery:
    """Return the process that forks and the way to it, and start it if it does not run."""
    if also not in _nurseries or _nurseries[also][0].poll() is not None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _START.format(fd=theirs.fileno(), also=also)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={
                    **os.environ,
                    MARK: _NO_MARK,
                    "OPENBLAS_NUM_THREADS": "1",
                    "JE_ARROW_MALLOC_CONF": "background_thread:false",
                },
                cwd="/",
            )
        if not _nurseries:
            atexit.register(_end)
        elif also in _nurseries:
            _nurseries[also][1].close()  # of one that was killed
        _nurseries[also] = process, ours
        ours.recv(32)  # it has imported all
    return _nurseries[also]


def serve(fd: int, also: str) -> CodeType:
    """Fork for each request; return, in the fork, what it shall execute."""
    for name in f"{_LIBRARY} {also}".split():
        with contextlib.suppress(ModuleNotFoundError):  # of an annex that is deleted
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    asked = socket.socket(fileno=fd)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, "what is imported has started threads"
    shells = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shells.bind(f"\0{_name(os.getpid())}")
    shells.listen()
    asked.send(b"ready")
    while True:
        if shells in select.select([asked, shells], [], [])[0]:
            program = _of_shell(asked, shells)
            if program is not None:
                return program
            continue
        message, fds, *_ = socket.recv_fds(asked, 16, 4)
        if not message:
            os._exit(0)
        pid = template._fork("python")
        if not pid:
            asked.close()
            shells.close()
            return _become(*fds)
        for each in fds:
            os.close(each)
        asked.send(str(pid).encode())


def _of_shell(asked: socket.socket, shells: socket.socket) -> CodeType | None:
    """Have a process of its own fork for somebody who asks, and tell them how that ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    way, _ = shells.accept()
    if os.fork():
        way.close()
        return None
    asked.close()
    shells.close()
    _, fds, *_ = socket.recv_fds(way, 16, 4)
    pid = os.fork()
    if not pid:
        way.close()
        return _become(*fds)
    for each in fds:
        os.close(each)
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, way], [], [])[0]:  # who asked was killed: so is what runs for them
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    with contextlib.suppress(OSError):
        way.send(str(status).encode())
    os._exit(0)


def _become(out_of: int, out: int, err: int, program: int) -> CodeType:
    """Make this fork what a new interpreter would be; return its program."""
    for number, stream in enumerate((out_of, out, err)):
        os.dup2(stream, number)
    with os.fdopen(program) as text:
        text.seek(0)
        told = json.load(text)
    for stream in {out_of, out, err} - {0, 1, 2}:
        os.close(stream)
    if told.get("session"):
        os.setsid()
    find = ctypes.CDLL(None).getenv
    find.restype = ctypes.c_void_p
    place = find(MARK.encode())  # the system shows the variables as they are here
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    if MARK in told["env"]:
        ctypes.memmove(place, told["env"][MARK].encode(), len(_NO_MARK))
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    sys.modules["numpy.random"].seed()
    sys.path.remove(_TESTS)
    sys.path[1:1] = [
        each for each in told["env"].get("PYTHONPATH", "").split(":") if each not in ["", *sys.path]
    ]
    importlib.invalidate_caches()
    if "PYTHONUNBUFFERED" in told["env"]:
        for name, number in (("stdout", 1), ("stderr", 2)):
            raw = io.FileIO(number, "w", closefd=False)
            setattr(sys, name, io.TextIOWrapper(raw, write_through=True, errors="backslashreplace"))
    if told.get("workers"):
        forked_workers.offer()
    what, *rest = told["args"]
    if what == "-":
        what, *rest = "-c", sys.stdin.read(), *rest
    if what == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        return compile(rest[0], "<string>", "exec")
    if what == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[1:]], told["cwd"]
        module = rest[0]
        return compile(f"import runpy; runpy._run_module_as_main({module!r})", "<string>", "exec")
    sys.argv, sys.path[0] = [what, *rest], str(Path(what).resolve().parent)
    sys.modules["__main__"].__file__ = what
    return compile(Path(what).read_bytes(), what, "exec")


def fresh() -> dict[str, Any]:
    """Return the names of the main module, as they are when a program starts."""
    names = vars(sys.modules["__main__"])
    for name in ("forked", "sys"):
        names.pop(name, None)
    return names
