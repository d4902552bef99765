"""Whether a plan copies columns of Parquet files as they are stored, and which: for the run, and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from headrace.core.failures import is_foreign
from headrace.core.target_ports import NOT_COPIED
from headrace.core.work import Shard
from headrace.plan import compile as compiler
from headrace.plan.logical import Plan
from headrace.plan.steps.base import Step

_FILES = 32  # that are looked at to describe a plan
_NAMES = 8


def why_nothing_copied(plan: Plan) -> str:
    """Say why no column is copied, as far as plan and sink tell; "" if some may be."""
    sink = plan.sink
    if sink is None or is_foreign(sink.format) or is_foreign(plan.source):
        return NOT_COPIED
    return compiler.why_rows_change(plan.steps) or sink.why_not_joined()


def columns_to_copy(
    plan: Plan, steps: Sequence[Step], shards: Sequence[Shard], stages: int
) -> Mapping[str, str]:
    """Return the columns of the output that workers may copy, with their names in the source.

    Of a plan of several stages, those that can be copied of the first shard: the first stage does not read them, so
    that a shard of which one cannot be copied after all is begun again.
    """
    carried = {} if why_nothing_copied(plan) else compiler.carried_columns(steps, plan.source.schema())
    if stages == 1 or not carried or not shards:
        return carried
    from headrace.worker.copy_choice import choose_copied

    assert plan.sink is not None
    values = compiler.values_looked_at(steps, plan.source.schema(), carried)
    found = choose_copied(plan.source, plan.sink.format, carried, shards[0].splits, looked_at=values)
    plan.source.close()
    return found.copied


def described(plan: Plan, shards: Sequence[Shard], *, looks: bool) -> Iterator[str]:
    """Say which columns are copied where the plan is written as Parquet, and why others are not.

    Nothing is said of a plan that reads no Parquet files, or carries no column through. Without a sink, it is that of
    ``write_parquet`` with its defaults. ``looks``: files are opened, for what the plan alone does not tell.
    """
    from headrace.sinks.files import FileSink
    from headrace.sinks.parquet import Parquet
    from headrace.worker.copy_choice import choose_copied

    if not plan.source.has_chunks:
        return
    if plan.sink is None:
        plan = replace(plan, sink=FileSink(".", Parquet()))
    assert plan.sink is not None
    if plan.sink.why_not_joined() == NOT_COPIED:
        return
    carried = compiler.carried_columns(plan.steps, plan.source.schema())
    if not carried:
        return
    why = why_nothing_copied(plan)
    if why:
        yield f"copied   nothing: {why}"
        return
    if not looks:
        yield f"copied   where files allow: {_listed(list(carried))}"
        return
    values = compiler.values_looked_at(plan.steps, plan.source.schema(), carried)
    looked_at: set[int] = set()
    reasons: dict[str, str] = {}
    for shard in shards:
        numbers = {split.file for split in shard.splits}
        if numbers <= looked_at:
            continue
        if looked_at and len(looked_at | numbers) > _FILES:
            break
        looked_at |= numbers
        found = choose_copied(plan.source, plan.sink.format, carried, shard.splits, looked_at=values)
        for name, reason in found.decoded.items():
            reasons.setdefault(name, reason)
    plan.source.close()
    copied = [name for name in carried if name not in reasons]
    files = len(plan.source.files())
    part = f" (by {len(looked_at)} of {files:,} files)" if len(looked_at) < files else ""
    yield f"copied   as they are stored: {_listed(copied) or 'no columns'}{part}"
    for reason, names in groupby(sorted(reasons, key=lambda name: reasons[name]), key=reasons.__getitem__):
        yield f"         not {_listed(list(names))}: {reason}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
