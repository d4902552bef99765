"""The run in a sentence or two: did it work, how fast, what took the time."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.core.human import duration, per_second, percent, plural
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.run_parts import bottleneck
from headrace.observers.time_spent import Part, StageTime, all_parts, stage_times

_BUSY = ("reading", "decoding", "step", "metrics", "writing", "lost", "other")
_LONG = 0.5  # seconds: a shorter run has no slow part worth a sentence


def verdict(history: History, facts: Facts) -> str:
    """Return how the run ended, in one sentence."""
    ledger, spent = facts.ledger, duration(history.seconds)
    rows = f"{ledger.written:,} {'row' if ledger.written == 1 else 'rows'}"
    kept = (
        f"{rows} {'is' if ledger.written == 1 else 'are'} kept"
        if facts.shards[0]
        else "nothing was committed"
    )
    if facts.status == "complete":
        failed = [f"{ledger.rejected:,} rejected"] if ledger.rejected else []
        failed += [f"{ledger.nulled:,} with a null for a result"] if ledger.nulled else []
        drivers = len(history.drivers)
        by = f", in {drivers} goes" if drivers > 1 else ""
        return f"Complete: {rows} in {spent}{by}{''.join(f', {each}' for each in failed)}."
    if facts.status == "under way":
        share = f", {percent(history.share)} done" if history.share is not None else ""
        return f"Under way for {spent}{share}: {rows} so far."
    done = (
        f" at {percent(facts.shards[0] / facts.shards[1])}" if 0 < facts.shards[0] < facts.shards[1] else ""
    )
    if facts.status == "failed":
        return f"Failed after {spent}{done}; {kept}."
    if facts.status == "interrupted":
        return f"Interrupted after {spent}{done}; {kept}."
    return f"Stopped after {spent}{done}: its driver was killed; {kept}."


def slow_part(history: History) -> str:
    """Return what took the time, in one sentence; empty if nothing is known, or the run was too short to tell."""
    stages = stage_times(history, history.at)
    if not stages or history.seconds < _LONG:
        return ""
    slowest = bottleneck(history.busy(history.at))
    if slowest is not None:
        return _of_stage(stages, slowest)
    first = all_parts(stages)[0]
    share = percent(first.share)
    if first.kind == "idle":
        reason = _why_idle(history)
        return f"Workers were idle {share} of the time{reason}."
    if first.kind in ("starting", "loading"):
        return f"{share} of worker time was {_gerund(first)}: the run is short beside its start-up."
    return f"{share} of worker time was {_gerund(first)}{_model(stages, first)}."


def _of_stage(stages: Sequence[StageTime], slowest: int) -> str:
    stage = next((each for i, each in enumerate(stages) if _number(each, i) == slowest), stages[-1])
    busiest = max((part for part in stage.parts if part.kind in _BUSY), key=lambda part: part.share)
    rest = [each for i, each in enumerate(stages) if _number(each, i) != slowest]
    model = any("predict(" in each.name for each in rest)
    waiting = "the model waited" if model and "predict(" not in stage.name else "the others waited"
    if len(rest) == 1 and waiting == "the others waited":
        waiting = f"stage {_number(rest[0], 0) + 1} waited"
    return f"{percent(busiest.share)} of stage {slowest + 1}'s time was {_gerund(busiest)}; {waiting}."


def _number(stage: StageTime, otherwise: int) -> int:
    return stage.parts[0].stage if stage.parts else otherwise


def _gerund(part: Part) -> str:
    return {"other": "other work, such as opening files", "lost": "at work that was lost"}.get(
        part.kind, part.name
    )


def _model(stages: Sequence[StageTime], first: Part) -> str:
    """Say how much the model took, if something else took the most."""
    if first.kind not in ("reading", "decoding", "writing", "waiting"):
        return ""
    models = [part for part in all_parts(stages) if part.kind == "step" and part.name.startswith("predict(")]
    return f", {percent(sum(part.share for part in models))} the model" if models else ""


def _why_idle(history: History) -> str:
    workers = sum(history.stage_workers)
    if 0 < history.shards < workers:
        return f": there were {plural(history.shards, 'shard')} for {plural(workers, 'worker')}"
    return ""


def speed(history: History) -> str:
    """Return the rows per second over all of the run, in words; empty if that is not known."""
    rate = history.average(history.at)
    return per_second(rate) if rate > 0 else ""
