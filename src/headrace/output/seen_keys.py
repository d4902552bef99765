"""``key=``: which keys the runs of an output have seen, and which of them a run passes over.

::

    OUT/_headrace/<run>/keys/<number>-<i>/   the keys of all rows that the run of this number reads, file by file
    OUT/_headrace/<run>/staging/seen/        those of the runs before the one that is at work

Keys of a run are saved before its first row is processed, and count from when it has finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.core.asked import why_not
from headrace.core.files import safe_files
from headrace.core.key_digests import (
    Digests,
    KeyFile,
    Keys,
    check_key,
    digests_of,
    kinds_of,
    merged_keys,
    write_keys,
)
from headrace.core.source_ports import Source
from headrace.core.work import Split
from headrace.errors import ArgumentError, BadInput, InputChanged, JournalDamaged, PlanChanged, UnknownColumn
from headrace.output.commit import ShardCommitter
from headrace.output.journal_state import RunEntry, run_at
from headrace.plan.logical import Plan
from headrace.plan.steps.selection import Unseen

KEYS = "keys"
_BATCH = 1 << 16  # rows


def key_step(plan: Plan) -> Unseen | None:
    """Return the step that leaves out rows whose keys were seen, if the plan has one: the first."""
    return plan.steps[0] if plan.steps and isinstance(plan.steps[0], Unseen) else None


def check_keys(plan: Plan, *, incremental: bool, refresh: bool) -> None:
    """Refuse ``key=`` where it has no meaning, or cannot be exact."""
    step = key_step(plan)
    if step is None:
        return
    words = f"key={list(step.key)!r}"
    if not incremental:
        raise ArgumentError(f"{words} without incremental=True: it says which rows of a further run are new.")
    if refresh:
        raise ArgumentError(
            f"{words} with refresh='changed': rows would be made again from files that were rewritten since, and may "
            "not have these rows any more. Leave one of the two out; on_change='restart' makes all rows from the "
            "files as they are now."
        )
    if plan.sink is not None:
        plan.sink.storage.on_disk(f"{words} with an output in an object store: {why_not('key', 'store')}")
    schema = plan.source.schema()
    if schema.names:  # files without rows may not say which columns they have
        check_key(schema, step.key)


def check_kinds(committer: ShardCommitter, schema: pa.Schema, key: Sequence[str]) -> None:
    """Refuse input whose keys are of other types than those that were saved: equal ones would not be recognised."""
    if not schema.names:
        return
    runs = range(1, len(committer.state.runs) + 1)  # one without rows has saved none
    saved = next((files[0] for number in runs if (files := _saved(committer, number))), None)
    now = kinds_of(schema, key)
    for name, was, is_ in zip(key, saved.about.get("kinds", now) if saved else now, now, strict=True):
        if was != is_ and "null" not in (was, is_):
            raise InputChanged(
                f"The key column {name!r} of the input is of another type than when the run in {committer.output} "
                f"began: {is_}, and it was {was}. Keys of two types cannot be compared, so rows that were "
                "processed would be taken for new ones. Nothing was touched: write the files with the type that they "
                "had, or write to another folder."
            )


def prepare_keys(committer: ShardCommitter, plan: Plan, *, on_error: str) -> None:
    """Save the keys that the last run reads, and tell the step where those are that it is to pass over."""
    step = key_step(plan)
    if step is None:
        return
    runs = committer.state.runs
    number = _run_to_do(committer)
    if number == len(runs) and not runs[-1].ended:
        _save(committer, plan.source, step.key, rejects=on_error != "raise")
    step.seen.folder = _collected(committer, plan.source, runs[: number - 1], step.key)


def _run_to_do(committer: ShardCommitter) -> int:
    """Return the number of the run whose shards are to be done; refuse where several are, as parts were lost."""
    runs, done = committer.state.runs, committer.state.done
    numbers = {run_at(runs, shard.index).number for shard in committer.plan.shards if not done[shard.index]}
    if len(numbers) > 1:
        raise PlanChanged(
            f"Parts of several runs are gone from {committer.output}, and which rows were new differs between them. "
            "Restore the output from a copy, or write to another folder."
        )
    return numbers.pop() if numbers else len(runs)


def _save(committer: ShardCommitter, source: Source, key: Sequence[str], *, rejects: bool) -> None:
    """Save the keys of files that no earlier driver of the run has read as they are planned now.

    A file that has been processed may be another one meanwhile: it is not read again.
    """
    plan, number = committer.plan, len(committer.state.runs)
    units = _units(committer, source, number)
    marks = {owner: _mark(plan.files, source, splits[0], key) for owner, splits in units.items()}
    saved = _saved(committer, number)
    known = {owner: file.about["marks"][owner] for file in saved for owner in file.about["marks"]}
    missing = {owner: splits for owner, splits in units.items() if known.get(owner) != marks[owner]}
    if missing:
        if not source.schema().names:
            raise UnknownColumn(f"key={list(key)!r}: the input has no columns, so its rows have no key.")
        read = ((owner, _read(source, splits, key, rejects=rejects)) for owner, splits in missing.items())
        folder = committer.folder / KEYS / f"{number}-{len(saved)}"
        about = {"marks": {owner: marks[owner] for owner in missing}, "kinds": kinds_of(source.schema(), key)}
        write_keys(folder, read, about, lasting=committer.durability == "power")


def _units(committer: ShardCommitter, source: Source, number: int) -> dict[str, list[Split]]:
    """Return the splits of a run by the files that they read: one, or several that are read together."""
    found: dict[str, dict[tuple[int, int, int], Split]] = {}
    for shard in committer.plan.shards:
        for split in shard.splits if run_at(committer.state.runs, shard.index).number == number else ():
            files = source.files_of(split)
            unit = found.setdefault(f"{files.start}-{files.stop}", {})
            unit[split.file, split.start, split.stop] = split
    return {owner: list(splits.values()) for owner, splits in found.items()}


def _mark(planned: Sequence[tuple[str, int, int]], source: Source, split: Split, key: Sequence[str]) -> str:
    files = [planned[number] for number in source.files_of(split)]
    return hashlib.sha256(msgspec.json.encode([files, list(key)])).hexdigest()


def _saved(committer: ShardCommitter, number: int) -> list[KeyFile]:
    """Return what drivers of a run have saved, in their order."""
    found: list[KeyFile] = []
    while safe_files.is_folder(folder := committer.folder / KEYS / f"{number}-{len(found)}"):
        found.append(KeyFile(folder))
    return found


def _read(source: Source, splits: Sequence[Split], key: Sequence[str], *, rejects: bool) -> Iterator[Digests]:
    bad = (lambda row, count, error: None) if rejects else None
    for split in splits:
        for batch in source.read(split, list(dict.fromkeys(key)), _BATCH, bad):
            try:
                yield digests_of(batch, key)
            except BadInput as error:
                names = [source.files()[number][0] for number in source.files_of(split)]
                raise BadInput(
                    f"{error} This is in {' or '.join(names[:3])}: each row has to have a key."
                ) from None
        source.check_unchanged(split)


def _collected(
    committer: ShardCommitter, source: Source, runs: Sequence[RunEntry], key: Sequence[str]
) -> str:
    """Return the folder with the keys that some runs have done, without those that they rejected; "" if none is."""
    staging = committer.folder / "staging"
    safe_files.make_folder(staging, 0o700)
    sets: list[Keys] = []
    for run in runs:
        blocks = _blocks(committer, source, run)
        rejected = list(_rejected(committer, run, key))
        if rejected:
            aside = write_keys(staging / f"rejected-{run.number}", [("", rejected)], {}, lasting=False)
            without = merged_keys(staging / f"without-{run.number}", aside.blocks(""))
            blocks = [merged_keys(staging / f"done-{run.number}", blocks, without=without)]
        sets += [block for block in blocks if len(block.high)]
    if not sets:
        return ""
    merged_keys(staging / "seen", sets)
    return str(staging / "seen")


def _blocks(committer: ShardCommitter, source: Source, run: RunEntry) -> list[Keys]:
    """Return the keys of a run: of each file those that were saved last."""
    latest: dict[str, KeyFile] = {}
    for file in _saved(committer, run.number):
        file.check()
        latest |= dict.fromkeys(file.about["marks"], file)
    found: list[Keys] = []
    for owner in _units(committer, source, run.number):
        if owner not in latest:
            raise JournalDamaged(
                f"{committer.folder / KEYS} lacks keys of rows that are in the output. Without them, it is not known "
                "which rows are new: restore the folder from a copy, or write to another folder."
            )
        found += latest[owner].blocks(owner)
    return found


def _rejected(committer: ShardCommitter, run: RunEntry, key: Sequence[str]) -> Iterator[Digests]:
    """Yield the keys of the rows that a run rejected: they are not done."""
    for record in committer.committed():
        if run_at(committer.state.runs, record.shard).number == run.number:
            for file in record.files:
                if not file.is_part:
                    yield from _keys_in(Path(committer.output.root) / file.name, key)


def _keys_in(path: Path, key: Sequence[str]) -> Iterator[Digests]:
    with safe_files.file(path) as data, pa.ipc.open_file(data) as reader:
        for number in range(reader.num_record_batches):
            whole = reader.get_batch(number).select(list(key)).drop_null()
            if len(whole):
                yield digests_of(whole, key)
