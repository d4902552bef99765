"""The parts of a page about rows: where each went, what some failed with, what models answered, the output's runs."""

from __future__ import annotations

from headrace.annex.report.facts import Facts, History
from headrace.annex.report.values import Value, plain, share_bar, table, tile
from headrace.core.answered import Answered
from headrace.core.human import count, duration, percent, plural, size
from headrace.core.tables import Picture, Table, Words
from headrace.observers.model_text import model_data, money
from headrace.observers.summary import terms

_ACROSS, _CHARS = 12, 200  # columns of a table of rows, and of the text in a cell


def rows(facts: Facts) -> Value:
    """Return how rows read and rows written add up, and what each step did to them."""
    ledger = facts.ledger
    changes = [
        (number if what == "added" else -number, what)
        for number, what in terms(ledger, facts.steps)
        if not what.startswith("with a null")
    ]
    adds_up = ledger.read + sum(number for number, _ in changes) == ledger.written
    if facts.status == "complete" and adds_up:
        words = "Every row that was read is accounted for, exactly once."
    elif (facts.status == "complete" or facts.steps) and adds_up:
        words = "Every row of what is finished is accounted for, exactly once."
    else:
        words = "These are the rows that were written, as far as the record says."
    words += f" {ledger.nulled:,} of the rows written have a null for a result." if ledger.nulled else ""
    whole = [("", ledger.read, "read")]
    whole += [("+" if number > 0 else "−", abs(number), what) for number, what in changes]
    whole.append(("=", ledger.written, "written"))
    made = [
        (step, f"{taken:,}", f"{given:,}", f"{aside:,}")
        for step, (taken, given), aside in zip(facts.steps, ledger.steps, ledger.rejects, strict=False)
        if not step.startswith("accumulate(")  # such a step counts rows and changes none
    ]
    head = ("Step", "Rows in", "Rows out", "Rejected")
    return {
        "words": words,
        "terms": [{"sign": sign, "number": f"{number:,}", "what": what} for sign, number, what in whole],
        "steps": table("Rows by step", head, made) if facts.steps else None,
    }


def required(facts: Facts) -> Value | None:
    """Return what was required of the output, beside what was found; and what somebody decided."""
    if facts.required is None:
        return None
    because = f", because: {facts.required.because}" if facts.required.because else ""
    made = [
        (each.name, each.asked, each.shown, "yes" if each.met else "no") for each in facts.required.figures
    ]
    tables = [table("Figures", ("Figure", "Asked", "Found", "Met"), made, words=(0, 1, 2, 3))] if made else []
    return plain(f"{facts.required.verdict.capitalize()}{because}.", tables=tables)


def failed(facts: Facts) -> Value | None:
    """Return what rows failed with, and some of them."""
    number = facts.ledger.rejected + facts.ledger.nulled
    if not number:
        return None
    words = f"{plural(number, 'row')} failed, {percent(number / max(facts.ledger.read, 1), 2)} of those read."
    if facts.ledger.rejected:
        words += f" Rejected rows are kept in {facts.output}/_rejected, with all columns."
    most = max((rows for *_, rows in facts.faults), default=1)
    made = [
        (step or "–", kind, message, share_bar(rows, most, bad=True), f"{rows:,}")
        for step, kind, message, rows in facts.faults
    ]
    head = ("Step", "Error", "In words, of one of them", "Share", "Rows")
    tables = [table("Rows that failed, by step and error", head, made, words=(0, 1, 2, 3))] if made else []
    shown = any(sample.values for sample in facts.samples)
    if facts.samples:
        columns = ("Where", "Step", "Error", *(("Values",) if shown else ()))
        lines = [(each.where, each.step, each.error, each.values)[: len(columns)] for each in facts.samples]
        tables.append(table("Some of the rejected rows", columns, lines, words=range(len(columns))))
    return {"words": words, "tables": tables, "hides": bool(facts.samples) and not shown}


def predictions(written: Table | None) -> Value | None:
    """Return some of the rows that were written last."""
    if written is None:
        return None
    few = written.across(_ACROSS)
    words = [i for i in range(len(few.heading)) if i not in few.numbers]
    rows = [[_cell(cell) for cell in row] for row in few.rows]
    return plain(
        few.note, tables=[table("Rows of the part that was written last", few.heading, rows, words=words)]
    )


def _cell(words: Words) -> Value | str:
    if isinstance(words, Picture):
        return {"picture": words.address(), "words": words.text}
    text = words if isinstance(words, str) else words.text
    return text if len(text) <= _CHARS else text[:_CHARS] + "…"


