"""The parts of a page about rows: how many, how fast, and where each went."""

from __future__ import annotations

import time

from headrace.core.human import count, duration, percent, plural, size
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, join, pairs, section, table, tag
from headrace.observers.summary import terms

_WORDS = {
    "complete": ("✓", "Complete"),
    "under way": ("…", "Under way"),
    "failed": ("✕", "Failed"),
    "interrupted": ("‖", "Interrupted"),
    "stopped": ("‖", "Stopped"),
}


def headline(facts: Facts) -> str:
    """Return the run in one line."""
    rows = f"{facts.ledger.written:,} {'row' if facts.ledger.written == 1 else 'rows'}"
    if facts.status == "complete":
        return f"{rows} written"
    if facts.status == "under way":
        return f"{rows} so far"
    return f"{rows} kept"


def title(facts: Facts) -> str:
    """Return the page's name: how the run is, and which output it writes."""
    return f"{_WORDS[facts.status][1]}: {headline(facts)} – {facts.output}"


def head(history: History, facts: Facts) -> Html:
    """Return status, headline and the numbers that matter most."""
    sign, word = _WORDS[facts.status]
    seconds = history.seconds
    first = history.drivers[0].began if history.drivers else 0.0
    badge = tag("p", tag("span", sign, aria_hidden="true"), f" {word}", class_="badge")
    about = [tag("code", facts.output), f"run {facts.run}"]
    if first:
        about.append(tag("time", f"{_moment(first)} UTC", datetime=f"{_moment(first).replace(' ', 'T')}Z"))
    return tag(
        "header",
        badge,
        tag("h1", headline(facts)),
        tag("p", join(about, " · "), class_="about"),
        _why(facts),
        pairs(_key_numbers(history, facts, seconds), class_="key"),
        class_=f"head {facts.status.replace(' ', '-')}",
    )


def _why(facts: Facts) -> Html:
    """Say what happened to a run that is not complete, and what to do."""
    go_on = "What is committed is kept: the same command, run again, resumes from there."
    if not facts.shards[0]:
        go_on = "Nothing was committed: the same command, run again, starts from the beginning."
    if facts.status == "failed":
        mended = "What is committed is kept; once the cause is fixed, a run into the same folder resumes from there."
        if not facts.shards[0]:
            mended = "Nothing was committed; once the cause is fixed, run the same command again."
        words = [tag("pre", facts.error.strip(), class_="error", tabindex="0", aria_label="The error")]
        if facts.trace:
            trace = facts.trace.strip()
            words.append(
                tag("pre", trace, class_="error", tabindex="0", aria_label="Where your code raised it")
            )
        return join([*words, tag("p", mended)])
    if facts.status == "interrupted":
        return tag("p", f"Somebody ended it. {go_on}")
    if facts.status == "stopped":
        return tag("p", f"Its driver process died: it was killed, or its machine went down. {go_on}")
    if facts.status == "under way":
        return tag("p", "A driver is at work; these are the numbers up to now.")
    return Html("")


def _key_numbers(history: History, facts: Facts, seconds: float) -> list[tuple[str, object]]:
    ledger = facts.ledger
    found: list[tuple[str, object]] = [("Rows written", f"{ledger.written:,}")]
    failed = ledger.rejected + ledger.nulled
    if failed:
        found.append(("Rows that failed", f"{failed:,}"))
    if history.average(history.at) > 0:
        found.append(("Rows per second", count(history.average(history.at))))
    found.append(("Time", duration(seconds)))
    found += _cost(history, ledger.read, seconds)
    if facts.files:
        found.append(("Output", f"{size(facts.bytes)} in {plural(facts.files, 'file')}"))
    done, whole = facts.shards
    if done < whole:
        found.append(("Shards done", f"{done:,} of {whole:,}"))
    return found


