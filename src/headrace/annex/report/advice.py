"""What to do next, where the figures of the run give a reason: the most that could be gained comes first."""

from __future__ import annotations

import re
import shlex

import msgspec

from headrace.annex.report.facts import Facts, History
from headrace.core.human import count, duration, percent, plural, size
from headrace.core.work import Ledger
from headrace.observers.run_state import LOST, RETIRED, RETRIED_CALLS
from headrace.observers.time_spent import Part, all_parts, stage_times

_LONG = 2.0  # seconds: a shorter run is no basis for advice on speed
_LEAST, _LEAST_SECONDS = 0.1, 1.0  # of the time, and in all: what gains less is not worth a change
_OFTEN = 10  # calls tried again
_LIBRARY = r"site-packages|dist-packages|/lib/python|^<"  # compiled if a run failed
_FRAME = r'File "([^"]+)", line (\d+), in (\S+)'


class Advice(msgspec.Struct, frozen=True):
    """Something to do, the figures that are the reason, and the option or command to type.

    ``gain``: seconds of the run that it could save at most; 0 if that cannot be said.
    """

    title: str
    why: str
    option: str = ""
    gain: float = 0.0


def advice(history: History, facts: Facts) -> list[Advice]:
    """Return what to do, the most worthwhile first; nothing if there is no reason."""
    found: list[Advice] = []
    if history.seconds >= _LONG and history.stages:
        found += [*_stages(history), *_shares(history), *_start(history), *_tail(history), *_lost(history)]
    found = [each for each in found if each.gain >= max(_LEAST * history.seconds, _LEAST_SECONDS)]
    found.sort(key=lambda each: -each.gain)
    others = [*_memory(history), *_trouble(history), *_rejects(facts.ledger, facts.output)]
    found = [*_go_on(history, facts), *found, *others]
    command = _typed(history)
    return [msgspec.structs.replace(each, option=_in_flags(each.option, command)) for each in found]


def resume_command(history: History, facts: Facts) -> str:
    """Return what to type to go on with the run; empty if nobody typed a command."""
    described = history.described
    return described.resume if described is not None and facts.status != "complete" else ""


# ------------------------------------------------------------ options, as they are typed


def _typed(history: History) -> str:
    """Return which command of ``headrace`` the run was started with; empty for a program's own run."""
    described = history.described
    if described is None or not described.resume.startswith("headrace resume "):
        return ""
    return "predict" if re.search(r"\bpredict\b", " ".join(described.command.split()[:4])) else "run"


_OF_A_RUN = re.compile(r"with_options\((\w+)=([^)]*)\)")
_OF_PREDICT = {
    "predict(…, num_gpus=1, batch_size=…)": "--num-gpus 1 --batch-size …",
    "read_images(…, size=(224, 224))": "--read size=224,224",
    "select_columns([…]), inputs=[…]": "--inputs … --keep …",
    'keep=[…], compression="snappy"': "--keep … --write compression=snappy",
    "all inputs in one run": "all inputs in one command",
    "max_in_flight=…": "--max-in-flight …",
}


def _in_flags(option: str, command: str) -> str:
    """Return an option as it is typed: for a command of ``headrace``, as its flags.

    What a step of a user's own script says is said in the script, whichever way it is run.

    >>> _in_flags('with_options(on_error="reject")', "run"), _in_flags("concurrency=4  # of f", "predict")
    ('--on-error reject', '--concurrency 4')
    """
    if command and (found := _OF_A_RUN.fullmatch(option)):
        value = found[2].strip("\"'")
        return f"--{found[1].replace('_', '-')} {value}"
    if command != "predict":
        return option
    if found := re.match(r"(concurrency|batch_size)=(\d+)", option):
        return f"--{found[1].replace('_', '-')} {found[2]}"
    return _OF_PREDICT.get(option, option)


# ------------------------------------------------------------ a run that is not complete