def runs(facts: Facts) -> Value | None:
    """Return which runs the output has, and what each still holds of it."""
    if not facts.runs or (len(facts.runs) < 2 and facts.number < 2):
        return None
    columns = [
        ("Run", [run.name for run in facts.runs]),
        ("Began", [run.began for run in facts.runs]),
        ("Took", [duration(run.seconds) for run in facts.runs]),
        ("New files", [f"{run.input_files:,}" for run in facts.runs]),
        ("Files again", [f"{run.input_files_again:,}" for run in facts.runs]),
        (
            "Input, up to",
            [run.input or "–" for run in facts.runs] if any(run.input for run in facts.runs) else [],
        ),
        ("Rows", [f"{run.rows:,}" for run in facts.runs]),
        ("Parts", [f"{run.files:,}" for run in facts.runs]),
        ("Size", [size(run.bytes) for run in facts.runs]),
        ("Code", [", ".join(run.code) for run in facts.runs]),
    ]
    head, cells = zip(*(each for each in columns if each[1]), strict=True)
    words = (
        "Each took in the files that were new. Rows, parts and size are what is there of it now; runs of the same "
        "functions and models have the same code."
    )
    if facts.number > len(facts.runs):
        words += f" The run that this page is about is number {facts.number:,}, and not complete."
    texts = [i for i, name in enumerate(head) if name in ("Run", "Began", "Input, up to", "Code")]
    lines = list(zip(*cells, strict=True))[::-1]
    return plain(words, tables=[table("Runs, the last first", head, lines, words=texts)])


# ------------------------------------------------------------ language models


def answers(history: History, facts: Facts) -> Value | None:
    """Return what language models answered, what they were paid for, and how long answers are."""
    ended = facts.status != "under way"
    data = model_data(history, history.at, facts.ledger.answered, ended=ended)
    if data is None:
        return None
    found, paid = facts.ledger.answered or Answered(), data["paid"]
    done = found.rows - found.failed
    none = f" {found.failed:,} have none, and are among the rows that failed." if found.failed else ""
    numbers = [("Answers", f"{paid['answers']:,}"), ("Tokens in", f"{paid['prompt_tokens']:,}")]
    numbers.append(("Tokens out", f"{paid['completion_tokens']:,}"))
    costs = (("Cost", paid["cost"]), ("Cost in the end, about", paid["cost_expected"]))
    numbers += [(name, money(cost)) for name, cost in costs if cost is not None]
    tables = _lengths(found)
    if again := [(kind, f"{calls:,}") for kind, calls in data["tried_again"].items()]:
        caption = "Requests that were sent again, by what they had failed with"
        tables.append(table(caption, ("Failed with", "Requests"), again))
    return {
        "about": f"{plural(done, 'row')} of those that are written have an answer.{none}",
        "tiles": _answer_tiles(found, data),
        "paid": numbers,
        "unanswered": plural(paid["unanswered"], "request") if paid["unanswered"] else "",
        "tables": tables,
    }


def _answer_tiles(found: Answered, data: Value) -> list[Value]:
    tiles = [
        tile("Tokens in", count(found.prompt_tokens)),
        tile("Tokens out", count(found.completion_tokens)),
        tile("Tokens in per second", count(data["prompt_tokens_per_second"])),
        tile("Tokens out per second", count(data["completion_tokens_per_second"])),
    ]
    if found.cached_tokens:
        share = percent(found.cached_tokens / max(found.prompt_tokens, 1), 1)
        tiles.append(tile("From the prefix cache", share))
    if found.first_tokens:
        tiles.append(tile("To the first token", duration(found.first_token / found.first_tokens)))
    if found.rows > found.failed and found.latency:
        tiles.append(tile("To the whole answer", duration(found.latency / (found.rows - found.failed))))
    some = {"Cut at max_tokens": found.truncated, "Asked with more tokens": found.asked_longer}
    return tiles + [
        tile(name, percent(number / max(found.rows, 1), 1), plural(number, "answer"))
        for name, number in (
            some | {"Repaired": found.repaired, "Far longer than others": found.runaway}
        ).items()
        if number
    ]


def _lengths(found: Answered) -> list[Value]:
    """Return how long answers are, as a table with bars."""
    whole = sum(found.lengths)
    if not whole:
        return []
    first = next(i for i, number in enumerate(found.lengths) if number)
    rows = []
    for bucket, number in list(enumerate(found.lengths))[first:]:
        least, last = found.least_most(bucket)
        tokens = f"{least:,}" if least == last else f"{least:,} to {last:,}"
        share = percent(number / whole, 1)
        rows.append((tokens, share_bar(number, max(found.lengths)), f"{number:,}", share))
    return [table("How long answers are", ("Tokens", "Compared", "Answers", "Share"), rows, words=(0, 1))]
