"""Making rows that a run reads before it is planned: the rows of a source that is ``unprepared``."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.core.files import safe_files
from headrace.core.files.safe_files import writing
from headrace.core.source_ports import Preparation
from headrace.engines.local import machine
from headrace.errors import ArgumentError
from headrace.options import RunOptions
from headrace.output.layout import KEEP, Output
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning
from headrace.session.context import RunContext
from headrace.session.execution_plan import ExecutionPlan

if TYPE_CHECKING:
    from headrace.observers.progress import Progress


def prepared_in_output(
    context: RunContext, progress: Progress | None, plan: Plan, output: Output
) -> tuple[Plan, Partitioning]:
    """Have the rows made in the output's own folder; return the plan that reads them, and how it is partitioned."""
    options = context.options
    here = isinstance(output.place.at(), Path)
    if options.traits.is_cluster and not here:
        raise ArgumentError(
            f"The plan has a query, whose result lies beside the output, and workers of {options.engine_name} would "
            f"not see it on this machine. Write to a folder that all machines share, and not to {output}."
        )
    with writing(output.queries, "make"):
        safe_files.make_folder(output.queries, 0o700)
        if options.keep_queries:
            safe_files.write(output.queries / KEEP, b"")
    plan = replace(
        plan,
        source=plan.source.prepared(replace(_preparation(output.queries, options, progress), lasting=here)),
    )
    context.execution = ExecutionPlan(replace(context.execution.plan, source=plan.source), options)
    return plan, context.execution.partitioning


def prepared_for_reading(plan: Plan, options: RunOptions) -> tuple[Plan, Callable[[], object]]:
    """Have the rows made in a temporary folder; return the plan that reads them, and what removes it afterwards.

    It goes, too, when nobody has the plan any more.
    """
    if not plan.source.unprepared:
        return plan, lambda: None
    folder = Path(tempfile.mkdtemp(prefix="headrace-query-"))
    try:
        source = plan.source.prepared(_preparation(folder, options))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    remove = weakref.finalize(source, shutil.rmtree, folder, ignore_errors=True)
    return replace(plan, source=source), remove


def _preparation(folder: Path, options: RunOptions, progress: Progress | None = None) -> Preparation:
    capacity = machine.capacity()  # the query is answered here, wherever workers are
    left = max(0, (options.memory_limit or capacity.memory) - machine.private_memory(os.getpid()))
    if options.memory_limit:
        left = left * 3 // 4  # an engine does not count all that it takes
    say = progress.prepare if progress is not None else lambda _: None
    return Preparation(folder, options, left, options.workers or capacity.cpus, say)
