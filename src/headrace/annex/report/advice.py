"""What to do next, where the figures of the run give a reason: the most that could be gained comes first.

Each piece is tried in ``tests/annex/report/test_advice.py``: a job is run as it says, and gets better.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import msgspec

from headrace.annex.report.facts import Facts, History
from headrace.core.events import StageDescribed
from headrace.core.human import count, duration, percent, plural, size
from headrace.observers.run_parts import StageState
from headrace.observers.run_state import DIVIDED, LOST, RETIRED
from headrace.observers.summary import stage_times

_LONG = 2.0  # seconds: a shorter run is no basis for advice on speed
_LEAST, _LEAST_SECONDS = 0.1, 1.0  # of the time, and in all: what gains less is not worth a change
_CALL = 0.8e-6  # seconds, at least: a call of a function for one row, with the row as a dict
_SMALLER = 8  # parts for each worker, where all are to end at about the same time
_ALONE = 0.2  # of the time, in which half of the workers have nothing left to do
_LIBRARY = r"site-packages|dist-packages|/lib/python|^<"  # compiled if a run failed
_FRAME = r'File "([^"]+)", line (\d+), in (\S+)'


class Advice(msgspec.Struct, frozen=True):
    """Something to do, the figures that are the reason, and the option or command to type.

    ``gain``: seconds of the run that it could save at most; 0 where it is not about time.
    """

    title: str
    why: str
    option: str = ""
    gain: float = 0.0


def advice(history: History, facts: Facts) -> list[Advice]:
    """Return what to do, the most worthwhile first; nothing if there is no reason."""
    found: list[Advice] = []
    typed = _Typed(history)
    if history.seconds >= _LONG and history.stages:
        for rule in (_more_workers, _batches_for_rows, _smaller_batches, _ceilings, _retired):
            found += rule(history, facts, typed)
    found = [each for each in found if each.gain >= max(_LEAST * history.seconds, _LEAST_SECONDS)]
    found.sort(key=lambda each: -each.gain)
    return [*_go_on(history, facts, typed), *found, *_look(history, facts, typed)]


def resume_command(history: History, facts: Facts) -> str:
    """Return what to type to go on with the run; empty if nobody typed a command."""
    described = history.described
    return described.resume if described is not None and facts.status != "complete" else ""


class _Typed:
    """How options are typed: as the flags of a command of ``headrace`` that began the run, or else in Python."""

    def __init__(self, history: History) -> None:
        described = history.described
        self.is_command = described is not None and described.resume.startswith("headrace resume ")
        words = described.command.split()[:4] if described is not None else []
        self._is_predict = self.is_command and "predict" in words

    def for_run(self, name: str, value: object) -> str:
        """Return an option of the run."""
        return f"--{name.replace('_', '-')} {value}" if self.is_command else f"with_options({name}={value!r})"

    def for_step(self, name: str, value: object, step: str) -> str:
        """Return an option of a step; a script that is run by a command says it in Python, too."""
        if self._is_predict:
            return f"--{name.replace('_', '-')} {value}"
        return f"{name}={value!r}  # of {step}"

    def workers(self, number: int, stage: StageDescribed | None) -> str:
        """Return how a stage gets so many workers."""
        if stage is not None and stage.sized_by:  # with_options(workers=) would change nothing
            return self.for_step("concurrency", number, stage.sized_by)
        return self.for_run("workers", number)


# ------------------------------------------------------------ a run that is not complete


def _go_on(history: History, facts: Facts, typed: _Typed) -> list[Advice]:
    command = resume_command(history, facts)
    again = "Go on with it" if typed.is_command else "Run the same command again"
    kept = "it goes on behind what is finished" if facts.shards[0] else "it starts from the beginning"
    if facts.status in ("interrupted", "stopped"):
        left = max(0, facts.shards[1] - facts.shards[0])
        why = f"{plural(left, 'part')} of {facts.shards[1]:,} are left; {kept}."
        return [Advice(again, why, command or "the same program")]
    if facts.status == "unpublished":
        why = "Its rows are kept out of sight until somebody decides, or the same run has other requirements."
        option = f"headrace publish {shlex.quote(facts.output)} --because …"
        return [Advice("Publish it, or discard it", why, option)]
    if facts.status != "failed":
        return []
    found = [Advice(*_cause(facts))]
    options = history.described.options if history.described is not None else {}
    first = not facts.shards[0] and re.search(r"\brow 0\b", facts.error)  # then all rows may fail
    if facts.trace and not first and options.get("on_error", "raise") == "raise":
        why = "They are kept apart with their error, and the others are written."
        found.append(Advice("Or set aside the rows that fail", why, typed.for_run("on_error", "reject")))
    changed = (
        " If the code was changed: on_change='continue' keeps what is finished." if facts.shards[0] else ""
    )
    if typed.is_command:
        changed = changed.replace("on_change='continue'", "--on-change continue")
    found.append(
        Advice(f"Then {again[0].lower()}{again[1:]}", f"{kept[0].upper()}{kept[1:]}.{changed}", command)
    )
    return found


def _cause(facts: Facts) -> tuple[str, str, str]:
    frames = re.findall(_FRAME, facts.trace)
    if frames:
        path, line, function = ([each for each in frames if not re.search(_LIBRARY, each[0])] or frames)[-1]
        error = facts.trace.strip().rsplit("\n", 1)[-1]
        called = f"Correct {function}()" if function.isidentifier() else "Correct the line"
        return called, error[:300], f"{path}:{line}"
    return "Mend what it failed with", facts.error.strip().split("\n")[0][:300], ""


# ------------------------------------------------------------ speed


def _more_workers(history: History, facts: Facts, typed: _Typed) -> Iterator[Advice]:
    """Have more workers where cores are free; of several stages, where one keeps the others waiting."""
    shares, described = history.busy(history.at), history.described
    slowest = history.bottleneck if len(shares) > 1 else 0
    if slowest is None or described is None or not described.cores or described.engine == "inline":
        return
    workers, busy = history.stage_workers[slowest], shares[slowest]
    stage = described.stages[slowest] if slowest < len(described.stages) else StageDescribed("", workers)
    used = [_cores_used(history, i) for i in range(len(shares))]
    each = used[slowest] / max(workers * busy, 1e-9)  # of a worker that is busy
    free = described.cores - sum(used)
    planned = (
        history.started.shards if history.started is not None else history.shards
    )  # no more get any work
    most = min(workers + int(free / max(each, 0.25)), planned, described.cores)
    if len(shares) > 1:
        most = min(most, 2 * workers)
    if history.memory_limit and history.memory_peak:
        most = min(most, int(workers * history.memory_limit / history.memory_peak))
    if stage.gpus or not busy or most <= workers:
        return
    others = max((share for i, share in enumerate(shares) if i != slowest), default=0.0)
    gain = history.seconds * min(busy * (1 - workers / most), 1 - others / busy)
    were = "was" if workers == 1 else "were"
    whose = f"{plural(workers, 'worker')}{f' of stage {slowest + 1}' if len(shares) > 1 else ''}"
    why = f"{whose} {were} busy {percent(busy)} of the time, and {free:.1f} of {described.cores} cores were free."
    title = "Use more workers" if len(shares) == 1 else f"Give stage {slowest + 1} more workers"
    yield Advice(title, why, typed.workers(most, stage), gain)


def _cores_used(history: History, stage: int) -> float:
    """Return how many cores a stage used; one for each busy worker, where that was not measured."""
    known = history.stages.get(stage, StageState())
    if not known.cpu:
        return history.busy(history.at)[stage] * history.stage_workers[stage]
    return known.cpu * history.stage_workers[stage] / max(history.capacity(stage, history.at), 1e-9)


def _batches_for_rows(history: History, facts: Facts, typed: _Typed) -> Iterator[Advice]:
    """Have a step work on batches if it is called for each row, and does so little that the calls take the time."""
    taken = dict(zip(facts.steps, (rows for rows, _ in facts.ledger.steps), strict=False))
    for part in (part for stage in stage_times(history, history.at) for part in stage.parts):
        rows = taken.get(part.name, 0)
        if part.kind != "step" or not part.name.startswith(("map(", "filter(", "flat_map(")) or not rows:
            continue
        calls = min(rows * _CALL, part.seconds)
        why = (
            f"{part.name} took {percent(part.share)} of the time. It was called for {count(rows)} rows, one by one, "
            f"and {duration(calls)} of its {duration(part.seconds)} were the calls alone."
        )
        batches = f"map_batches({part.name.partition('(')[2].rstrip(')')})"
        yield Advice(
            f"Have {part.name} work on batches", why, batches, calls / max(sum(history.stage_workers), 1)
        )


def _smaller_batches(history: History, facts: Facts, typed: _Typed) -> Iterator[Advice]:
    """Take smaller batches where a worker is left alone with one, so that nobody can take a part of its work."""
    stages = history.described.stages if history.described is not None else ()
    last = history.tracks[max(history.tracks)] if history.tracks else {}
    ends = sorted(max(span.end for span in spans) for spans in last.values())
    if len(ends) < 2 or len(history.drivers) > 1 or len(stages) != 1 or not stages[0].batches:
        return
    step, batch = max(stages[0].batches.items(), key=lambda each: each[1])
    alone = ends[-1] - ends[(len(ends) - 1) // 2]
    fewer = max(1, history.read // (len(ends) * _SMALLER))
    if alone < _ALONE * history.seconds or fewer >= batch:
        return
    why = (
        f"For the last {duration(alone)}, {percent(alone / history.seconds)} of the time, half of the workers had "
        f"nothing left to do. Work is shared out in batches, and these had {batch:,} rows."
    )
    yield Advice("Take smaller batches", why, typed.for_step("batch_size", fewer, step), alone / 2)


# ------------------------------------------------------------ memory


def _ceilings(history: History, facts: Facts, typed: _Typed) -> Iterator[Advice]:
    """Say at once how many rows fit; finding out costs the batches that did not."""
    seconds = {
        part.name: part.seconds
        for stage in stage_times(history, history.at)
        for part in stage.parts
        if part.kind == "step"
    }
    for each in history.ceilings():
        tried = sum(
            2 * rows for _, step, what, rows, _ in history.batches if step == each.step and "fit" in what
        )
        gain = seconds.get(each.step, 0.0) * tried / max(history.read, 1)
        why = (
            f"More rows at a time did not fit into memory, and to find that out took {duration(gain)}. With "
            f"{each.rows:,} rows, the next run need not try."
        )
        option = typed.for_step("batch_size", each.rows, each.step)
        yield Advice(f"Say how many rows fit for {each.step}", why, option, gain)


def _retired(history: History, facts: Facts, typed: _Typed) -> Iterator[Advice]:
    retired, workers = history.counts[RETIRED], sum(history.stage_workers)
    stages = history.described.stages if history.described is not None else ()
    if not retired or history.counts[DIVIDED] or len(stages) != 1 or workers < 2:
        return
    limit = f" ({size(history.memory_limit)})" if history.memory_limit else ""
    why = (
        f"{plural(retired, 'worker')} had to be ended so that the run stayed within memory_limit{limit}, and what "
        f"they had done was done again."
    )
    option = typed.workers(max(1, workers - 1), stages[0])
    yield Advice("Let fewer workers share the memory", why, option, history.lost / workers)


# ------------------------------------------------------------ where to look


def _look(history: History, facts: Facts, typed: _Typed) -> Iterator[Advice]:
    lost = history.counts[LOST]
    if lost > history.counts[RETIRED]:
        why = (
            f"{plural(lost, 'worker')} ended before the work did; parts of the input were done again for it. The "
            "reasons are listed under “What happened on the way”."
        )
        yield Advice("Find out why workers end", why)
    ledger = facts.ledger
    if ledger.rejected and ledger.read:
        share = percent(ledger.rejected / ledger.read, 2)
        why = f"{ledger.rejected:,} of {ledger.read:,} rows ({share}) failed, and were set aside."
        output = facts.output
        option = (
            f"headrace rejected {shlex.quote(output)}"
            if typed.is_command
            else f"hr.read_rejected({output!r})"
        )
        yield Advice("Look at the rows that failed", why, option)
