"""The part of a page about language models: tokens, what was paid, and how long answers are."""

from __future__ import annotations

from headrace.core.answered import Answered
from headrace.core.human import count, duration, percent, plural
from headrace.observers.model_text import model_data, money
from headrace.observers.report.facts import Facts
from headrace.observers.report.history import History
from headrace.observers.report.html import Html, pairs, section, share_bar, table, tag


def answers(history: History, facts: Facts) -> Html:
    """Return what language models answered, and what they were paid for."""
    ended = facts.status != "under way"
    found = facts.ledger.answered
    data = model_data(history, history.at, found, ended=ended)
    if data is None:
        return Html("")
    found = found or Answered()
    paid = history.models.paid(ended=ended)
    body = [tag("p", _about(found, data)), pairs(_numbers(found, data), class_="key"), tag("h3", "Paid for")]
    words = (
        "Equal prompts are asked once, so there may be fewer of these than rows; what was asked again, and what was "
        "asked for rows that are not committed, is in them."
    )
    body += [tag("p", words), pairs(_paid(data["paid"]), class_="pairs")]
    if paid.unanswered:
        words = (
            f"{plural(paid.unanswered, 'request')} had no answer yet when a process was killed, or the run ended: "
            "the server may count them, too, and their rows were asked again if the run went on."
        )
        body.append(tag("p", words, class_="note"))
    body += _lengths(found)
    if data["tried_again"]:
        rows = [(kind, f"{calls:,}") for kind, calls in data["tried_again"].items()]
        body.append(
            table(
                "Requests that were sent again, by what they had failed with",
                ("Failed with", "Requests"),
                rows,
            )
        )
    return section("answers", "Language model", *body)


def _about(found: Answered, data: dict[str, object]) -> str:
    done = found.rows - found.failed
    return f"{plural(done, 'row')} of those that are committed have an answer." + (
        f" {found.failed:,} have none, and are among the rows that failed." if found.failed else ""
    )


def _numbers(found: Answered, data: dict[str, object]) -> list[tuple[str, object]]:
    numbers: list[tuple[str, object]] = [
        ("Tokens in", count(found.prompt_tokens)),
        ("Tokens out", count(found.completion_tokens)),
        ("Tokens in per second", count(float(str(data["prompt_tokens_per_second"])))),
        ("Tokens out per second", count(float(str(data["completion_tokens_per_second"])))),
    ]
    if found.cached_tokens:
        share = percent(found.cached_tokens / max(found.prompt_tokens, 1), 1)
        numbers.append(("From the prefix cache", share))
    if found.first_tokens:
        numbers.append(("To the first token", duration(found.first_token / found.first_tokens)))
    if found.rows > found.failed and found.latency:
        numbers.append(("To the whole answer", duration(found.latency / (found.rows - found.failed))))
    for name, number in (
        ("Cut at max_tokens", found.truncated),
        ("Asked with more tokens", found.asked_longer),
        ("Repaired", found.repaired),
    ):
        share = tag("span", f"{number:,} answers" if number != 1 else "1 answer", class_="note")
        if number:
            numbers.append((name, Html(f"{percent(number / max(found.rows, 1), 1)} {share}")))
    return numbers


def _paid(paid: dict[str, float | None]) -> list[tuple[str, object]]:
    numbers: list[tuple[str, object]] = [
        ("Answers", f"{paid['answers']:,}"),
        ("Tokens in", f"{paid['prompt_tokens']:,}"),
        ("Tokens out", f"{paid['completion_tokens']:,}"),
    ]
    if paid["cost"] is not None:
        numbers.append(("Cost", money(paid["cost"])))
    if paid["cost_expected"] is not None:
        numbers.append(("Cost in the end, about", money(paid["cost_expected"])))
    return numbers


def _lengths(found: Answered) -> list[Html]:
    """Return how long answers are, as a table with bars."""
    whole = sum(found.lengths)
    if not whole:
        return []
    most = max(found.lengths)
    rows = []
    first = next(i for i, number in enumerate(found.lengths) if number)
    for bucket, number in list(enumerate(found.lengths))[first:]:
        least, last = found.least_most(bucket)
        tokens = f"{least:,}" if least == last else f"{least:,} to {last:,}"
        rows.append((tokens, share_bar(number, most), f"{number:,}", percent(number / whole, 1)))
    return [table("How long answers are", ("Tokens", "Compared", "Answers", "Share"), rows, words=(0, 1))]
