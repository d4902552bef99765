"""How a run ended, in the plain values of ``--json`` and ``--stats``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.annex.cli.answer import DONE, REJECTS, UNPUBLISHED
from headrace.annex.cli.texts import output_of
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.core.work import Ledger
    from headrace.result import Result


def code_for(*results: Result) -> int:
    """Return the exit code of runs that were carried out."""
    return REJECTS if any(result.rejected for result in results) else DONE


def of_result(result: Result) -> dict[str, Any]:
    """Return the fields of a result. ``completion_stats`` has the words of managed batch services."""
    from headrace.core.work import REJECTED
    from headrace.result import Metrics
    from headrace.session.metric_results import reported

    ledger = result.ledger
    metrics = result.metrics if isinstance(result.metrics, Metrics) else Metrics(result.metrics, notes={})
    return {
        "status": "done with rejects" if result.rejected else "done",
        "exit_code": code_for(result),
        "output": str(result.path),
        "run": result.run,
        **_counts(ledger, incomplete=0),
        "files": result.files,
        "bytes": result.bytes,
        "seconds": round(result.seconds, 3),
        "resumed": result.resumed,
        "rejected_folder": os.path.join(result.path, REJECTED) if result.rejected else None,
        "left_out": list(result.left_out),
        "report": str(result.report),
        "metrics": {},
        **reported(metrics),
        "headrace": __version__,
    }


def of_failure(
    error: BaseException, code: int, output: Path | None, opened: tuple[Path | str, str] | None
) -> dict[str, Any]:
    """Return what is known when a run did not end well: what of it is in the output for good.

    ``opened`` is the run that the command worked on; what others have left in the output is none of its doing.
    """
    committed = _committed(opened)
    status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    return {
        "status": "unpublished" if code == UNPUBLISHED else status,
        "exit_code": code,
        "output": output_of(output) if output is not None else None,
        **committed,
        "headrace": __version__,
    }


def _committed(opened: tuple[Path | str, str] | None) -> dict[str, Any]:
    from headrace.errors import HeadraceError
    from headrace.output.places.place import looked_at
    from headrace.output.runs import load

    if opened is None:
        return {}
    try:
        with looked_at(opened[0]) as output:
            run = load(output.root, opened[1])
        state = run.state
    except (HeadraceError, OSError):
        return {}
    ledger = state.ledger
    planned = sum(shard.rows for shard in run.shards) if run.counted else None
    incomplete = None if planned is None else max(0, planned - ledger.read)
    return {"run": run.name, **_counts(ledger, incomplete=incomplete)}


def _counts(ledger: Ledger, *, incomplete: int | None) -> dict[str, Any]:
    return {
        "rows": {name: getattr(ledger, name) for name in ("read", "written", "rejected", "nulled")},
        "completion_stats": {
            "successful_count": ledger.written - ledger.nulled,
            "failed_count": ledger.rejected + ledger.nulled,
            "incomplete_count": incomplete,
        },
    }
