"""Whether the end of a worker is charged to the shard that it had to do with."""

from __future__ import annotations

from millrace.core.work import ErrorReport
from millrace.errors import NeverReady, NodeLost, WorkerDied
from millrace.run.relief import Relief
from millrace.run.suspicion import Suspicion


def blame_for(
    error: WorkerDied,
    shard: int,
    worker: int,
    relief: Relief,
    suspicion: Suspicion,
    *,
    rows: int | None = None,
    at_work: bool | None = None,
) -> ErrorReport | bool:
    """Say whether a worker's end is charged to ``shard``, or which error it is.

    It is not if the worker was ended for its memory, which is remembered of the shard; if it could not work yet; or
    if its machine is gone. ``rows``: of the shard, how many it had at a time; ``at_work``: whether it was at this
    shard, if that is known.
    """
    loading = isinstance(error, NeverReady)
    if relief.ended(worker):
        suspicion.forget(worker)
        return relief.lost(shard, worker, rows=rows, loading=str(error) if loading else "") or False
    innocent = loading or isinstance(error, NodeLost)
    return not innocent and suspicion.died(shard, worker, str(error), at_work=at_work)
