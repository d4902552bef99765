"""How calls can end that did not end by themselves."""

from __future__ import annotations

import os
from collections.abc import Callable

from headrace.errors import CallCancelled, CallLost, EngineError, ExecutorClosed
from headrace.tasks.calls import TaskCall


def closed() -> ExecutorClosed:
    """Return the error for calls after the end."""
    return ExecutorClosed("The executor is shut down: it cannot take calls any more.")


def only_here() -> Callable[[], None]:
    """Return what raises ``ExecutorClosed`` in a fork of this process: what carries out calls is not there."""
    here = os.getpid()

    def check() -> None:
        if os.getpid() != here:
            raise ExecutorClosed(
                f"This process is a fork of process {here}, whose executor it is: nobody here would carry out the "
                "call. Connect in this process: hr.connect(workers=...), or ray.init() after ray.shutdown()."
            )

    return check


def cancelled(call: TaskCall) -> CallCancelled:
    """Return the error of a call that was cancelled."""
    return CallCancelled(f"{call.label} was cancelled.")


def lost(call: TaskCall, error: BaseException) -> CallLost:
    """Return the error for a call that ended every worker that tried it."""
    times = "once" if call.deaths == 1 else f"{call.deaths} times"
    return CallLost(
        f"{call.label} ended its worker {times}: {error}. It is not tried again (max_retries={call.max_retries})."
    )


def defect(error: BaseException) -> EngineError:
    """Return the error for calls after the dispatcher's thread has failed."""
    return EngineError(
        f"The thread of the executor failed: {type(error).__name__}: {error}. This is a bug in Headrace."
    )
