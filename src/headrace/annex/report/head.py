"""The head of a page: did it work, how fast, what was slow, what to do next."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from headrace.annex.report.advice import Advice, advice
from headrace.annex.report.facts import Facts, History
from headrace.annex.report.template import Value, tile
from headrace.core.human import count, duration, per_second, percent, plural, size
from headrace.observers.summary import Part, StageTime, all_parts, stage_times
from headrace.observers.words import fields, phase_words

_FIRST = 3  # pieces of advice in the head; more of them stand below
_KEPT = r" What was finished before is kept in [^\n]*$"  # as the verdict says
_SIGNS = {"complete": "✓", "under way": "…", "failed": "✕", "discarded": "✕"}  # others wait: "‖"

_BUSY = ("reading", "decoding", "step", "metrics", "writing", "lost", "other")
_LONG = 0.5  # seconds: a shorter run has no slow part worth a sentence


def head(history: History, facts: Facts) -> Value:
    """Return the verdict, what to do next, and the numbers that matter most."""
    word = _word(history, facts)
    failed = facts.status == "failed"
    slow, rate = slow_part(history), history.average(history.at)
    if slow and rate > 0 and facts.status not in ("complete", "under way"):
        slow = f"{per_second(rate)}; {slow}"  # the numbers may stand further down
    parts = all_parts(stage_times(history, history.at))
    worked = (
        f"{duration(sum(part.seconds for part in parts))} of {plural(sum(history.stage_workers), 'worker')}"
    )
    sentence = verdict(history, facts).removeprefix(word)
    return {
        "status": facts.status.replace(" ", "-"),
        "sign": _SIGNS.get(facts.status, "‖"),
        "word": word,
        "sentence": re.sub(r"(?<=\d) (?=%|s\b|min\b|h\b)", "\u00a0", sentence),
        "slow": slow,
        "progress": _progress(history) if facts.status == "under way" else None,
        "output": facts.output,
        "run": facts.run,
        "began": moment(history.drivers[0].began) if history.drivers and history.drivers[0].began else "",
        "error": re.sub(_KEPT, "", facts.error.strip()) if failed else "",
        "row": facts.row,
        "hides": "It was working on" in facts.error and ", row " in facts.error,
        "trace": facts.trace.strip(),
        "advice": _listed(advice(history, facts)[:_FIRST]),
        "time": {**strip(parts), "whole": worked} if parts and history.seconds > 0 else None,
        "key": _key_numbers(history, facts),
    }


def _progress(history: History) -> Value:
    """Return how far a run is that goes on."""
    found = fields(history, history.at, history.time_left(history.at))
    words = [" ".join(each.text.split()) for each in found if each.name in ("rows", "begun", "speed", "left")]
    return {
        "share": f"{100 * (history.share or 0.0):.1f}",
        "words": " · ".join(words) or phase_words(history),
    }


def more_advice(history: History, facts: Facts) -> Value | None:
    """Return the advice that the head has no room for."""
    found = advice(history, facts)[_FIRST:]
    return {"advice": _listed(found)} if found else None


def _listed(found: Sequence[Advice]) -> list[Value]:
    return [
        {
            "title": each.title,
            "gain": duration(each.gain) if each.gain >= 0.05 else "",
            "option": each.option,
            "why": each.why,
        }
        for each in found
    ]


def _word(history: History, facts: Facts) -> str:
    """Return how the run is, in a word or two."""
    if facts.status == "under way" and history.asked.paused and not history.asked.ends:
        return "Paused" if history.asked.held else "Pausing"
    return facts.status.capitalize()


def _key_numbers(history: History, facts: Facts) -> list[Value]:
    ledger, seconds = facts.ledger, history.elapsed(history.at)
    rate = history.average(history.at)
    found = [tile("Rows per second", count(rate))] if rate > 0 else []
    found += [tile("Time", duration(seconds)), tile("Rows written", f"{ledger.written:,}")]
    if failed := ledger.rejected + ledger.nulled:
        found.append(tile("Rows that failed", f"{failed:,}", warn=True))
    done, whole = facts.shards
    if done < whole:
        found.append(tile("Parts of the input", f"{done:,} of {whole:,}", "are done"))
    if facts.files:
        found.append(tile("Output", size(facts.bytes), f"in {plural(facts.files, 'file')}"))
    if history.memory_peak:
        found.append(tile("Memory at most", size(history.memory_peak)))
    return found


def moment(seconds: float) -> str:
    """Return a moment of seconds since 1970 as a date and a time.

    >>> moment(0.0)
    '1970-01-01 00:00:00'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(0.0, min(seconds, 4e9))))


# ------------------------------------------------------------ the run in a sentence or two