def _cost(history: History, rows: int, seconds: float) -> list[tuple[str, object]]:
    described = history.last.described if history.last is not None else None
    if described is None or described.price is None:
        return []
    amount, currency = described.price
    cost = amount * seconds / 3600
    found: list[tuple[str, object]] = [("Cost", _money(cost, currency))]
    if rows:
        found.append(("Cost of a million rows", _money(cost / rows * 1e6, currency)))
    return found


def _money(amount: float, currency: str) -> str:
    """Return an amount of money with two significant digits at least.

    >>> _money(1234.5, "EUR"), _money(0.00123, "$")
    ('1,234.50 EUR', '0.0012 $')
    """
    text = f"{amount:,.2f}" if amount >= 0.1 else f"{amount:.2g}" if amount >= 1e-4 else f"{amount:.1e}"
    return f"{text} {currency}".strip()


def rows(facts: Facts) -> Html:
    """Return how rows read and rows written add up, and what each step did to them."""
    ledger = facts.ledger
    parts = [tag("span", tag("b", f"{ledger.read:,}"), " read")]
    lost = 0
    for number, what in terms(ledger, facts.steps):
        if what.startswith("with a null"):
            continue
        sign = "+" if what == "added" else "−"
        lost += -number if what == "added" else number
        parts.append(tag("span", tag("i", sign), " ", tag("b", f"{number:,}"), f" {what}"))
    parts.append(tag("span", tag("i", "="), " ", tag("b", f"{ledger.written:,}"), " written"))
    known = facts.status == "complete" or bool(facts.steps)
    adds_up = ledger.read - lost == ledger.written
    if facts.status == "complete" and adds_up:
        words = "Every row that was read is accounted for, exactly once."
    elif known and adds_up:
        words = "Every row of the shards that are committed is accounted for, exactly once."
    else:
        words = "These are the rows that were committed, as far as the record says."
    nulled = f" {ledger.nulled:,} of the rows written have a null for a result." if ledger.nulled else ""
    body = [tag("p", words + nulled), tag("p", join(parts, " "), class_="equation")]
    counting = ("accumulate(",)  # such a step counts rows and changes none
    if facts.steps:
        made = [
            (step, f"{taken:,}", f"{given:,}", f"{aside:,}")
            for step, (taken, given), aside in zip(facts.steps, ledger.steps, ledger.rejects, strict=False)
            if not step.startswith(counting)
        ]
        body.append(table("Rows by step", ("Step", "Rows in", "Rows out", "Rejected"), made))
    return section("rows", "Where every row went", *body)


def failed(facts: Facts) -> Html:
    """Return what rows failed with, and some of them."""
    number = facts.ledger.rejected + facts.ledger.nulled
    if not number:
        return Html("")
    most = max((rows for *_, rows in facts.faults), default=1)
    made = [
        (step or "–", kind, message, _bar(rows, most), f"{rows:,}")
        for step, kind, message, rows in facts.faults
    ]
    words = f"{plural(number, 'row')} failed, {percent(number / max(facts.ledger.read, 1), 2)} of those read."
    if facts.ledger.rejected:
        words += (
            f" Rejected rows are in {facts.output}/_rejected; read_rejected() reads them, with all columns."
        )
    body = [tag("p", words)]
    if made:
        head = ("Step", "Error", "In words, of one of them", "Share", "Rows")
        body.append(table("Rows that failed, by step and error", head, made, words=(0, 1, 2, 3)))
    if facts.samples:
        shown = any(sample.values for sample in facts.samples)
        columns = ("Where", "Step", "Error", *(("Values",) if shown else ()))
        lines = [
            (each.where, each.step, each.error, *((each.values,) if shown else ())) for each in facts.samples
        ]
        body.append(table("Some of the rejected rows", columns, lines, words=range(len(columns))))
        if not shown:
            hint = "Values are hidden. report_values=True shows them."
            body.append(tag("p", hint, class_="note"))
    return section("failed", "Rows that failed", *body)


def _bar(number: int, most: int) -> Html:
    return tag("span", class_="bar", style=f"--share: {100 * number / max(most, 1):.0f}%", aria_hidden="true")


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(0.0, min(seconds, 4e9))))
