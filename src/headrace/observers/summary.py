"""A finished run in a few lines; and what its workers did with their time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

import msgspec

from headrace.core.events import Batches, RunFinished, StageUse
from headrace.core.files.artifacts import shortened
from headrace.core.human import duration, per_second, percent, plural, size
from headrace.core.terminal import visible
from headrace.core.work import Ledger, Timings
from headrace.observers.run_parts import BUSY, StageState, bottleneck
from headrace.observers.run_state import DIVIDED, RETIRED, RunState
from headrace.observers.words import summary_lines

# ----------------------------------------------------------------
# What the workers did with their time: one computation, for terminal, status, report and advice.

Kind = Literal[
    "starting", "loading", "reading", "decoding", "step", "metrics", "writing", "waiting", "lost", "under way",
    "other", "idle",
]  # fmt: skip

_LEAST = 0.005  # a smaller share of the time is not told
_MOST = 5  # parts in a line


class Part(msgspec.Struct, frozen=True):
    """Something that the workers of a stage did: its kind, its name in words, how long, and which share that is."""

    kind: Kind
    name: str
    seconds: float
    share: float
    stage: int = 0


class StageTime(msgspec.Struct, frozen=True):
    """The time that the workers of a stage had, in seconds summed over all, and its parts, which add up to it."""

    name: str
    workers: int
    seconds: float
    parts: tuple[Part, ...]

    def share(self, *kinds: Kind) -> float:
        """Return the share of the time that went into what is of these kinds."""
        return sum(part.share for part in self.parts if part.kind in kinds)


def stage_times(state: RunState, now: float) -> list[StageTime]:
    """Return what each stage's workers did, over all drivers. ``now``: until when the present one has worked.

    Reading, steps and writing may go on at the same time in a worker; they are scaled to the time that it took.
    """
    found = []
    names = state.stage_names
    for i, (name, workers) in enumerate(zip(names, state.stage_workers, strict=True)):
        under_way = state.under_way(now) if i + 1 == len(names) else []
        stage = state.stages.get(i, StageState() if under_way else None)
        if stage is None:
            continue
        at_work = max(stage.seconds, 1e-9)
        capacity = max(state.capacity(i, now), at_work + stage.starting + stage.loading)
        seconds = [
            (kind, words, took) for kind, words, took in _parts(state, i, stage, len(names)) if took > 0
        ]
        if under_way:
            seconds.append(("under way", "work under way", sum(end - since for since, end in under_way)))
        idle = capacity - sum(took for *_, took in seconds)
        seconds.append(("idle", "idle", max(0.0, idle)))
        parts = tuple(Part(kind, words, took, took / capacity, i) for kind, words, took in seconds)
        found.append(StageTime(name, workers, capacity, parts))
    return found


def _parts(state: RunState, number: int, stage: StageState, stages: int) -> list[tuple[Kind, str, float]]:
    first, last = number == 0, number + 1 == stages
    source = (state.described.source.lower() if state.described is not None else "") or "the source"
    source = {"parquet": "Parquet", "csv": "CSV", "json": "JSON", "image": "images"}.get(source, source)
    at_work = max(stage.seconds, 1e-9)
    measured = stage.work + stage.wait
    scale = min(1.0, at_work / measured) if measured > 0 else 0.0
    lost = min(stage.lost, at_work - scale * measured)
    steps = step_names(state, number)
    each = [*stage.each, *[0.0] * (len(steps) - len(stage.each))]
    rest = max(0.0, stage.steps - stage.metrics - sum(stage.each))
    return [
        ("starting", "starting workers", stage.starting),
        ("loading", "loading models", stage.loading),
        ("reading", f"reading {source}" if first else "taking over blocks", scale * stage.read),
        ("decoding", f"decoding {source}", scale * stage.decode),
        *(
            ("step", steps[i] if i < len(steps) else f"step {i + 1}", scale * seconds)
            for i, seconds in enumerate(each)
        ),
        (
            "step",
            "steps" if stage.each else state.stage_names[number],
            scale * rest if rest > 1e-3 * stage.steps else 0.0,
        ),
        ("metrics", "counting metrics", scale * stage.metrics),
        ("writing", "writing" if last else "handing over blocks", scale * stage.write),
        ("waiting", "waiting for the stage before", scale * stage.wait),
        ("lost", "work that was lost", lost),
        ("other", "other", max(0.0, at_work - scale * measured - lost)),
    ]


def step_names(state: RunState, stage: int) -> tuple[str, ...]:
    """Return the steps of a stage in words."""
    stages = state.described.stages if state.described is not None else ()
    return stages[stage].steps if stage < len(stages) else ()


def all_parts(stages: Sequence[StageTime]) -> list[Part]:
    """Return what all workers did: parts of the same name are one, and the longest comes first.

    >>> one = StageTime("f", 1, 4.0, (Part("step", "f", 3.0, 0.75), Part("idle", "idle", 1.0, 0.25)))
    >>> two = StageTime("g", 1, 4.0, (Part("idle", "idle", 4.0, 1.0, 1),))
    >>> [(part.name, part.share) for part in all_parts([one, two])]
    [('idle', 0.625), ('f', 0.375)]
    """
    whole = sum(stage.seconds for stage in stages)
    merged: dict[tuple[str, str], Part] = {}
    for part in (part for stage in stages for part in stage.parts):
        before = merged.get((part.kind, part.name))
        seconds = part.seconds + (before.seconds if before is not None else 0.0)
        first = before.stage if before is not None else part.stage
        merged[part.kind, part.name] = Part(part.kind, part.name, seconds, seconds / max(whole, 1e-9), first)
    return sorted(merged.values(), key=lambda part: -part.seconds)


def findings(state: RunState, seconds: float) -> dict[str, Any]:
    """Return what ``RunFinished`` says beyond the journal, by its names, for a run of so many seconds."""
    end = state.drivers[-1].began + seconds if state.drivers else seconds
    names, spent = state.stage_names, all_parts(stage_times(state, end))
    return {
        "stages": tuple(map(StageUse, names, state.stage_workers, state.busy(end))) if len(names) > 1 else (),
        "ceilings": state.ceilings(),
        "retried": tuple((step, error, calls) for (step, error), calls in state.retried.most_common()),
        "retired": state.counts[RETIRED],
        "divided": state.counts[DIVIDED],
        "batches": state.batch_sizes(),
        "paid": state.models.paid(ended=True) if state.models.known else None,
        "spent": tuple((part.name, round(part.share, 4)) for part in spent),
    }


def told(spent: Sequence[tuple[str, float]]) -> str:
    """Return the biggest parts in a line.

    >>> told([("predict(Net)", 0.63), ("reading Parquet", 0.2), ("idle", 0.17), ("writing", 0.001)])
    '63 % predict(Net), 20 % reading Parquet, 17 % idle'
    """
    return ", ".join(f"{percent(share)} {name}" for name, share in spent[:_MOST] if share >= _LEAST)


_KINDS = 5  # of errors
_WORDS = 200


def summary(
    event: RunFinished,
    *,
    steps: Sequence[str] = (),
    rows_before: int = 0,
    left_out: Sequence[str] = (),
    metrics: Sequence[str] = (),
    notes: Sequence[str] = (),
) -> str:
    """Say what a run did: rows in and out and where the rest went, time, output, what the workers did.

    ``steps`` are the labels of the plan's steps, in the order of the ledger; without them rows that a step
    took away are just "dropped". ``rows_before`` rows were read by an earlier run of the same output, and do
    not count for the speed; if they are all, nothing was done now. ``metrics`` and ``notes`` are lines of their own.

    >>> from headrace.core.work import Ledger, Timings
    >>> ledger = Ledger(1_200_000, 900_000, steps=((1_200_000, 900_000),), dropped=(300_000,))
    >>> event = RunFinished("r1", "/out", ledger, Timings(1, 6, 2, 1), 340 << 20, 12, 12.3)
    >>> print(summary(event, steps=["filter(tipped)"]))
    1,200,000 rows in, 900,000 out, 300,000 filtered in 12.3 s: 97.6 k rows/s
    12 files, 340 MiB in /out
    workers: read 10 %, steps 60 %, write 20 %, wait 10 %

    Of a run that was watched, ``event.spent`` says what its workers did instead of the last line's shares.
    """
    ledger = event.ledger
    if event.error:
        return _failed(event)
    first = in_and_out(ledger, steps)
    fresh = ledger.read - rows_before
    if not rows_before:
        first += f" in {duration(event.seconds)}"
    elif fresh:
        first += f" ({rows_before:,} of them read before, by an earlier run)"
        first += f"; {fresh:,} now in {duration(event.seconds)}"
    else:
        first += ", all by an earlier run"
    if fresh > 0 and event.seconds > 0:
        first += f": {per_second(fresh / event.seconds)}"
    lines = [first, f"{plural(event.files, 'file')}, {size(event.bytes)} in {event.output}"]
    lines += metrics
    work = (told(event.spent) or shares(event.timings)) if fresh > 0 else ""
    if event.retries:
        work += ("; " if work else "") + plural(event.retries, "retry", "retries")
    if work:
        lines.append(f"workers: {work}")
    lines += summary_lines(ledger.answered, event.paid)
    lines += fault_lines(event)
    lines += [
        f"{plural(calls, 'call')} of {step} tried again after {error}" for step, error, calls in event.retried
    ]
    lines += stage_lines(event.stages)
    lines += batch_lines(event.batches)
    lines += memory_lines(event)
    lines += notes
    if left_out:
        lines.append(f"not in it: {plural(len(left_out), 'input file')} that came after the run was planned")
    return visible("\n".join(lines))


def reading(
    ledger: Ledger, timings: Timings, seconds: float, steps: Sequence[str] = (), *, ended: bool = True
) -> str:
    """Say what a run did whose rows went to the program that asked for them. ``ended``: it was not stopped before.

    >>> ledger = Ledger(100, 40, steps=((100, 40),), dropped=(60,))
    >>> print(reading(ledger, Timings(1, 9, 0, 0), 2.0, ["filter(tipped)"]))
    100 rows in, 40 out, 60 filtered in 2.0 s: 50 rows/s
    filter(tipped): 100 rows in, 40 out
    workers: read 10 %, steps 90 %, write 0 %, wait 0 %
    """
    speed = f": {per_second(ledger.read / seconds)}" if ledger.read and seconds > 0 else ""
    lines = [
        f"{in_and_out(ledger, steps)} in {duration(seconds)}{speed}"
        + ("" if ended else "; stopped before the end")
    ]
    lines += [
        f"{label}: {plural(taken, 'row')} in, {given:,} out"
        for label, (taken, given) in zip(steps, ledger.steps, strict=False)
    ]
    work = shares(timings)
    return visible("\n".join([*lines, f"workers: {work}"] if work else lines))


def fault_lines(event: RunFinished) -> list[str]:
    """Say which errors rows failed with, the most frequent first, and where the rejected rows are.

    >>> from headrace.core.work import Fault, Faults, Ledger, Timings
    >>> fault = Fault("map(parse)", "ValueError", "no number: 'x'")
    >>> event = RunFinished("r1", "/out", Ledger(9, 6, 3), Timings(), 1, 1, 1.0, faults=Faults(((fault, 3),)))
    >>> print(*fault_lines(event), sep="\\n")
    3 rows failed in map(parse): ValueError: no number: 'x'
    rejected rows: hr.read_rejected('/out')
    """
    counts = sorted(event.faults.counts, key=lambda each: -each[1])
    lines = [
        f"{plural(number, 'row')} failed in {fault.step}: "
        + ": ".join(filter(None, [fault.kind, shortened(" ".join(fault.message.split()), _WORDS)]))
        for fault, number in counts[:_KINDS]
    ]
    if len(counts) > _KINDS:
        lines.append(f"{plural(sum(number for _, number in counts[_KINDS:]), 'row')} failed in other ways")
    if event.ledger.rejected and not event.ledger.written:
        lines.append(
            "no row was written: what fails may be the function, or its batch_size, rather than rows"
        )
    if event.ledger.rejected:
        lines.append(f"rejected rows: hr.read_rejected({event.output!r})")
    return lines


def stage_lines(stages: Sequence[StageUse]) -> list[str]:
    """Say how busy each stage was, and which one is the bottleneck.

    >>> for line in stage_lines([StageUse("map_batches(decode)", 2, 0.97), StageUse("predict(Net)", 1, 0.4)]):
    ...     print(line)
    stage 1, map_batches(decode): 2 workers, 97 % busy, the bottleneck
    stage 2, predict(Net): 1 worker, 40 % busy
    """
    if len(stages) < 2:
        return []
    slowest = bottleneck([stage.busy for stage in stages])
    lines = []
    for i, stage in enumerate(stages):
        line = (
            f"stage {i + 1}, {stage.name}: {plural(stage.workers, 'worker')}, {100 * stage.busy:.0f} % busy"
        )
        if i == slowest:
            line += ", the bottleneck"
        lines.append(line)
    if max(stage.busy for stage in stages) < BUSY:
        lines.append("no stage was busy all the time: reading, writing or start-up took the rest")
    return lines


def batch_lines(batches: Sequence[Batches]) -> list[str]:
    """Say which batch sizes were found.

    >>> batch_lines([Batches("predict(Net)", 512, 4096), Batches("map_batches(f)", 64, 64)])
    ['batches of 512 to 4,096 rows for predict(Net)', 'batches of 64 rows for map_batches(f)']
    """
    return [
        f"batches of {each.least:,}{f' to {each.most:,}' if each.most > each.least else ''} rows for {each.step}"
        for each in batches
    ]


def memory_lines(event: RunFinished) -> list[str]:
    """Say what fits into memory, and how the run stayed within it.

    >>> from headrace.core.events import Ceiling
    >>> from headrace.core.work import Ledger, Timings
    >>> event = RunFinished("r", "/out", Ledger(), Timings(), 1, 1, 1.0, ceilings=(Ceiling("f", 250),), retired=2)
    >>> print(*memory_lines(event), sep="\\n")
    memory: f got 250 rows at a time, more did not fit; batches of that size would avoid retries
    memory: 2 workers retired to stay within memory_limit: fewer of them would avoid that
    """
    lines = [
        f"memory: {each.step} got {plural(each.rows, 'row')} at a time, more did not fit; batches of that size would "
        "avoid retries"
        for each in event.ceilings
    ]
    done, within = f"memory: {plural(event.retired, 'worker')} retired", "to stay within memory_limit"
    if event.retired and event.divided:
        parts = plural(event.divided, "part") + " of the input"
        lines.append(
            f"{done}, {parts} divided {within}: a step keeps more with each batch, or its batches are too big"
        )
    elif event.retired:
        lines.append(f"{done} {within}: fewer of them would avoid that")
    return lines


def in_and_out(ledger: Ledger, steps: Sequence[str] = ()) -> str:
    """Say how many rows were read and written, and where the others went.

    >>> in_and_out(Ledger(1_000_000, 999_910, 90))
    '1,000,000 rows in, 999,910 out, 90 rejected'
    """
    first = [f"{plural(ledger.gathered, 'row')} in what was made first"] if ledger.gathered else []
    ends = [f"{plural(ledger.read, 'row')} in", f"{ledger.written:,} out"]
    return ", ".join([*first, *ends, *(f"{number:,} {what}" for number, what in terms(ledger, steps))])


def terms(ledger: Ledger, steps: Sequence[str] = ()) -> list[tuple[int, str]]:
    """Return how many rows were added, and how many went where that were read but not written.

    Each number was counted where it happened: if some row is missing, they do not add up.

    >>> terms(Ledger(100, 40, 5, ((100, 45),), (5,), 0, (50,), (0,), (0,)), ["filter(tipped)"])
    [(50, 'filtered'), (5, 'rejected')]
    """
    filtered = dropped = 0
    cut = sum(ledger.unused)
    for label, number in zip_longest(steps[: len(ledger.dropped)], ledger.dropped, fillvalue=""):
        if str(label).startswith("filter"):
            filtered += int(number)
        elif str(label).startswith("limit"):
            cut += int(number)
        else:
            dropped += int(number)
    numbers = [
        (sum(ledger.added), "added"),
        (filtered, "filtered"),
        (cut, "cut by limit"),
        (dropped, "dropped"),
        (ledger.rejected, "rejected"),
        (ledger.nulled, "with a null for a result"),
    ]
    return [(number, what) for number, what in numbers if number > 0]


def ledger_data(ledger: Ledger, labels: Sequence[str]) -> dict[str, Any]:
    """Return the ledger as ``_SUCCESS`` and the record have it; ``record_reader.ledger_of`` reads it back.

    >>> data = ledger_data(Ledger(100, 40, 5, ((100, 45),), (5,), 0, (50,), (0,), (0,)), ["filter(tipped)"])
    >>> data["read"], data["steps"][0]["step"], data["steps"][0]["dropped"]
    (100, 'filter(tipped)', 50)
    """
    none = (0,) * len(ledger.steps)
    names = ("rejected", "dropped", "added", "unused")
    numbers = [each or none for each in (ledger.rejects, ledger.dropped, ledger.added, ledger.unused)]
    steps = [
        {"step": label, "rows_in": taken, "rows_out": given, **dict(zip(names, rest, strict=True))}
        for label, (taken, given), *rest in zip(labels, ledger.steps, *numbers, strict=False)
    ]
    whole = {name: getattr(ledger, name) for name in ("read", "written", "rejected", "nulled")}
    answered = {"answered": ledger.answered.data()} if ledger.answered is not None else {}
    gathered = {"gathered": ledger.gathered} if ledger.gathered else {}
    return {**gathered, **whole, "steps": steps, **answered}


def shares(timings: Timings) -> str:
    """Say what the workers' time went into, in percent of all that was measured."""
    parts = {"read": timings.read, "decode": timings.decode, "steps": timings.steps, "write": timings.write}
    parts = {name: seconds for name, seconds in parts.items() if seconds or name != "decode"}
    parts["wait"] = timings.wait
    total = sum(parts.values())
    if total <= 0:
        return ""
    return ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in parts.items())


def _failed(event: RunFinished) -> str:
    reason = event.error.strip().split("\n")[0]
    kept = f"no rows were written to {event.output}"
    if event.ledger.read:
        rows = plural(event.ledger.written, "row")
        kept = f"{rows} are safe in {event.output}: the same command, run again, resumes from there"
    return visible(f"failed after {duration(event.seconds)}: {reason}\n{kept}")
