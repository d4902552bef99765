"""Workers of a driver that is a fork itself: they are forks of the same process, where each driver's first worker
would be a new interpreter, which takes a third of a second of a core.

``offer`` is called before the driver's program begins, while there is one thread. It forks a process that makes
templates: each is a child of the driver, and what a template is that the driver's first worker has made. From there
on all is as ever. A test of how the first worker starts, or of memory, needs a new interpreter.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import traceback
from typing import Any

from headrace.engines.local import host, template, wire
from headrace.engines.local.forks import ForkedProcess, Template
from headrace.engines.local.orphans import die_with
from headrace.engines.local.spawner import Spawner

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ARROW_IO_THREADS")  # of what the process has imported


def offer() -> None:
    """Have the engines of this process fork their first worker, too."""
    ours, theirs = socket.socketpair()
    driver = os.getpid()
    if not os.fork():
        try:
            ours.close()
            _serve(theirs, driver)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    theirs.close()

    def first(
        self: Any, environment: dict[str, str], threads: int, fd: int, out: int, err: int
    ) -> ForkedProcess:
        mine, its = socket.socketpair()
        self._template = Template(mine, environment, threads)
        self._template._asked = True
        forked = None
        with its, contextlib.suppress(OSError):  # who forks templates has ended
            wire.send(ours, (threads, (*self._how.modules, *self._how.more)), its.fileno())
            its.close()
            forked = self._template.fork(environment, threads, sys.path, 0.0, [fd, out, err])
        return forked or self._spawn(environment, 0.0, fd, out, err)

    Spawner._spawn_first = first  # type: ignore[method-assign]


def _serve(asked: socket.socket, driver: int) -> None:
    """Fork a template for each request."""
    die_with(driver)
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    template._leave_streams()
    name = template._name()
    inbox = wire.Inbox()
    while True:
        try:
            threads, modules = inbox.receive(asked)
        except (EOFError, OSError):
            return
        control = inbox.fds.popleft()
        if not template._fork("headrace-fork"):
            asked.close()
            template.import_all(modules)
            template.limit_threads({each: threads for each in _THREADS if each not in os.environ})
            fd, pause = template._serve(socket.socket(fileno=control), driver, name)
            host.main(fd, driver, pause, modules=())
        os.close(control)