def verdict(history: History, facts: Facts) -> str:
    """Return how the run ended, in one sentence."""
    ledger, spent = facts.ledger, duration(history.elapsed(history.at))
    rows = plural(ledger.written, "row")
    if facts.status == "complete":
        failed = f", {ledger.rejected:,} rejected" if ledger.rejected else ""
        failed += f", {ledger.nulled:,} with a null for a result" if ledger.nulled else ""
        by = f", in {len(history.drivers)} goes" if len(history.drivers) > 1 else ""
        return f"Complete: {rows} in {spent}{by}{failed}."
    if facts.status == "under way":
        share = f", {percent(history.share)} done" if history.share is not None else ""
        when = "after" if history.asked.paused else "for"
        return f"{_word(history, facts)} {when} {spent}{share}: {rows} written so far."
    if facts.status == "unpublished":
        return f"Unpublished: {rows} in {spent}, and a requirement is not met."
    if facts.status == "discarded":
        return f"Discarded after {spent}, as a requirement was not met."
    done, whole = facts.shards
    kept = f"{rows} {'is' if ledger.written == 1 else 'are'} kept" if done else "no rows were written"
    killed = ": its driver was killed" if facts.status == "stopped" else ""
    at = f" at {percent(done / whole)}" if 0 < done < whole else ""
    return f"{facts.status.capitalize()} after {spent}{at}{killed}; {kept}."


def slow_part(history: History) -> str:
    """Return what took the time, in one sentence; empty if nothing is known, or the run was too short to tell."""
    stages = stage_times(history, history.at)
    if not stages or history.seconds < _LONG:
        return ""
    slowest = history.bottleneck
    if slowest is not None:
        return _of_stage(stages, slowest)
    first = all_parts(stages)[0]
    if first.kind == "under way":  # what it is, is known when it is done
        return ""
    share = percent(first.share)
    if first.kind == "idle":
        return f"Workers were idle {share} of the time{_why_idle(history)}."
    if first.kind in ("starting", "loading"):
        if history.last is None or history.last.finished is None:  # it is not over
            return ""
        return f"{share} of worker time was {_gerund(first)}: the run is short beside its start-up."
    return f"{share} of worker time was {_gerund(first)}{_model(stages, first)}."


def _of_stage(stages: Sequence[StageTime], slowest: int) -> str:
    stage = next((each for i, each in enumerate(stages) if _number(each, i) == slowest), stages[-1])
    busiest = max((part for part in stage.parts if part.kind in _BUSY), key=lambda part: part.share)
    rest = [each for i, each in enumerate(stages) if _number(each, i) != slowest]
    waiting = "the others waited"
    if "predict(" not in stage.name and any("predict(" in each.name for each in rest):
        waiting = "the model waited"
    elif len(rest) == 1:
        waiting = f"stage {_number(rest[0], 0) + 1} waited"
    return f"{percent(busiest.share)} of stage {slowest + 1}'s time was {_gerund(busiest)}; {waiting}."


def _number(stage: StageTime, otherwise: int) -> int:
    return stage.parts[0].stage if stage.parts else otherwise


def _gerund(part: Part) -> str:
    other = {"other": "other work, such as opening files", "lost": "at work that was lost"}
    return other.get(part.kind, part.name)


def _model(stages: Sequence[StageTime], first: Part) -> str:
    """Say how much the model took, if something else took the most."""
    if first.kind not in ("reading", "decoding", "writing", "waiting"):
        return ""
    models = [part for part in all_parts(stages) if part.kind == "step" and part.name.startswith("predict(")]
    return f", {percent(sum(part.share for part in models))} the model" if models else ""


def _why_idle(history: History) -> str:
    workers = sum(history.stage_workers)
    if 0 < history.shards < workers:
        return f": the input was in {plural(history.shards, 'part')} for {plural(workers, 'worker')}"
    return ""


# ------------------------------------------------------------ where the time went


_COLORS = {
    "starting": "starting", "loading": "loading", "reading": "c3", "decoding": "c2", "step": "", "metrics": "c6",
    "writing": "c4", "waiting": "wait", "lost": "bad", "under way": "under", "other": "other",
    "idle": "idle",
}  # fmt: skip
_STEPS = ("c1", "c5", "s3", "s4")
_LEAST = 0.004  # of the time: a thinner part cannot be seen
_ORDER = tuple(_COLORS)


def strip(parts: Sequence[Part], *, all_: Sequence[Part] = (), most: int = 6) -> Value:
    """Return a bar of what took the time, and below it the biggest parts with their shares.

    A kind of work has always the same colour, and steps have some of their own: the same in all bars of a page that
    get ``all_`` its parts.
    """
    in_plan = sorted(all_ or parts, key=lambda part: (part.stage, part.name))  # the same while shares change
    steps = list(dict.fromkeys(part.name for part in in_plan if part.kind == "step"))
    parts = [part for part in parts if part.share >= _LEAST]

    def color(part: Part) -> str:
        return _COLORS[part.kind] or _STEPS[steps.index(part.name) % len(_STEPS)]

    in_order = sorted(parts, key=lambda part: (_ORDER.index(part.kind), part.name))
    shown = sorted(parts, key=lambda part: -part.share)[:most]
    items = [
        {
            "color": color(part),
            "share": percent(part.share),
            "name": part.name if len(part.name) <= 60 else part.name[:59] + "…",
        }
        for part in shown
    ]
    rest = sum(part.share for part in parts) - sum(part.share for part in shown)
    if len(parts) > len(shown) and rest >= _LEAST:
        items.append({"color": "", "share": percent(rest), "name": "the rest"})
    bar = [{"color": color(part), "width": f"{100 * part.share:.2f}"} for part in in_order]
    return {"bar": bar, "parts": items}
