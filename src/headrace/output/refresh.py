"""``refresh=``: which shards are made again because other code made them, and records in the places of others."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from headrace.core.asked import why_not
from headrace.core.ports import Sink, Source
from headrace.core.work import CommitRecord, Shard
from headrace.errors import ArgumentError, PlanChanged
from headrace.output.commit import ShardCommitter
from headrace.output.journal_records import Revoked
from headrace.output.revealing import bind_sink
from headrace.output.run_list import RunEntry
from headrace.output.saved_plan import successors
from headrace.plan.identity import unrecognised
from headrace.plan.logical import Plan


def check_refresh(plan: Plan, code: Mapping[str, str], *, incremental: bool, on_change: str) -> None:
    """Refuse where ``refresh="changed"`` has no meaning: it could not tell what changed, or which rows to make."""
    if plan.sink is not None and plan.sink.target is not None:
        asked = "refresh='changed'"
        raise ArgumentError(f"{asked}: {why_not(asked, 'database' if plan.sink.target.by_part else 'delta')}")
    if not incremental or on_change != "continue":
        other = "without incremental=True" if not incremental else f"with on_change={on_change!r}"
        raise ArgumentError(
            f"refresh='changed' {other}: it is for incremental outputs, and makes the rows again that older code "
            "made. Write write_…(out, incremental=True, refresh='changed')."
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


def replacing(committer: ShardCommitter, shards: Sequence[int]) -> tuple[Sink, dict[int, Shard]]:
    """Return the sink for records that take the places of those of some shards, and the shard of each.

    Where readers have seen a shard, that is a further one; else it is the same.
    """
    output, plan, runs, unread = (
        committer.output,
        committer.plan,
        committer.state.runs,
        _first_unread(committer),
    )
    output.make(plan.run)
    if runs[-1].ended:
        runs = [*runs, RunEntry(len(runs) + 1, 0, 0.0, 0)]
    found = {shard: plan.shards[shard] for shard in shards if shard >= unread}
    found |= successors(plan.shards, [shard for shard in shards if shard < unread])
    return bind_sink(committer.sink, output, plan, committer.durability, runs), found


def replace_shards(committer: ShardCommitter, records: Mapping[int, CommitRecord]) -> None:
    """Let records, of what ``replacing`` returned, take the places of those of shards: all of them, or none."""
    committer.gated = True  # they are hidden until all of it is looked at
    state, unread = committer.state, _first_unread(committer)
    again = [record for record in committer.committed() if record.shard in records and record.shard >= unread]
    seen = successors(committer.plan.shards, [shard for shard in records if shard < unread])
    try:
        committer.note(*(Revoked(record.shard) for record in again), synced=False)
        if seen:
            committer.grow((), list(seen.values()), list(seen), together=True)
        state.recount(record for record in committer.committed() if record not in again)
        for record in records.values():
            committer.accept(record)
        committer.revealing.publisher.arrive()
        committer.commit_accepted()
    except BaseException:
        committer.abandon()
        raise
    state.recount(committer.committed())
    kept = {file for record in records.values() for file in record.files}
    committer.revealing.publisher.drop(file for record in again for file in record.files if file not in kept)


def _first_unread(committer: ShardCommitter) -> int:
    unread = committer.revealing.aside and not committer.state.finished
    return committer.state.runs[-1].shard if unread else len(committer.plan.shards)


def files_in(source: Source, shards: Iterable[Shard]) -> set[int]:
    """Return the numbers of the files that some shards read."""
    return {file for shard in shards for split in shard.splits for file in source.files_of(split)}
