"""Compares the input with the one that the run was planned with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from headrace.core.arrow.output_schema import describe_difference
from headrace.core.asked import why_not
from headrace.core.human import plural
from headrace.core.source_ports import Source
from headrace.core.terminal import warn
from headrace.core.work import Shard, Split
from headrace.errors import ArgumentError, InputChanged, PlanChanged
from headrace.output.commit import ShardCommitter
from headrace.output.inputs import InputFile, files_in, files_to_read, further_version
from headrace.output.journal_state import successors
from headrace.output.seen_keys import check_kinds, key_step
from headrace.plan.identity import unrecognised
from headrace.plan.logical import Plan
from headrace.plan.partitioning import Partitioning


def check_incremental(plan: Plan, files: Sequence[InputFile], mode: str) -> None:
    """Refuse what ``incremental=True`` cannot be: in another mode, or for a source that lists no files one by one."""
    if mode != "resume":
        raise ArgumentError(
            f"incremental=True with mode={mode!r}: an incremental output gets new rows added. So it takes "
            "mode='resume', and a table takes mode='append'. Leave one of the two out."
        )
    listed = bool(files or plan.source.position())
    if not listed or plan.source.splits_from(len(files)) is None:
        raise ArgumentError(
            "incremental=True: new input is recognised by files or by versions of a table, and this source has "
            "neither. It works for read_parquet, read_csv, read_json and the like, for read_delta, read_iceberg and "
            "read_lance, and with key= for read_sql, each with one source; a union or zip of several, or values in "
            "memory, are written whole, with mode='overwrite'."
        )


def reconcile(
    plan: Plan,
    committer: ShardCommitter,
    files: list[InputFile],
    partitioning: Partitioning | None = None,
    *,
    incremental: bool = False,
    refresh: Mapping[str, str] | None = None,
) -> Plan:
    """Let shards that are still to do be made from the input as it is now; refuse where committed ones read
    what has changed. New files are left out, unless ``partitioning`` says how they become further shards.

    ``incremental``: rows of files that are gone stay; any other change of a file that was read is refused.
    ``refresh``: the code of the functions as it is now; shards that other code made are made again.
    """
    saved = committer.plan
    before = saved.files
    if before == files and refresh is None:
        return plan
    now = {file[0]: file for file in files}
    known = {file[0]: i for i, file in enumerate(before)}  # with keys, a file may be there more than once
    new = [path for path in now if path not in known]
    changed = {i for path, i in known.items() if now.get(path) != before[i]}
    if incremental:
        changed, new = _further(plan, committer, changed, now, known)
    else:
        _refuse_changed(plan.source, committer, changed)
        if committer.state.finished and all(step.row_limit is None for step in plan.steps):
            _refuse_rows_behind(plan.source, committer, {i for i in changed if before[i][0] in now})
    gone = [before[i][0] for i in sorted(changed) if before[i][0] not in now]
    if new and (partitioning is None or gone or plan.source.splits_from(len(files)) is None):
        _warn_left_out(new, committer)
        new = []
    target = committer.sink.target
    in_table = bool(new) and target is not None and target.revealed()
    if incremental and in_table and not committer.state.finished:
        committer.left_out, new = tuple(new), []  # this run only has to be closed
    older = _to_make_again(plan.source, committer, refresh)
    if committer.state.finished and not (new or older):
        return plan
    if gone:
        raise InputChanged(
            f"The input file {gone[0]} was removed since the run in {committer.output} began, and its rows are still "
            "to be processed. Bring it back, or put a file without rows in its place: then nothing is read of it."
        )
    there = next((path for path in now if path in known), new[0] if new else "")
    paths = [file[0] if file[0] in now else there for file in before]  # nothing reads those in others' places
    source = plan.source.pinned(paths)
    step = key_step(plan)
    if step is not None and (new or changed):
        check_kinds(committer, plan.source.pinned([*paths, *new]).schema(), step.key)
    if changed and not committer.state.finished:
        shards = _replan(source, committer, changed)
        present = [
            is_ if i in changed and was[0] in now else was
            for i, (was, is_) in enumerate(zip(before, source.files(), strict=True))
        ]
        committer.save_plan(files=present, shards=shards)
    if in_table and not incremental and target is not None:
        raise PlanChanged(
            f"The run in {committer.output} is finished, and new input cannot be added to it: "
            f"{target.why_not_grown()}."
        )
    if (new or older) and partitioning is not None:
        source = _add_shards(source, [*paths, *new], committer, partitioning, older)
    return replace(plan, source=source)


def _further(
    plan: Plan,
    committer: ShardCommitter,
    changed: set[int],
    now: Mapping[str, InputFile],
    known: Mapping[str, int],
) -> tuple[set[int], list[str]]:
    """Return the changed files that are still to do, and those that are new to an output that further runs add to.

    Files that are gone, and with keys those that were written again, are no change; any other of a file that was
    read is refused.
    """
    before = committer.plan.files
    # Their rows stay; no shard that is still to do reads them.
    gone = {i for i in changed if before[i][0] not in now} - files_to_read(plan.source, committer)
    committer.gone = tuple(before[i][0] for i in sorted(gone))
    changed = changed - gone
    new = [path for path in now if path not in known]
    if key_step(plan) is not None:
        _refuse_lost(plan.source, committer, now, known)
        again = {i for i in changed - files_to_read(plan.source, committer) if before[i][0] in now}
        later = set() if committer.state.finished else {i for i in again if i >= _first_file(committer)}
        # As keys of one run are not compared.
        committer.left_out = tuple(before[i][0] for i in sorted(later))
        new = [path for path in now if path not in known or known[path] in again - later]
        changed -= again
    elif not plan.source.position():
        _refuse_renamed(committer, [now[path] for path in new])
    _refuse_rewritten(plan.source, committer, changed)
    _refuse_changed(plan.source, committer, {i for i in changed if before[i][0] in now})
    return changed, new


def _warn_left_out(new: Sequence[str], committer: ShardCommitter) -> None:
    noun = "1 input file is" if len(new) == 1 else f"{len(new)} input files are"
    warn(
        f"{noun} new since the run in {committer.output} began, and left out: "
        f"{', '.join(new[:3])}{' …' if len(new) > 3 else ''}. incremental=True, or on_change='continue', adds new "
        "files after the others; mode='overwrite' replaces this output by one made from all files."
    )
    committer.left_out = tuple(new)


def _add_shards(
    source: Source,
    paths: Sequence[str],
    committer: ShardCommitter,
    partitioning: Partitioning,
    older: Sequence[int],
) -> Source:
    """Make further shards: in the place of ``older`` ones, and from the files that are new since the plan."""
    first = len(source.files())
    whole = source.pinned(paths)
    if source.schema().names and not whole.schema().equals(source.schema()):
        raise InputChanged(
            f"The new input files, {paths[first]} the first of them, have other columns than the input of the run in "
            f"{committer.output}: {describe_difference(source.schema(), whole.schema())}. Nothing was touched: take "
            "them out of the input, or leave them out (without on_change='continue' or incremental=True), write to "
            "another folder, or make the output again with mode='overwrite'."
        )
    splits = (whole.splits_from(first) if len(paths) > first else ()) or ()
    known = committer.plan.shards
    shards, again = list(successors(known, older).values()), len(files_in(whole, [known[i] for i in older]))
    count = len(committer.plan.shards) + len(shards)
    shards += [Shard(count + i, shard.splits) for i, shard in enumerate(partitioning.shards_of(splits))]
    if shards:
        reached = further_version(committer, whole)
        committer.grow(whole.files()[first:], shards, older, again, reached)
    return whole


def _refuse_changed(source: Source, committer: ShardCommitter, changed: set[int]) -> None:
    done = (shard for shard in committer.plan.shards if changed and committer.state.done[shard.index])
    for shard in done:
        for file in sorted(files_in(source, [shard]) & changed):
            raise InputChanged(
                f"The input file {committer.plan.files[file][0]} changed, or is gone, since rows of "
                f"{committer.output} were made from it (part {shard.index}). Nothing was touched: bring the old "
                "file back, write to another folder, or make the output again with mode='overwrite'."
            )


def _refuse_rows_behind(source: Source, committer: ShardCommitter, changed: set[int]) -> None:
    """Refuse files that had no row when a finished run was planned, and may have some now: no shard reads them."""
    others = sorted(changed - files_in(source, committer.plan.shards))
    if others:
        raise InputChanged(
            f"The input file {committer.plan.files[others[0]][0]} had no rows when the run in {committer.output} "
            "began, and was written again after the run had finished. Nothing was touched: bring the old file back, "
            "write to another folder, or make the output again with mode='overwrite'."
        )


def _refuse_renamed(committer: ShardCommitter, new: Sequence[InputFile]) -> None:
    """Refuse a new file with the size and the time of one that is gone: its rows would be added a second time."""
    gone = frozenset(committer.gone)
    old = {file[1:]: file[0] for file in committer.plan.files if file[0] in gone and file[1]}
    renamed = [(old[file[1:]], file[0]) for file in new if file[1:] in old]
    if renamed:
        (was, is_), *others = renamed
        more = f", and so {plural(len(others), 'other file')}" if others else ""
        raise InputChanged(
            f"The input file {was}, whose rows are in {committer.output}, is gone, and {is_} has the same size and "
            f"time or version{more}: it looks like the same file with a new name, and its rows would be added a "
            "second time. Nothing was touched: give it its old name, or take it out of the input. If it is a new "
            "file, change its time with `touch`. An output that was begun with key= leaves out rows that it has "
            "already."
        )


def _first_file(committer: ShardCommitter) -> int:
    """Return the number of the first file that the last run took in."""
    return sum(run.files for run in committer.state.runs[:-1])


def _refuse_lost(
    source: Source, committer: ShardCommitter, now: Mapping[str, InputFile], known: Mapping[str, int]
) -> None:
    """Refuse to make rows of a run that had ended from files that are others now: its keys are those of then."""
    files, runs = committer.plan.files, committer.state.runs
    ended = len(files) if runs[-1].ended else _first_file(committer)
    for i in sorted(files_to_read(source, committer)):
        if i < ended and (known[files[i][0]] != i or now.get(files[i][0]) != files[i]):
            raise InputChanged(
                f"Parts of {committer.output} are gone, and the input file {files[i][0]}, of which they had rows, "
                "has changed or is gone, so these rows cannot be made again. Restore the output from a copy, or "
                "write to another folder."
            )


def _refuse_rewritten(source: Source, committer: ShardCommitter, changed: set[int]) -> None:
    """Refuse files that are others than those whose rows are in the output, or that had none."""
    others = sorted(changed - files_to_read(source, committer))
    if others:
        path, size, _ = committer.plan.files[others[0]]
        more = f", and {plural(len(others) - 1, 'other file')}" if len(others) > 1 else ""
        raise InputChanged(
            f"The input file {path}{more} was written again since its rows were added to {committer.output} (it had "
            f"{size:,} bytes, or another time, content or version). incremental=True adds the rows of new files and "
            "replaces no rows. Nothing was touched: bring the old file back and give the new content another name, "
            "write to another folder, or make the output again from all files with mode='overwrite' and without "
            "incremental."
        )


def _replan(source: Source, committer: ShardCommitter, changed: set[int]) -> list[Shard]:
    """Put the new splits of changed files where their first old split stood; no committed shard is touched.

    A split of several files becomes one of each, if the source can read them so; else it takes them whole, whatever
    is in them, and stays as it is.
    """
    new_splits = _new_splits(source, committer.plan.shards, changed)
    alone = frozenset(new_splits)
    parted: set[range] = set()
    shards: list[list[Split]] = []
    for shard in committer.plan.shards:
        kept: list[Split] = []
        for split in shard.splits:
            files = source.files_of(split)
            if alone.isdisjoint(files):
                kept.append(split)
            elif files not in parted:
                parted.add(files)
                for file in files:
                    kept += new_splits.pop(file, []) if file in alone else source.splits_alone(file) or ()
        shards.append(kept)
    for file in sorted(new_splits):  # those that had no row before
        if new_splits[file]:
            _insert_in_order(file, new_splits[file], shards, source, committer)
    return [
        Shard(shard.index, tuple(splits), shard.name)
        for shard, splits in zip(committer.plan.shards, shards, strict=True)
    ]


def _new_splits(source: Source, shards: Sequence[Shard], changed: set[int]) -> dict[int, list[Split]]:
    """Return the new splits of each changed file that can be read alone, or that is, before and now."""
    found = {file: source.splits_alone(file) for file in changed}
    new_splits: dict[int, list[Split]] = {file: [] for file, splits in found.items() if splits is None}
    now = source.splits() if new_splits else ()
    for split in (*now, *(split for shard in shards for split in shard.splits)):
        files = source.files_of(split)
        if len(files) > 1:
            for file in files:
                new_splits.pop(file, None)
    for split in now:
        file = _file_of(source, split)
        if file in new_splits:
            new_splits[file].append(split)
    return new_splits | {file: list(splits) for file, splits in found.items() if splits is not None}


def _insert_in_order(
    file: int, splits: list[Split], shards: list[list[Split]], source: Source, committer: ShardCommitter
) -> None:
    order = sorted(range(len(shards)), key=lambda number: committer.plan.shards[number].place)
    there = [(number, at) for number in order for at in range(len(shards[number]))]
    first = next((i for i, (n, at) in enumerate(there) if _file_of(source, shards[n][at]) > file), len(there))
    # Before the first split of a later file, else behind the last one of an earlier file.
    behind = [(number, -1) for number, _ in there[:first][-1:]]
    for number, at in there[first : first + 1] + behind:
        alike = source.dataset_of(shards[number][at]) == source.dataset_of(splits[0])
        if alike and not committer.state.done[number]:
            at = at if at >= 0 else len(shards[number])
            shards[number][at:at] = splits
            return
    raise InputChanged(
        f"The input file {committer.plan.files[file][0]} had no rows when the run in {committer.output} began, and "
        "has some now. The rows before and after it are written already, so its rows have no place. Bring the old "
        "file back, write to another folder, or make the output again with mode='overwrite'."
    )


def _file_of(source: Source, split: Split) -> int:
    """Return the number of the first file that a split reads; -1 if it reads none, as of a table in memory."""
    return next(iter(source.files_of(split)), -1)


# ------------------------------------------------------------ rows that other code made


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


def _to_make_again(source: Source, committer: ShardCommitter, code: Mapping[str, str] | None) -> list[int]:
    """Return the shards that other code made, whose files are all there, and that a complete output has: they stay
    until new ones can replace them. Such shards of which no reader knows are revoked."""
    state, plan = committer.state, committer.plan
    others = {number for number, known in state.codes.items() if known != code}
    if code is None or not others:
        return []
    older = [
        record
        for record in committer.committed()
        if record.revision in others
        and record.shard < len(plan.shards)
        and not any(
            plan.files[file][0] in committer.gone for file in files_in(source, [plan.shards[record.shard]])
        )
    ]
    aside = committer.revealing.aside
    first = len(plan.shards) if state.finished else state.runs[-1].shard if aside else 0
    unread = [record for record in older if record.shard >= first]
    if unread:
        committer.revoke_unread(unread)
    return [record.shard for record in older if record.shard < first]