def _go_on(history: History, facts: Facts) -> list[Advice]:
    command = resume_command(history, facts)
    again = (
        "Run the same command again"
        if not command or not command.startswith("headrace resume")
        else "Go on with it"
    )
    kept = "it goes on behind what is finished" if facts.shards[0] else "it starts from the beginning"
    if facts.status in ("interrupted", "stopped"):
        left = max(0, facts.shards[1] - facts.shards[0])
        why = f"{plural(left, 'part')} of {facts.shards[1]:,} are left; {kept}."
        return [Advice(again, why, command or "the same program")]
    if facts.status == "unpublished":
        why = "Its rows are kept out of sight until somebody decides, or the same run has other requirements."
        return [
            Advice(
                "Publish it, or discard it", why, f"headrace publish {shlex.quote(facts.output)} --because …"
            )
        ]
    if facts.status != "failed":
        return []
    found = [Advice(*_cause(facts))]
    options = _options(history)
    first = not facts.shards[0] and re.search(r"\brow 0\b", facts.error)  # then all rows may fail
    if facts.trace and not first and options.get("on_error", "raise") == "raise":
        found.append(
            Advice(
                "Or set aside the rows that fail",
                "They are kept apart with their error, and the others are written.",
                'with_options(on_error="reject")',
            )
        )
    changed = (
        " If the code was changed: on_change='continue' keeps what is finished." if facts.shards[0] else ""
    )
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


def _options(history: History) -> dict[str, str]:
    described = history.described
    return described.options if described is not None else {}


# ------------------------------------------------------------ speed


def _stages(history: History) -> list[Advice]:
    shares = history.busy(history.at)
    slowest = history.bottleneck
    if slowest is None:
        return []
    names, workers = history.stage_names, history.stage_workers[slowest]
    name, others = names[slowest], max(share for i, share in enumerate(shares) if i != slowest)
    why = (
        f"{name} was busy {percent(shares[slowest])} of the time, no other stage more than {percent(others)}."
    )
    cores = _cores(history)
    most = history.seconds * (1 - max(others / max(shares[slowest], 1e-9), 0.0))
    if "predict(" in name and slowest + 1 == len(shares):
        title = f"Give stage {slowest + 1} a faster model, bigger batches or more devices"
        return [Advice(title, why, "predict(…, num_gpus=1, batch_size=…)", most)]
    free = cores - sum(history.stage_workers) if cores else workers
    if free <= 0:
        title = f"Make stage {slowest + 1} faster, or give it more cores"
        return [Advice(title, f"{why} There are as many workers as cores ({cores}).", "", most)]
    more = workers + max(1, min(free, workers))
    gain = min(most, history.seconds * (1 - workers / more))
    return [Advice(f"Give stage {slowest + 1} more workers", why, f"concurrency={more}  # of {name}", gain)]


def _cores(history: History) -> int:
    described = history.described
    return described.cores if described is not None else 0


def _shares(history: History) -> list[Advice]:
    """Return what would make the longest kinds of work shorter, unless a stage keeps the others waiting."""
    stages = stage_times(history, history.at)
    slowest = history.bottleneck
    parts = [*stages[slowest].parts] if slowest is not None and slowest < len(stages) else all_parts(stages)
    found = [_shorter(history, part) for part in parts if part.share >= 0.15]
    found += _more_workers(history) if len(stages) == 1 else []
    return [each for each in found if each is not None]


def _shorter(history: History, part: Part) -> Advice | None:
    share, gain = percent(part.share), part.share * history.seconds
    match part.kind:
        case "decoding" if part.name == "decoding images" and not _is_scaled(history):
            why = f"{share} of the time was {part.name}. Images that are made small as they are read decode faster."
            return Advice("Decode smaller images", why, "read_images(…, size=(224, 224))", gain / 2)
        case "reading" if part.name.startswith("reading"):
            why = (
                f"{share} of the time was {part.name}. Say which columns are needed, drop what the output does not "
                "need, or put the files on faster storage."
            )
            return Advice(
                "Read less, or from faster storage", why, "select_columns([…]), inputs=[…]", gain / 2
            )
        case "writing" if part.name == "writing":
            why = f"{share} of the time was writing. Keep fewer columns, or take a codec that costs less."
            return Advice(
                "Write less, or with a cheaper codec", why, 'keep=[…], compression="snappy"', gain / 2
            )
        case "step" if part.name.startswith(("map(", "filter(", "flat_map(")):
            why = f"{share} of the time was {part.name}, called for each row; with batches, far less often."
            batches = f"map_batches({part.name.partition('(')[2].rstrip(')')})"
            return Advice(f"Have {part.name} work on batches", why, batches, gain * 0.7)
    return None


def _is_scaled(history: History) -> bool:
    described = history.described
    return described is not None and described.scaled


