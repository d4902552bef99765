"""The part of a page about the runs of an output that has several."""

from __future__ import annotations

from headrace.core.human import duration, size
from headrace.observers.report.facts import Facts
from headrace.observers.report.html import Html, section, table, tag

_HEAD = ("Run", "Began", "Took", "New files", "Files again", "Rows", "Parts", "Size", "Code")


def runs(facts: Facts) -> Html:
    """Return which runs the output has, and what each still holds of it."""
    if not facts.runs or (len(facts.runs) < 2 and facts.number < 2):
        return Html("")
    versions = any(run.input for run in facts.runs)
    head = (*_HEAD[:5], *(["Input, up to"] if versions else []), *_HEAD[5:])
    lines = [
        (
            run.name,
            run.began,
            duration(run.seconds),
            f"{run.input_files:,}",
            f"{run.input_files_again:,}",
            *([run.input or "–"] if versions else []),
            f"{run.rows:,}",
            f"{run.files:,}",
            size(run.bytes),
            ", ".join(run.code),
        )
        for run in reversed(facts.runs)
    ]
    words = (
        "Each took in the files that were new. Rows, parts and size are what is there of it now; runs of the same "
        "functions and models have the same code."
    )
    if facts.number > len(facts.runs):
        words += f" The run that this page is about is number {facts.number:,}, and not complete."
    return section(
        "runs",
        "Runs of this output",
        tag("p", words),
        table("Runs, the last first", head, lines, words=(0, 1, *((5, 9) if versions else (8,)))),
    )
