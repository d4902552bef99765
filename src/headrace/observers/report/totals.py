"""The parts of a page about rows: where each went, and what some of them failed with."""

from __future__ import annotations

from headrace.core.human import percent, plural
from headrace.observers.report.facts import Facts
from headrace.observers.report.html import Html, join, section, share_bar, table, tag
from headrace.observers.summary import terms


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
        (step or "–", kind, message, share_bar(rows, most, bad=True), f"{rows:,}")
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
