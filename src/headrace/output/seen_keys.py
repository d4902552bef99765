"""``key=``: which keys the runs of an output have seen, and which of them a run passes over.

::

    OUT/_headrace/<run>/keys/<number>/   the keys of all rows that the run of this number reads, sorted
    OUT/_headrace/<run>/staging/seen/    those of the runs before the one that is at work

Keys of a run are saved before its first row is processed, and count from when it has finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from headrace.core.files import safe_files
from headrace.core.key_digests import Digests, KeySet, check_key, digests_of, merged_keys, write_keys
from headrace.core.ports import Source
from headrace.core.stores.addresses import is_address
from headrace.core.work import Split
from headrace.errors import ArgumentError, BadInput, PlanChanged
from headrace.output.commit import ShardCommitter
from headrace.output.run_list import RunEntry
from headrace.plan.logical import Plan
from headrace.plan.steps.unseen import Unseen

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
            f"{words} with refresh='changed': files that were written again have lost the rows which would be made "
            "again. Leave one of the two out; on_change='restart' makes all rows of the files as they are now."
        )
    if plan.sink is not None and is_address(plan.sink.root):
        raise ArgumentError(
            f"{words} with an output in an object store: keys are kept in files that workers map into memory, so the "
            "output has to be a folder."
        )
    check_key(plan.source.schema(), step.key)


def prepare_keys(committer: ShardCommitter, plan: Plan, *, on_error: str) -> None:
    """Save the keys that the last run reads, and tell the step where those are that it is to pass over."""
    step = key_step(plan)
    if step is None:
        return
    runs = committer.state.runs
    number = _run_to_do(committer)
    if number == len(runs) and not runs[-1].ended:
        _save(committer, plan.source, step.key, rejects=on_error != "raise")
    step.seen.folder = _collected(committer, runs[: number - 1], step.key)


def _run_to_do(committer: ShardCommitter) -> int:
    """Return the number of the run whose shards are to be done; refuse where several are, as parts were lost."""
    runs, done = committer.state.runs, committer.state.done
    numbers = {
        next(run.number for run in reversed(runs) if run.shard <= shard.index)
        for shard in committer.plan.shards
        if not done[shard.index]
    }
    if len(numbers) > 1:
        raise PlanChanged(
            f"Parts of several runs are gone from {committer.output}, and which rows were new differs between them. "
            "Put the parts back, or make the output again with mode='overwrite'."
        )
    return numbers.pop() if numbers else len(runs)


def _save(committer: ShardCommitter, source: Source, key: Sequence[str], *, rejects: bool) -> None:
    runs, plan = committer.state.runs, committer.plan
    first = sum(run.files for run in runs[:-1])
    files = plan.files[first : first + runs[-1].files]
    digest = hashlib.sha256(msgspec.json.encode([files, list(key)])).hexdigest()
    folder = committer.folder / KEYS / str(runs[-1].number)
    if safe_files.is_folder(folder) and KeySet(folder).about.get("files") == digest:
        return
    shards = plan.shards[runs[-1].shard :]
    splits = {(each.file, each.start, each.stop): each for shard in shards for each in shard.splits}
    read = _read(source, list(splits.values()), key, rejects=rejects)
    write_keys(folder, read, {"files": digest}, lasting=committer.durability == "power")


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


def _collected(committer: ShardCommitter, runs: Sequence[RunEntry], key: Sequence[str]) -> str:
    """Return the folder with the keys that some runs have done, without those that they rejected; "" if none is."""
    staging = committer.folder / "staging"
    safe_files.make_folder(staging, 0o700)
    sets = []
    for run in runs:
        keys = KeySet(committer.folder / KEYS / str(run.number))
        keys.check()
        rejected = list(_rejected(committer, run, key))
        if rejected:
            without = write_keys(staging / f"rejected-{run.number}", rejected, {}, lasting=False)
            keys = merged_keys(staging / f"done-{run.number}", [keys], {}, without=without, lasting=False)
        if len(keys):
            sets.append(keys)
    if len(sets) > 1:
        sets = [merged_keys(staging / "seen", sets, {}, lasting=False)]
    return str(sets[0].folder) if sets else ""


def _rejected(committer: ShardCommitter, run: RunEntry, key: Sequence[str]) -> Iterator[Digests]:
    """Yield the keys of the rows that a run rejected: they are not done."""
    runs = committer.state.runs
    after = runs[run.number].shard if run.number < len(runs) else None
    for record in committer.committed():
        if record.shard >= run.shard and (after is None or record.shard < after):
            for file in record.files:
                if not file.is_part:
                    yield from _keys_in(Path(committer.output.root) / file.name, key)


def _keys_in(path: Path, key: Sequence[str]) -> Iterator[Digests]:
    with safe_files.file(path) as data, pa.ipc.open_file(data) as reader:
        for number in range(reader.num_record_batches):
            whole = reader.get_batch(number).select(list(key)).drop_null()
            if len(whole):
                yield digests_of(whole, key)
