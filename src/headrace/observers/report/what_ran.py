"""The part of a page about what ran: command, inputs, models, versions, options, plan, and every driver."""

from __future__ import annotations

from typing import Any

from headrace.core.events import RunDescribed
from headrace.core.human import duration, plural, size
from headrace.observers.report.advice import resume_command
from headrace.observers.report.facts import Facts
from headrace.observers.report.head import command, moment
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, join, pairs, section, table, tag
from headrace.observers.run_parts import Driver


def what_ran(history: History, facts: Facts) -> Html:
    """Return command, inputs, models, versions, options, plan and drivers."""
    last = history.last
    if last is None:
        return Html("")
    body: list[Html] = []
    if (described := last.described) is not None:
        body.append(_about(history, facts, described))
        body.append(tag("h3", "Options that differ from the defaults"))
        options = described.options.items()
        body.append(
            pairs((tag("code", name), value) for name, value in options) if options else tag("p", "None.")
        )
        if described.plan:
            plan = tag("pre", described.plan, tabindex="0", role="region", aria_label="The plan")
            body += [tag("h3", "Plan"), plan]
    body.append(tag("h3", "Drivers"))
    made = [(str(i), *_driver(history, driver)) for i, driver in enumerate(history.drivers, 1)]
    head = (
        "Driver",
        "Began (UTC)",
        "Took",
        "Ended",
        "Rows before it",
        "Machine",
        "Headrace, Python",
        "System",
    )
    caption = "Processes that worked on this run"
    body.append(table(caption, head, made, words=(0, 1, 2, 3, 5, 6, 7)))
    return section("plan", "What ran", *body)


def _about(history: History, facts: Facts, described: RunDescribed) -> Html:
    rows: list[tuple[Any, Any]] = []
    resume = resume_command(history, facts)
    if described.command:
        rows.append(("Command", command(described.command)))
    if resume and resume != described.command:
        rows.append(("To go on", command(resume)))
    if described.folder:
        rows.append(("In the folder", tag("code", described.folder)))
    if described.inputs or described.input_files:
        paths = [tag("div", tag("code", path)) for path in described.inputs]
        files = f"{plural(described.input_files, 'file')}, {described.source or 'unknown'}"
        rows.append(("Input", join([*paths, tag("div", files, class_="note")])))
    rows += [
        (f"Model of {step}" if step else "Model", tag("code", digest)) for step, digest in described.models
    ]
    if described.commit:
        rows.append(("Git commit", tag("code", described.commit)))
    versions = [f"Headrace {described.version}"] if described.version else []
    versions += [f"Python {described.python}"] if described.python else []
    versions += [f"{name} {version}" for name, version in described.packages.items()]
    if versions:
        rows.append(("Versions", ", ".join(versions)))
    rows.append(("Engine", described.engine or "–"))
    return pairs(rows)


def _driver(history: History, driver: Driver) -> tuple[Any, ...]:
    described, error = driver.described, driver.error
    end = "killed, or at work" if error is None else (error.strip().split("\n")[0][:80] or "complete")
    machine, versions, system = "–", "–, –", "–"
    if described is not None:
        parts = [described.host or "–"]
        parts += [plural(described.cores, "core")] if described.cores > 0 else []
        parts += [f"{size(described.memory_limit)} allowed"] if described.memory_limit > 0 else []
        machine = ", ".join(parts)
        versions = f"{described.version or '–'}, {described.python or '–'}"
        system = described.system or "–"
    before = driver.started.rows_done if driver.started is not None else 0
    return moment(driver.began), duration(driver.seconds), end, f"{before:,}", machine, versions, system
