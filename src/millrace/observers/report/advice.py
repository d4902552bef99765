"""What to try next: said only where the numbers say so."""

from __future__ import annotations

import msgspec

from millrace.core.work import Ledger
from millrace.observers.human import count, duration, percent, plural, size
from millrace.observers.report import figures
from millrace.observers.report.history import History

_LONG = 2.0  # seconds: below, a run is over too soon to learn from
_FULL = 0.8  # busy: a stage that has no time left
_SLACK = 0.6  # busy: the most that the others are, for one to be the bottleneck


class Advice(msgspec.Struct, frozen=True):
    """Something to try, and the numbers that speak for it."""

    title: str
    why: str


def advice(history: History, ledger: Ledger) -> list[Advice]:
    """Return what to try, the most worthwhile first; nothing if nothing stands out."""
    found: list[Advice] = []
    if history.seconds >= _LONG and history.stages:
        found += _stages(history)
        found += _work(history)
        found += _start(history)
        found += _tail(history)
    return found + _memory(history) + _trouble(history) + _rejects(ledger)


def bottleneck(history: History) -> int | None:
    """Return the number of the stage that kept the others waiting, if one did."""
    shares = figures.busy(history)
    if len(shares) < 2 or history.seconds < _LONG:
        return None
    slowest = max(range(len(shares)), key=shares.__getitem__)
    others = [share for i, share in enumerate(shares) if i != slowest]
    return slowest if shares[slowest] >= _FULL and max(others) <= _SLACK else None


def _stages(history: History) -> list[Advice]:
    slowest = bottleneck(history)
    if slowest is None:
        return []
    names, shares = figures.stage_names(history), figures.busy(history)
    others = max(share for i, share in enumerate(shares) if i != slowest)
    last = slowest + 1 == len(shares)
    cores = history.last.described.get("cores", 0) if history.last is not None else 0
    if not last and isinstance(cores, int) and 0 < cores <= sum(figures.stage_workers(history)):
        return [
            Advice(
                f"Make stage {slowest + 1} faster, or give it more cores",
                f"{names[slowest]} was busy {percent(shares[slowest])} of the time, no other stage more than "
                f"{percent(others)}. There are as many workers as the machine has cores ({cores}).",
            )
        ]
    what = "a faster model, bigger batches or more devices" if last else "more workers"
    how = "num_gpus= and compute= say" if last else "concurrency= says"
    return [
        Advice(
            f"Give stage {slowest + 1} {what}",
            f"{names[slowest]} was busy {percent(shares[slowest])} of the time, no other stage more than "
            f"{percent(others)}: the others waited for it. {how} how many it gets.",
        )
    ]


def _work(history: History) -> list[Advice]:
    found = []
    last = max(history.stages)
    for i, name in (("read", "reading"), ("write", "writing")):
        stage = history.stages[min(history.stages) if i == "read" else last]
        share = getattr(stage, i) / max(stage.work, 1e-9)
        if share < 0.5 or stage.work < 0.3 * stage.seconds:
            continue
        if i == "read":
            found.append(
                Advice(
                    "Read less, or from faster storage",
                    f"Workers spent {percent(share)} of their work on reading. Say which columns a function needs "
                    "(columns=, inputs=), drop what the output does not need, or bring the files nearer.",
                )
            )
        else:
            found.append(
                Advice(
                    "Write less, or with a cheaper codec",
                    f"Workers spent {percent(share)} of their work on {name}. Keep fewer columns in the output, or "
                    "choose another compression=; durability='process' spares waiting for the disk.",
                )
            )
    return found


def _start(history: History) -> list[Advice]:
    driver = history.last
    assert driver is not None
    ready = [(now, loading) for now, _, loading in history.ready if now >= driver.start]
    if not ready:
        return []
    first = min(now for now, _ in ready) - driver.start
    loading = max(loading for _, loading in ready)
    if driver.seconds < _LONG or first < 0.3 * driver.seconds:
        return []
    model = f", of which loading models took up to {duration(loading)}" if loading > 0.2 * first else ""
    return [
        Advice(
            "Give a run more to do",
            f"The first worker could begin after {duration(first)}{model}; that is {percent(first / driver.seconds)} "
            "of the time. More rows in one run, or a model that loads faster, spread it.",
        )
    ]


def _tail(history: History) -> list[Advice]:
    """Look at the end: is one worker at work where there were many?"""
    last = history.stages[max(history.stages)]
    ends = sorted(max(s.end for s in track) for track in last.tracks.values() if track)
    driver = history.last
    if len(ends) < 2 or driver is None:
        return []
    alone = ends[-1] - ends[len(ends) // 2]
    if alone < 0.2 * driver.seconds or len(history.drivers) > 1:
        return []
    return [
        Advice(
            "Cut the input into smaller shards",
            f"For the last {duration(alone)}, {percent(alone / driver.seconds)} of the time, half of the workers had "
            "nothing left to do. shard_rows= makes shards smaller, so that all end at about the same time.",
        )
    ]


def _memory(history: History) -> list[Advice]:
    found = []
    shrunk: dict[str, int] = {}
    for _, step, what, rows, _ in history.batches:
        if what == "did not fit before":
            shrunk[step] = min(rows, shrunk.get(step, rows))
    for step, rows in list(shrunk.items())[:3]:
        found.append(
            Advice(
                f"Say batch_size={rows} for {step}",
                f"More rows at a time did not fit into memory, and finding that out cost tries. With {rows:,} rows, "
                "the next run is spared them.",
            )
        )
    retired = history.counts["worker retired"]
    if retired:
        found.append(
            Advice(
                "Let fewer workers share the memory",
                f"{plural(retired, 'worker')} had to be ended so that the run stayed within memory_limit"
                f"{f' ({size(history.memory_limit)})' if history.memory_limit else ''}. Fewer workers (workers=, "
                "concurrency=) or smaller batches (batch_size=) would spare that.",
            )
        )
    return found


def _trouble(history: History) -> list[Advice]:
    found = []
    lost, retried = history.counts["worker lost"], history.counts["call tried again"]
    if lost > history.counts["worker retired"]:
        found.append(
            Advice(
                "Find out what ends workers",
                f"{plural(lost, 'worker')} ended before the work did; shards were done again for it. The reasons are "
                "listed under “What happened on the way”.",
            )
        )
    if retried >= 10:
        found.append(
            Advice(
                "Ask less of what is called",
                f"{plural(retried, 'call')} failed with an error that passes, and waited before the next try. If "
                "that is a service, fewer at a time (max_in_flight=, concurrency=) may be faster.",
            )
        )
    return found


def _rejects(ledger: Ledger) -> list[Advice]:
    failed = ledger.rejected + ledger.nulled
    if not failed or not ledger.read or failed < 0.01 * ledger.read:
        return []
    return [
        Advice(
            "Look at the rows that failed",
            f"{count(failed)} of {count(ledger.read)} rows ({percent(failed / ledger.read, 1)}) failed; they are "
            "grouped by what they failed with. max_errors= ends a run in which more fail than is normal.",
        )
    ]
