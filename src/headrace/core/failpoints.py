"""Named points at which a test may make a process fail.

Faults are data: ``{"journal.sync": "kill@3"}`` kills the process at the third passage of that point. Nothing
is active unless :func:`activate` was called, and then a passage costs one dictionary look-up.

Actions: ``kill`` (SIGKILL to oneself), ``kill-driver`` (to a worker's parent), ``stop`` (SIGSTOP), ``exit``
(``os._exit(70)``), or the name of an ``errno`` such as ``ENOSPC``, raised as an :class:`OSError`. ``@n`` picks
the n-th passage (1 is the default), ``@*`` every one. A ``once:PATH`` prefix makes the fault fire in one process
only: the first to create PATH.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Mapping

POINTS: frozenset[str] = frozenset(
    {
        "plan.written",
        "run.opened",
        "attempt.started",
        "attempt.batch",
        "block.made",
        "stage.write",
        "stage.sync",
        "stage.closed",
        "state.written",
        "attempt.parted",
        "attempt.left",
        "shard.divided",
        "journal.append",
        "journal.sync",
        "journal.synced",
        "publish.rename",
        "publish.renamed",
        "finish.manifest",
        "finish.success",
        "finish.closed",
        "finish.withheld",
        "swap.recorded",
        "swap.removed",
        "swap.pointed",
        "recover.opened",
        "recover.revoked",
        "recover.swept",
        "store.upload",
        "store.uploaded",
        "store.append",
        "store.appended",
        "worker.upload",
        "worker.uploaded",
        "table.filled",
        "table.joined",
        "query.inputs",
        "query.answered",
        "query.synced",
        "query.done",
        "batch.chosen",
        "batch.sending",
        "batch.uploaded",
        "batch.creating",
        "batch.created",
        "batch.open",
        "batch.fetched",
        "batch.settled",
        "note.add",
        "note.added",
        "fleet.fenced",
    }
)

_active: dict[str, str] = {}
_passages: dict[str, int] = {}


def activate(faults: Mapping[str, str]) -> None:
    """Make ``faults`` (point → action) active in this process and in the workers that it starts.

    Faults that are active already keep their count of passages: an inline worker is handed its driver's.
    """
    if faults == _active:
        return
    unknown = set(faults) - POINTS
    if unknown:
        raise ValueError(f"no such failpoint: {', '.join(sorted(unknown))}")
    _active.clear()
    _passages.clear()
    _active.update(faults)


def active() -> dict[str, str]:
    """Return the active faults, for handing them on to a worker."""
    return dict(_active)


def hit(point: str) -> None:
    """Pass ``point``; fail there if a test asked for it."""
    if not _active or point not in _active:
        return
    action = _active[point]
    once = None
    if action.startswith("once:"):
        once, _, action = action.removeprefix("once:").rpartition(":")
    action, _, which = action.partition("@")
    _passages[point] = passage = _passages.get(point, 0) + 1
    if which != "*" and passage != int(which or 1):
        return
    if once is not None:
        try:
            os.close(os.open(once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "kill-driver":
        os.kill(os.getppid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif action == "exit":
        os._exit(70)
    else:
        code = getattr(errno, action)
        raise OSError(code, os.strerror(code))
