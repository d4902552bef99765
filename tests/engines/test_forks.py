"""A worker that was forked is what a spawned one would be, and nobody notices how it was started."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest

from crossed import crossed
from headrace.core.engine_ports import PoolSpec, WorkerContext
from headrace.engines.local import template, wire
from headrace.engines.local.forks import Template
from headrace.engines.local.pool import LocalEngine, LocalPool
from headrace.engines.local.spawner import Spawner, Starting
from headrace.errors import EngineError, WorkerDied

pytestmark = [
    pytest.mark.skipif(not template.supported(), reason="workers are forked on Linux only"),
    pytest.mark.usefixtures("no_template"),
]

BLAS = "OPENBLAS_NUM_THREADS"
GET_THREADS_OF_BLAS = (
    "scipy_openblas_get_num_threads64_",
    "scipy_openblas_get_num_threads",
    "openblas_get_num_threads",
)


class Probe:
    """Says what it finds in its process."""

    def __init__(self, context: WorkerContext) -> None:
        pass

    def pid(self) -> int:
        return os.getpid()

    def variable(self, name: str) -> str | None:
        return subprocess.run(["printenv", name], stdout=subprocess.PIPE, text=True).stdout.strip() or None

    def family(self) -> int:
        """Forks of one process agree on the hash of a text; others do not."""
        return hash("family")

    def numbers(self) -> tuple[float, float]:
        import numpy as np

        return random.random(), float(np.random.random())

    def exit(self, status: int) -> None:
        os._exit(status)

    def abort(self) -> None:
        os.abort()

    def facts(self) -> dict[str, Any]:
        import pyarrow as pa

        death = ctypes.c_int()
        ctypes.CDLL(None).prctl(2, ctypes.byref(death), 0, 0, 0)
        status = dict(line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines())
        del status["SigQ"]  # counts those of all processes of this user
        volatile = (
            "Sig",
            "Shd",
            "Cap",
            "Umask",
            "Uid",
            "Gid",
            "Seccomp",
            "Cpus_allowed",
            "NoNewPrivs",
            "Name",
        )
        environment = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        return {
            "parent": os.getppid(),
            "leads": (os.getsid(0), os.getpgid(0)) == (os.getpid(), os.getpid()),
            "folder": os.getcwd(),
            "path": sys.path,
            "arguments": sys.argv,
            "environment": environment,
            "inherited": subprocess.run(["env", "-u", "PYTEST_CURRENT_TEST"], capture_output=True).stdout,
            "status": {name: value for name, value in status.items() if name.startswith(volatile)},
            "dies with parent": death.value,
            "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
            "main": sorted(vars(sys.modules["__main__"])),
            "streams": [
                (s.encoding, s.errors, s.line_buffering, s.isatty()) for s in (sys.stdout, sys.stderr)
            ],
            "limits": {name: resource.getrlimit(getattr(resource, name)) for name in ("RLIMIT_NOFILE",)},
            "threads": sorted(each.name for each in threading.enumerate()),
            "main thread": threading.main_thread().native_id == os.getpid() == threading.get_native_id(),
            "open": sorted(kind(link) for link in descriptors(os.getpid()).values()),
            "arrow": (pa.cpu_count(), pa.io_thread_count(), pa.default_memory_pool().backend_name),
            "blas": blas_threads(),
            "oom": Path("/proc/self/oom_score_adj").read_text(),
        }


def kind(link: str) -> str:
    return link.split(":", 1)[0]


def descriptors(pid: int) -> dict[int, str]:
    """Return what a process has open, beside memory."""
    found = {}
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            link = os.readlink(file)
            if not link.startswith(("/proc", "/memfd")):
                found[int(file.name)] = link
    return found


def blas_threads() -> dict[str, int]:
    """Return how many threads each OpenBLAS uses: that of numpy, and that of scipy if it is imported."""
    paths = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "openblas" in line
    }
    found = {}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in GET_THREADS_OF_BLAS:
            if hasattr(library, name):
                found[path] = int(getattr(library, name)())
    return found


@pytest.fixture
def started() -> Iterator[Callable[..., LocalPool]]:
    engines = []

    def start(size: int = 2, threads: int = 1, warm: int = 0, **how: Any) -> LocalPool:
        engine = LocalEngine(warm, threads, starting=Starting(**how))
        engines.append(engine)
        return engine.start(PoolSpec("stage 1", Probe, size, threads), lambda *note: None)

    yield start
    for engine in engines:
        engine.close(kill=True)


def ask(pool: LocalPool, method: str, *args: Any) -> list[Any]:
    futures: list[Future[Any]] = [pool.submit(method, *args, worker=each) for each in sorted(pool.loads())]
    return [future.result() for future in futures]


@pytest.mark.parametrize(("threads", "libraries"), crossed([1, 2], [(), ("pandas", "sklearn.linear_model")]))
def test_a_fork_is_what_a_spawned_worker_is(
    threads: int,
    libraries: tuple[str, ...],
    started: Callable[..., LocalPool],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.chdir(tmp_path)
    first, fork, second = ask(forked := started(3, threads, libraries=libraries), "facts")
    (spawned,) = ask(spawns := started(1, threads, by="spawn", libraries=libraries), "facts")
    assert len(set(ask(forked, "family"))) == 1 and ask(spawns, "family") != ask(forked, "family")[:1]
    assert set(first["blas"].values()) <= {threads} and fork["arrow"][:2] == (threads, threads)
    for name in spawned:
        assert first[name] == fork[name] == second[name] == spawned[name], name
    assert spawned["main thread"] and spawned["leads"] and spawned["parent"] == os.getpid()


def test_forks_share_no_luck_and_no_descriptor(started: Callable[..., LocalPool]) -> None:
    pool = started(4)
    drawn = ask(pool, "numbers")
    assert len({number for pair in drawn for number in pair}) == 8
    workers = ask(pool, "pid")
    (server,) = {each.pid for each in psutil.Process().children() if each.name() == "headrace-fork"}
    own = [
        {link for link in descriptors(pid).values() if kind(link) in ("socket", "pipe")}
        for pid in [*workers, server]
    ]
    assert sum(map(len, own)) == len(set().union(*own)), "an end that another holds is never seen closed"
    assert [len(each) for each in own] == [3, 3, 3, 3, 1]


def test_how_forks_end(started: Callable[..., LocalPool]) -> None:
    """Their parent is the driver: it sees how, whatever became of the template."""
    pool = started(3)
    ask(pool, "pid")
    _, *forks = sorted(pool.loads())
    (server,) = [each for each in psutil.Process().children() if each.name() == "headrace-fork"]
    server.kill()
    with pytest.raises(WorkerDied, match="exited with status 7"):
        pool.submit("exit", 7, worker=forks[0]).result()
    with pytest.raises(WorkerDied, match="SIGABRT"):
        pool.submit("abort", worker=forks[1]).result()
    pool.resize(4)
    assert len(set(ask(pool, "pid"))) == 4, "without it, and without its kin"
    assert set(ask(pool, "family")) - {ask(pool, "family")[0]}


@pytest.mark.parametrize("module", ["starts_a_thread", "opens_a_file"])
def test_what_cannot_be_forked_is_spawned(
    module: str, started: Callable[..., LocalPool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    (tmp_path / "opens_a_file.py").write_text("file = open(__file__)")
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = started(2, modules=(module,))
    assert len(set(ask(pool, "family"))) == 2
    assert not [each for each in psutil.Process().children() if each.name() == "headrace-fork"]


def test_a_worker_has_the_environment_of_its_start(
    started: Callable[..., LocalPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nothing reads while it is imported is set in a fork; for the rest, there is a new interpreter."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    pool = started(2)
    monkeypatch.setenv("HEADRACE_SOMETHING", "new")
    pool.resize(3)
    assert ask(pool, "variable", "HEADRACE_SOMETHING") == [None, None, "new"]
    assert len(set(ask(pool, "family"))) == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    pool.resize(4)
    assert ask(pool, "variable", "OMP_NUM_THREADS") == ["1", "1", "1", "3"]
    assert len(set(ask(pool, "family"))) == 2


def test_there_are_as_many_processes_as_are_allowed() -> None:
    """A fork is refused for the same reasons as a new process, and in the same words."""
    ours, theirs = socket.socketpair()
    spawner = Spawner(Starting(by="spawn"))
    spawner._template = Template(ours, dict(os.environ), 1)
    monkey = pytest.MonkeyPatch()
    monkey.setattr(Template, "fits", lambda *_: True)
    server = subprocess.Popen(["sleep", "600"])
    wire.send(theirs, ("template", server.pid, True))
    wire.send(theirs, ("failed", errno.EAGAIN))
    with pytest.raises(EngineError, match=r"could not be started: Resource temporarily.*ulimit -u"):
        spawner.worker(1)
    monkey.undo()
    spawner.close()
    theirs.close()
    server.wait()


def test_no_two_workers_have_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """The template ends before it says that it has made a worker: that one hears that nobody is there."""
    ours, theirs = socket.socketpair()
    spawner = Spawner(Starting(by="spawn"))
    spawner._template = Template(ours, dict(os.environ), 1)
    monkeypatch.setattr(Template, "fits", lambda *_: True)
    server = subprocess.Popen(["sleep", "600"])
    wire.send(theirs, ("template", server.pid, True))
    inbox = wire.Inbox()

    def lose() -> None:
        inbox.receive(theirs)
        inbox.receive(theirs)
        theirs.close()

    losing = threading.Thread(target=lose)
    losing.start()
    worker = spawner.worker(1)
    losing.join()
    with socket.socket(fileno=inbox.fds.popleft()) as lost:
        lost.settimeout(None)
        assert lost.recv(1) == b""
    worker.end()
    worker.release()
    spawner.close()
    server.wait()
    for fd in inbox.fds:
        os.close(fd)


def test_a_template_waits_for_the_next_engine() -> None:
    keep = Starting(keep=600.0)
    engine = LocalEngine(1, starting=keep)
    first = ask(engine.start(PoolSpec("stage 1", Probe, 1), lambda *note: None), "family")
    engine.close()
    engine.close()
    (server,) = [each for each in psutil.Process().children() if each.name() == "headrace-fork"]
    other = LocalEngine(1, starting=Starting(by="spawn"))
    assert ask(other.start(PoolSpec("stage 1", Probe, 1), lambda *note: None), "family") != first
    other.close()
    engine = LocalEngine(1, starting=Starting(keep=0.01))
    assert ask(engine.start(PoolSpec("stage 1", Probe, 2), lambda *note: None), "family") == first * 2
    engine.close()
    server.wait()  # nobody came for it


def test_a_killed_driver_leaves_no_template() -> None:
    program = (
        "import os, psutil, headrace as hr\n"
        "with hr.connect(workers=2) as executor:\n"
        "    list(executor.map(os.getpgid, [0] * 4))\n"
        "    print(*[child.pid for child in psutil.Process().children()], flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE)
    left = []
    for pid in map(int, ended.stdout.split()):
        with contextlib.suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    psutil.wait_procs(left)


def test_a_template_that_nobody_used_ends_with_its_engine() -> None:
    before = psutil.Process().children()
    engine = LocalEngine(1, starting=Starting(eager=True))
    pool = engine.start(PoolSpec("stage 1", Probe, 1), lambda *note: None)
    assert ask(pool, "pid")
    engine.close()
    assert psutil.Process().children() == before
