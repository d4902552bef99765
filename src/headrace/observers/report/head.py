"""The head of a page: did it work, how fast, what was slow, what to do next."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from headrace.core.human import count, duration, plural, size
from headrace.observers.report import bars
from headrace.observers.report.advice import Advice, advice
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, join, pairs, tag
from headrace.observers.report.verdict import slow_part, speed, verdict
from headrace.observers.time_spent import all_parts, stage_times

_FIRST = 3  # pieces of advice in the head; more of them stand below
_COMMANDS = ("headrace", "python", "hr.")

_KEPT = r" What was finished before is kept in [^\n]*$"  # as the verdict says

_SIGNS = {
    "complete": ("✓", "Complete"),
    "under way": ("…", "Under way"),
    "failed": ("✕", "Failed"),
    "interrupted": ("‖", "Interrupted"),
    "stopped": ("‖", "Stopped"),
}


def title(history: History, facts: Facts) -> str:
    """Return the page's name: how the run is, and which output it writes."""
    return f"{verdict(history, facts)} – {facts.output}"


def head(history: History, facts: Facts) -> Html:
    """Return the verdict, what to do next, and the numbers that matter most."""
    sign, word = _SIGNS[facts.status]
    sentence = verdict(history, facts)
    rest = sentence.removeprefix(word).replace(" %", "\u00a0%")
    first = history.drivers[0].began if history.drivers else 0.0
    about = [tag("code", facts.output)] + ([f"run {facts.run}"] if facts.run else [])
    if first:
        about.append(tag("time", f"{moment(first)} UTC", datetime=f"{moment(first).replace(' ', 'T')}Z"))
    badge = tag("span", tag("span", f"{sign} ", aria_hidden="true"), word, class_="badge")
    slow = slow_part(history)
    if slow and facts.status not in ("complete", "under way"):  # whose numbers may stand further down
        slow = f"{speed(history)}; {slow}" if speed(history) else slow
    return tag(
        "header",
        tag("p", join(about, " · "), class_="about"),
        tag("h1", badge, rest),
        tag("p", slow, class_="lead") if slow else "",
        _error(facts),
        tag("div", _next(history, facts), _time(history), class_="answers"),
        pairs(_key_numbers(history, facts), class_="key"),
        class_=f"head {facts.status.replace(' ', '-')}",
    )


def _error(facts: Facts) -> Html:
    if facts.status != "failed":
        return Html("")
    error = re.sub(_KEPT, "", facts.error.strip())
    words = [tag("pre", error, class_="error", tabindex="0", role="region", aria_label="The error")]
    if facts.row:
        words.append(tag("p", "The row: ", tag("code", facts.row)))
    elif "It was working on" in facts.error and ", row " in facts.error:
        words.append(
            tag(
                "p",
                "The row's values are hidden: ",
                tag("code", "headrace report --values"),
                " shows them.",
                class_="note",
            )
        )
    if facts.trace:
        trace = tag(
            "pre", facts.trace.strip(), class_="error", tabindex="0", role="region",
            aria_label="Where your code raised it",
        )  # fmt: skip
        words.append(tag("details", tag("summary", "Where your code raised it"), trace))
    return join(words)


def _next(history: History, facts: Facts) -> Html:
    found = advice(history, facts)
    if not found:
        done = facts.status == "complete"
        words = (
            "Nothing in the numbers of this run asks for a change."
            if done
            else "Wait for it, or look again later."
        )
        return tag(
            "section",
            tag("h2", "What next", id="next-title"),
            tag("p", words),
            id="next",
            aria_labelledby="next-title",
        )
    return tag(
        "section",
        tag("h2", "What next", id="next-title"),
        listed(found[:_FIRST]),
        id="next",
        aria_labelledby="next-title",
    )


def more_advice(history: History, facts: Facts) -> list[Advice]:
    """Return the advice that the head has no room for."""
    return advice(history, facts)[_FIRST:]


def listed(found: Sequence[Advice]) -> Html:
    """Return pieces of advice as a list: what, how much it could gain, the option, why."""
    items = []
    for each in found:
        gain = tag("span", f"up to {duration(each.gain)} less", class_="gain") if each.gain >= 0.05 else ""
        option = command(each.option) if each.option else ""
        items.append(tag("li", tag("strong", each.title), " ", gain, option, tag("p", each.why)))
    return tag("ol", *items, class_="advice")


def command(words: str) -> Html:
    """Return something to type; a command of a shell has a button that copies it, where scripts run."""
    copy = tag(
        "button", "Copy", type="button", class_="copy", data_copy=words, aria_label=f"Copy {words}", hidden=""
    )
    button = copy if words.startswith(_COMMANDS) else ""
    return tag("div", tag("code", words), button, class_="typed")


def _time(history: History) -> Html:
    parts = all_parts(stage_times(history, history.at))
    if not parts or history.seconds <= 0:
        return Html("")
    workers = sum(history.stage_workers)
    whole = f"{duration(sum(part.seconds for part in parts))} of {plural(workers, 'worker')}"
    heading = tag("h2", "Where the time went ", tag("span", whole, class_="note"), id="time-title")
    return tag("section", heading, bars.strip(parts), id="time", aria_labelledby="time-title")


def _key_numbers(history: History, facts: Facts) -> list[tuple[str, object]]:
    ledger, seconds = facts.ledger, history.seconds
    found: list[tuple[str, object]] = []
    if history.average(history.at) > 0:
        found.append(("Rows per second", count(history.average(history.at))))
    found += [("Time", duration(seconds)), ("Rows written", f"{ledger.written:,}")]
    failed = ledger.rejected + ledger.nulled
    if failed:
        found.append(("Rows that failed", tag("span", f"{failed:,}", class_="warn")))
    done, whole = facts.shards
    if done < whole:
        found.append(("Shards done", f"{done:,} of {whole:,}"))
    found += _cost(history, ledger.read, seconds)
    if facts.files:
        files = tag("span", f"in {plural(facts.files, 'file')}", class_="note")
        found.append(("Output", join([size(facts.bytes), files])))
    if history.memory_peak:
        found.append(("Memory at most", size(history.memory_peak)))
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


def moment(seconds: float) -> str:
    """Return a moment of seconds since 1970 as a date and a time.

    >>> moment(0.0)
    '1970-01-01 00:00:00'
    """
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(max(0.0, min(seconds, 4e9))))
