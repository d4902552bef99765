"""What to try next, where the figures of the run give a reason."""

from __future__ import annotations

import msgspec

from headrace.core.human import count, duration, percent, plural, size
from headrace.core.work import Ledger
from headrace.observers.report.history import History
from headrace.observers.run_state import LOST, RETIRED, RETRIED_CALLS, bottleneck

_LONG = 2.0  # seconds: a shorter run is no basis for advice


class Advice(msgspec.Struct, frozen=True):
    """Something to try, and the figures that are the reason."""

    title: str
    why: str


def advice(history: History, ledger: Ledger) -> list[Advice]:
    """Return what to try, the most worthwhile first; nothing if there is no reason."""
    found: list[Advice] = []
    if history.seconds >= _LONG and history.stages:
        found += _stages(history)
        found += _work(history)
        found += _start(history)
        found += _tail(history)
    return found + _memory(history) + _trouble(history) + _rejects(ledger)


def slowest_stage(history: History) -> int | None:
    """Return the number of the stage that is the bottleneck, if one is and the run was long enough."""
    return bottleneck(history.busy(history.at)) if history.seconds >= _LONG else None


def _stages(history: History) -> list[Advice]:
    slowest = slowest_stage(history)
    if slowest is None:
        return []
    names, shares = history.stage_names, history.busy(history.at)
    others = max(share for i, share in enumerate(shares) if i != slowest)
    last = slowest + 1 == len(shares)
    described = history.last.described if history.last is not None else None
    cores = described.cores if described is not None else 0
    if not last and 0 < cores <= sum(history.stage_workers):
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
                    "(columns=, inputs=), drop what the output does not need, or put the files on faster storage.",
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
    first, loading = driver.first_ready, driver.loading
    if first is None or driver.seconds < _LONG or first < 0.3 * driver.seconds:
        return []
    model = f", of which loading models took up to {duration(loading)}" if loading > 0.2 * first else ""
    return [
        Advice(
            "Give a run more to do",
            f"The first worker could begin after {duration(first)}{model}; that is {percent(first / driver.seconds)} "
            "of the time. More rows in one run, or a model that loads faster, reduce that share.",
        )
    ]


def _tail(history: History) -> list[Advice]:
    """Check whether a few workers were still busy at the end while the others had no work."""
    last = history.tracks[max(history.tracks)]
    ends = sorted(max(span.end for span in spans) for spans in last.values())
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
    for each in history.ceilings()[:3]:
        found.append(
            Advice(
                f"Say batch_size={each.rows} for {each.step}",
                "More rows at a time did not fit into memory, and finding that out cost time. With "
                f"{each.rows:,} rows, the next run need not try.",
            )
        )
    retired = history.counts[RETIRED]
    if retired:
        found.append(
            Advice(
                "Let fewer workers share the memory",
                f"{plural(retired, 'worker')} had to be ended so that the run stayed within memory_limit"
                f"{f' ({size(history.memory_limit)})' if history.memory_limit else ''}. Fewer workers (workers=, "
                "concurrency=) or smaller batches (batch_size=) would avoid that.",
            )
        )
    return found


def _trouble(history: History) -> list[Advice]:
    found = []
    lost, retried = history.counts[LOST], history.counts[RETRIED_CALLS]
    if lost > history.counts[RETIRED]:
        found.append(
            Advice(
                "Find out why workers end",
                f"{plural(lost, 'worker')} ended before the work did; shards were done again for it. The reasons are "
                "listed under “What happened on the way”.",
            )
        )
    if retried >= 10:
        found.append(
            Advice(
                "Make fewer calls at a time",
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
