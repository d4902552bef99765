"""The processes that workers have started: how they end, also where their driver was killed."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterable, Set

# It notes the groups and files that the driver names, until the driver is gone: then it ends and removes those that
# are left. It has a session of its own, so that neither the terminal nor a signal to the driver's group ends it
# together with the driver. A shell starts in a millisecond; an interpreter of ours would take fifteen.
_WATCH = """
trap '' HUP INT QUIT TERM
groups=' '
files=
while read -r what group; do
  case $what in
    add) groups="$groups$group " ;;
    file) files="$files $group" ;;
    remove) case $groups in *" $group "*) groups="${groups%% $group *} ${groups#* $group }" ;; esac ;;
  esac
done
for group in $groups; do kill -s KILL -- "$group"; done
[ -z "$files" ] || rm -f -- $files
"""
_SHARED = re.compile(r"/dev/shm/psm_\w+")
_SHELL = "/bin/sh"
_ENDS_WITHIN = 1.0  # seconds, unless it was stopped
_NO_SIGPIPE: int = getattr(socket, "MSG_NOSIGNAL", 0)


class Watcher:
    """A process beside the driver that outlives it for a moment, and ends what is left of its workers' groups.

    Each worker leads a group. A killed driver cannot end them, and the kernel ends the workers at most, not what
    they started. Where there is no shell, there is no watcher. Whoever has started other processes has one, too:
    with ``add_process``, ``close`` ends them.
    """

    def __init__(self) -> None:
        self._noted: set[str] = set()
        self._sock: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def add(self, group: int) -> None:
        """Watch over the group of a worker that has started, once ``start`` is called."""
        self.add_process(-group)

    def add_process(self, number: int) -> None:
        """Watch over a process; a number below 0 is a group."""
        self._note(f"add {number}\n")

    def add_memory(self, numbers: Iterable[int], others: Set[str]) -> None:
        """Watch over what processes share in /dev/shm by Python, but for ``others``: killed, they leave it there."""
        for number in numbers:
            with contextlib.suppress(OSError), open(f"/proc/{number}/maps") as maps:
                for path in set(_SHARED.findall(maps.read())) - others:
                    self._note(f"file {path}\n")

    def _note(self, line: str) -> None:
        with self._lock:
            self._noted.add(line)
            self._say(line)

    def remove(self, group: int) -> None:
        """A group has been ended: its number may be another's from now on."""
        with self._lock:
            self._noted.discard(f"add {-group}\n")
            self._say(f"remove {-group}\n")

    def start(self) -> None:
        """Start the process, unless it runs; again if it was ended."""
        # The run can do without, if the system has no process more.
        with (
            self._lock,
            contextlib.suppress(OSError),
        ):
            if self._sock is None:
                self._stop()
                self._start()

    def close(self) -> None:
        """End the process; nothing is left to watch over."""
        with self._lock:
            self._stop()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [_SHELL, "-c", _WATCH, "headrace-watch"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)  # one that was stopped must not stop the driver
        self._sock = ours
        _open.add(ours)
        for line in sorted(self._noted):
            self._say(line)

    def _say(self, line: str) -> None:
        if self._sock is None:
            return
        try:
            self._sock.sendall(line.encode(), _NO_SIGPIPE)
        except OSError:  # it was ended or stopped: the next ``start`` makes another
            assert self._process is not None
            self._process.kill()  # the end of its input would be the order to end all groups
            self._stop()

    def _stop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._process is not None:
            try:
                self._process.wait(_ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


# A fork of the driver, made by the user's code, must not look as if the driver were still there.
_open: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_in_child() -> None:
    for sock in list(_open):
        sock.close()


os.register_at_fork(after_in_child=_close_in_child)


# ---------------------------------------------------------------- descendants


def shared_memory() -> set[str]:
    """Return what any processes share by Python, as files."""
    return set(glob.glob("/dev/shm/psm_*"))


_PR_SET_PDEATHSIG = 1


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and theirs; [] where the system has no list of them.

    Children of one that has ended are not among them: the system does not record where they come from.
    """
    found = [pid]
    for process in found:
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/children", "rb") as file:
                    found += map(int, file.read().split())
    return found[1:]


def end_descendants(pid: int) -> None:
    """Kill what a process has started, in whatever group or session it is by now."""
    for process in descendants(pid):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)


def die_with(parent: int) -> None:
    """Ask the kernel to end this process when its parent ends, where it can. A fork has to ask again."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
