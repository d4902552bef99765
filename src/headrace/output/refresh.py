"""``refresh="changed"``: which shards are made again because other code made them, and in whose place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.core.ports import Source
from headrace.core.work import CommitRecord, Shard
from headrace.errors import ArgumentError, PlanChanged
from headrace.output.commit import ShardCommitter
from headrace.plan.identity import unrecognised
from headrace.plan.logical import Plan


def check_refresh(plan: Plan, code: Mapping[str, str], *, incremental: bool, on_change: str) -> None:
    """Refuse where ``refresh="changed"`` has no meaning: it could not tell what changed, or which rows to make."""
    if not incremental or on_change != "continue":
        other = "without incremental=True" if not incremental else f"with on_change={on_change!r}"
        raise ArgumentError(
            f"refresh='changed' {other}: it is for incremental outputs, and makes the rows again that older code "
            "made. Write write_…(out, incremental=True, refresh='changed')."
        )
    if plan.sink is not None and plan.sink.target is not None:
        raise ArgumentError(
            "refresh='changed': rows are not removed from a table. mode='overwrite' makes all of them again, in one "
            "commit."
        )
    limit = next((step for step in plan.steps if step.row_limit is not None), None)
    if limit is not None:
        raise ArgumentError(
            f"refresh='changed' with {limit.label()}: which rows it lets through depends on all before them, so some "
            "cannot be made again alone. Use mode='overwrite'."
        )
    if unknown := unrecognised(code):
        raise PlanChanged(
            f"refresh='changed' cannot tell whether {unknown[0]} is what the rows were made with, and would make all "
            "rows again on each run. Give the step version='…': it is then recognised by that text."
        )


def older_shards(
    source: Source, committer: ShardCommitter, code: Mapping[str, str], gone: Collection[str]
) -> list[CommitRecord]:
    """Return the records of shards that other code made, and whose input files are all there."""
    state, plan = committer.state, committer.plan
    others = {number for number, known in state.codes.items() if known != code}
    if not others:
        return []
    return [
        record
        for record in committer.committed()
        if record.revision in others
        and record.shard < len(plan.shards)
        and not any(plan.files[file][0] in gone for file in files_in(source, [plan.shards[record.shard]]))
    ]


def revoke_unread(committer: ShardCommitter, older: Sequence[CommitRecord]) -> list[CommitRecord]:
    """Take those back that no complete output has; return the others, which stay until new ones can replace them."""
    if committer.state.finished:
        return list(older)
    first = committer.state.runs[-1].shard if committer.revealing.aside else 0
    unread = [record for record in older if record.shard >= first]
    if unread:
        committer.revoke_unread(unread)
    return [record for record in older if record.shard < first]


def files_in(source: Source, shards: Iterable[Shard]) -> set[int]:
    """Return the numbers of the files that some shards read."""
    return {file for shard in shards for split in shard.splits for file in source.files_of(split)}