def _more_workers(history: History) -> list[Advice]:
    workers, cores = history.stage_workers[0], _cores(history)
    busy = history.busy(history.at)[0]
    if not 0 < workers < cores or busy < 0.5 or history.shards <= workers:
        return []
    were = "was" if workers == 1 else "were"
    why = f"{plural(workers, 'worker')} {were} busy {percent(busy)} of the time, on {cores} cores."
    gain = history.seconds * busy * (1 - workers / min(cores, max(history.shards, 1)))
    described = history.described
    step = described.stages[0].sized_by if described is not None and described.stages else ""
    if step:  # with_options(workers=) would change nothing
        return [Advice("Use more workers", why, f"concurrency={cores}  # of {step}", gain)]
    return [Advice("Use more workers", why, f"with_options(workers={cores})", gain)]


def _start(history: History) -> list[Advice]:
    driver = history.last
    assert driver is not None
    first, loading = driver.first_ready, driver.loading
    if first is None or first < 0.3 * driver.seconds:
        return []
    model = f", of which loading models took up to {duration(loading)}" if loading > 0.2 * first else ""
    why = (
        f"The first worker could begin after {duration(first)}{model}; that is {percent(first / driver.seconds)} "
        "of the time. More rows in one run, or a model that loads faster, reduce that share."
    )
    return [Advice("Give a run more to do", why, "all inputs in one run", first / 2)]


def _tail(history: History) -> list[Advice]:
    """Check whether a few workers were still busy at the end while the others had no work."""
    last = history.tracks[max(history.tracks)] if history.tracks else {}
    ends = sorted(max(span.end for span in spans) for spans in last.values())
    driver = history.last
    if len(ends) < 2 or driver is None or len(history.drivers) > 1:
        return []
    alone = ends[-1] - ends[len(ends) // 2]
    if alone < 0.2 * driver.seconds:
        return []
    rows = max(1, history.read // (len(ends) * 8))
    why = (
        f"For the last {duration(alone)}, {percent(alone / driver.seconds)} of the time, half of the workers had "
        "nothing left to do. With smaller parts all end at about the same time."
    )
    return [Advice("Cut the input into smaller parts", why, f"with_options(shard_rows={rows})", alone / 2)]


def _lost(history: History) -> list[Advice]:
    lost = history.lost
    seconds = lost / max(1, sum(history.stage_workers))
    if not history.counts[LOST]:
        return []
    why = (
        f"{duration(lost)} of work came to nothing. Smaller parts lose less when a worker or the driver ends."
    )
    return [Advice("Lose less when something ends", why, "with_options(shard_rows=…)", seconds)]


# ------------------------------------------------------------ memory, trouble, rows that fail


def _memory(history: History) -> list[Advice]:
    found = []
    for each in history.ceilings()[:3]:
        why = (
            "More rows at a time did not fit into memory, and finding that out cost time. With "
            f"{each.rows:,} rows, the next run need not try."
        )
        found.append(Advice(f"Say how many rows fit for {each.step}", why, f"batch_size={each.rows}"))
    retired = history.counts[RETIRED]
    if retired:
        limit = f" ({size(history.memory_limit)})" if history.memory_limit else ""
        why = (
            f"{plural(retired, 'worker')} had to be ended so that the run stayed within memory_limit{limit}. Fewer "
            "workers or smaller batches (batch_size=) would avoid that."
        )
        fewer = max(1, sum(history.stage_workers) - 1)
        found.append(Advice("Let fewer workers share the memory", why, f"with_options(workers={fewer})"))
    return found


def _trouble(history: History) -> list[Advice]:
    found = []
    lost, retried = history.counts[LOST], history.counts[RETRIED_CALLS]
    if lost > history.counts[RETIRED]:
        why = (
            f"{plural(lost, 'worker')} ended before the work did; parts of the input were done again for it. The "
            "reasons are listed under “What happened on the way”."
        )
        found.append(Advice("Find out why workers end", why))
    if retried >= _OFTEN:
        why = (
            f"{plural(retried, 'call')} failed with an error that passes, and waited before the next try. If "
            "that is a service, fewer at a time may be faster."
        )
        found.append(Advice("Make fewer calls at a time", why, "max_in_flight=…"))
    return found


def _rejects(ledger: Ledger, output: str) -> list[Advice]:
    failed = ledger.rejected + ledger.nulled
    if not failed or not ledger.read:
        return []
    why = f"{count(failed)} of {count(ledger.read)} rows ({percent(failed / ledger.read, 2)}) failed."
    option = f"hr.read_rejected({output!r})" if ledger.rejected else "with_options(max_errors=…)"
    return [Advice("Look at the rows that failed", why, option)]
