"""Starts worker processes: the first as a new interpreter, others by fork where that is safe.

See ``template`` for forks.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace.engines.local import template, wire
from headrace.engines.local.forks import THREADS, Template, TemplateLost
from headrace.engines.local.orphans import Watcher
from headrace.engines.local.process import WorkerProcess

if TYPE_CHECKING:
    from headrace.engines.local.process import Process

_BOOT = (
    "import gc, sys; gc.disable(); sys.path[:] = {path!r}; from headrace.engines.local.host import main; "
    "main({fd}, {pid}, {pause}, modules={modules!r}, control={control}, blas={blas})"
)
# Arrow's default, mimalloc, keeps 40 to 100 MiB per worker that nobody uses. The system's allocator gives them
# back; with glibc's own thresholds it maps every batch anew, and a job that only moves data is 4 % slower.
_ALLOCATOR = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(16 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}
KEEP = 0.0
"""Seconds that a template is kept where nobody says otherwise. Tests change it."""
_NO_JEMALLOC = {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # it starts a thread, used or not


class Starting(msgspec.Struct, frozen=True):
    """How worker processes are started.

    Parameters
    ----------
    by
        ``"fork"``: after the first, workers are forks of what that has imported, where it is safe. ``"spawn"``: each
        is a new interpreter.
    modules
        What workers import before they are told what to do.
    more
        What they import besides. A template that was kept may lack it.
    libraries
        Of others, what they import besides.
    eager
        The first worker makes a template without being asked.
    keep
        Seconds that a template is kept for the next engine of this process, once its own has closed.
    """

    by: Literal["fork", "spawn"] = "fork"
    modules: tuple[str, ...] = ("numpy", "pyarrow.parquet")
    more: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    eager: bool = False
    keep: float = 0.0

    @property
    def forks(self) -> bool:
        """Whether workers are forked, as far as is known before one has started."""
        return self.by == "fork" and template.supported()


class Spawner:
    """Starts worker processes in one thread, which lives until ``close``.

    A process that asked to die with its parent dies with the *thread* that started it, and the user's threads come
    and go.
    """

    def __init__(self, how: Starting) -> None:
        self._how = how
        self._forks = how.forks
        self._template: Template | None = None
        self._wanted: queue.SimpleQueue[tuple[Future[WorkerProcess], int, float] | bool] = queue.SimpleQueue()
        self._idle: float | None = None  # seconds to wait for the next engine
        self._watcher = Watcher()
        self._thread = threading.Thread(target=self._run, name="headrace-spawn", daemon=True)
        wire.start(self._thread)

    @classmethod
    def kept_or_new(cls, how: Starting) -> Spawner:
        """Return the one that was kept, if what it forks is what would be spawned now; else a new one."""
        global _kept
        with _keeping:
            kept = _kept
            if (
                kept is not None
                and how.by == "fork"
                and set(how.modules) <= set(kept._how.modules)
                and kept._is_current()
            ):
                _kept = None
                kept._how, kept._idle = msgspec.structs.replace(kept._how, keep=how.keep), None
                return kept
        return cls(how)

    @staticmethod
    def end_kept() -> None:
        """End the one that was kept, if any."""
        global _kept
        with _keeping:
            kept, _kept = _kept, None
        if kept is not None:
            kept._wanted.put(False)
            kept._thread.join()
            kept._end()

    def worker(self, threads: int, pause: float = 0.0) -> WorkerProcess:
        """Start a process, from any thread, which waits ``pause`` seconds before it imports anything big."""
        future: Future[WorkerProcess] = Future()
        self._wanted.put((future, threads, pause))
        return future.result()

    def expect_more(self) -> None:
        """Have the first worker make a template, before it is told what to do and imports code of the user's."""
        if self._template is not None:
            self._template.ask()

    def close(self) -> None:
        """End the thread, or keep it for the next engine; on Linux, the kernel ends every process left with it."""
        global _kept
        with _keeping:
            if _kept is None and self._keep and self._is_current():
                _kept, self._idle = self, self._keep
                self._wanted.put(True)
                return
        self._wanted.put(False)
        self._thread.join()  # it may not be able to do anything any more, when the interpreter ends
        self._end()

    @property
    def _keep(self) -> float:
        return self._how.keep or KEEP

    def _is_current(self) -> bool:
        return self._template is not None and self._template.is_current(_environment)

    def _run(self) -> None:
        while wanted := self._next():
            if isinstance(wanted, bool):
                continue
            future, threads, pause = wanted
            try:
                worker = self._worker(partial(self._start, threads, pause))
            except BaseException as error:
                future.set_exception(error)
            else:
                self._watcher.add(worker.process.pid)
                future.set_result(worker)
                self._watcher.start()
                del worker
            del wanted, future  # who waits for the next one holds no worker
        if self._idle is not None:  # nobody waits for the end of this thread
            self._end()

    def _worker(self, start: Callable[[int, int, int], Process]) -> WorkerProcess:
        try:
            return WorkerProcess(start, self._watcher)
        except TemplateLost:  # two processes must never hold one socket, so there is a new one
            return WorkerProcess(start, self._watcher)

    def _end(self) -> None:
        if self._template is not None:
            self._template.close()
        self._watcher.close()

    def _next(self) -> tuple[Future[WorkerProcess], int, float] | bool:
        """Return what is wanted next; True: nothing, False: the end."""
        global _kept
        try:
            return self._wanted.get(timeout=self._idle)
        except queue.Empty:
            with _keeping:
                if _kept is self:
                    _kept = None
                    return False
            return True

    def _start(self, threads: int, pause: float, fd: int, out: int, err: int) -> Process:
        """Start a process with such descriptors."""
        environment = _environment(threads)
        if self._template is not None and self._template.fits(environment, threads):
            forked = self._template.fork(environment, threads, sys.path, pause, [fd, out, err])
            if forked is not None:
                return forked
        if self._template is not None and self._template.closed:
            self._forks = self._forks and not self._template.refused
            self._template = None
        if not self._forks or pause or self._template is not None:
            return self._spawn(environment, pause, fd, out, err)
        return self._spawn_first(environment, threads, fd, out, err)

    def _spawn_first(
        self, environment: dict[str, str], threads: int, fd: int, out: int, err: int
    ) -> subprocess.Popen[bytes]:
        """Start a process that can make a template."""
        # numpy's BLAS starts its threads when it is imported, and what has threads cannot be forked.
        later = threads if threads != 1 and "OPENBLAS_NUM_THREADS" not in os.environ else 0
        started_with = environment | ({"OPENBLAS_NUM_THREADS": "1"} if later else {})
        ours, theirs = socket.socketpair()
        try:
            process = self._spawn(started_with, 0.0, fd, out, err, control=theirs.fileno(), blas=later)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self._template = Template(ours, environment, threads, fixed=bool(self._how.libraries))
        if self._how.eager or self._keep:
            self._template.ask()
        return process

    def _spawn(
        self, environment: dict[str, str], pause: float, fd: int, out: int, err: int, **more: int
    ) -> subprocess.Popen[bytes]:
        boot = {"control": -1, "blas": 0, **more}
        text = _BOOT.format(
            path=sys.path,
            fd=fd,
            pid=os.getpid(),
            pause=pause,
            modules=(*self._how.modules, *self._how.more, *self._how.libraries),
            **boot,
        )
        return subprocess.Popen(
            [sys.executable, "-c", text],
            pass_fds=[fd, boot["control"]] if "control" in more else [fd],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment,
            start_new_session=True,  # it leads a group, which ends with it; Ctrl-C comes to the driver only
        )


def _environment(threads: int) -> dict[str, str]:
    """Return the variables of a worker: what the user has set goes before."""
    given = dict(os.environ)
    limits = dict.fromkeys(THREADS, str(threads))
    quiet = {} if given.get("ARROW_DEFAULT_MEMORY_POOL") == "jemalloc" else _NO_JEMALLOC
    return limits | _ALLOCATOR | quiet | given


_kept: Spawner | None = None
_keeping = threading.Lock()


def _after_fork_of_the_driver() -> None:
    """What was kept is of the driver, and so is whoever held the lock."""
    global _kept, _keeping
    _kept, _keeping = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork_of_the_driver)
