"""What language models were asked and have answered, in words and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.core.answered import Answered, Tokens
from headrace.core.events import ModelPaid
from headrace.core.human import count, duration, percent, plural

if TYPE_CHECKING:
    from headrace.observers.run_state import RunState


def model_data(
    state: RunState, now: float, answered: Answered | None, *, ended: bool
) -> dict[str, Any] | None:
    """Return what there is to say of language models; None if none was asked.

    ``answered`` is what committed rows were answered. Times are in seconds, what is not known is None.
    """
    use = state.models
    if not use.known and answered is None:
        return None
    paid = use.paid(ended=ended)
    speed = paid.speed if ended else use.speed(now)
    found = answered or Answered()
    return {
        "rows": found.rows,
        "rows_failed": found.failed,
        "prompt_tokens": found.prompt_tokens,
        "completion_tokens": found.completion_tokens,
        "cached_tokens": found.cached_tokens,
        "truncated": found.truncated,
        "asked_longer": found.asked_longer,
        "repaired": found.repaired,
        "runaway": found.runaway,
        "seconds_to_first_token": found.first_token / found.first_tokens if found.first_tokens else None,
        "seconds_to_answer": found.latency / found.rows if found.rows else None,
        "lengths": list(found.lengths),
        "prompt_tokens_per_second": round(speed[0], 1),
        "completion_tokens_per_second": round(speed[1], 1),
        "paid": {
            "answers": paid.total.answers,
            "prompt_tokens": paid.total.prompt,
            "completion_tokens": paid.total.completion,
            "cost": round(paid.total.cost, 9) if paid.priced else None,
            "cost_expected": None if ended else state.cost_expected,
            "unanswered": paid.unanswered,
            "parts": [
                {
                    "what": what,
                    "answers": part.answers,
                    "prompt_tokens": part.prompt,
                    "completion_tokens": part.completion,
                    "cost": round(part.cost, 9) if paid.priced else None,
                }
                for what, part in paid.parts
            ],
        },
        "tried_again": {
            kind: sum(calls for (_, other), calls in state.retried.items() if other == kind)
            for kind in dict.fromkeys(kind for _, kind in state.retried)
        },
    }


def speed_words(speed: tuple[float, float]) -> str:
    """Say how many tokens a second there are.

    >>> speed_words((1200.0, 85.0))
    '1,200 tokens/s in, 85 out'
    """
    return f"{count(speed[0])} tokens/s in, {count(speed[1])} out"


def money(amount: float) -> str:
    """Return an amount with two significant digits at least.

    >>> money(1234.5), money(0.00123)
    ('1,234.50', '0.0012')
    """
    return (
        f"{amount:,.2f}"
        if amount >= 0.1 or not amount
        else f"{amount:.2g}"
        if amount >= 1e-4
        else f"{amount:.1e}"
    )


def cost_words(cost: float, expected: float | None) -> str:
    """Say what was spent, and what it may become.

    >>> cost_words(0.42, 1.7), cost_words(0.42, None)
    ('cost 0.42 of about 1.70', 'cost 0.42')
    """
    return f"cost {money(cost)}" + (f" of about {money(expected)}" if expected is not None else "")


def share_words(found: Answered) -> str:
    """Say which share of the answers was cut, and how many needed more than one request; "" for none.

    >>> share_words(Answered(200, truncated=3, repaired=1))
    '3 cut at max_tokens (1.5 %), 1 repaired (0.5 %)'
    """
    parts = (
        (found.truncated, "cut at max_tokens"),
        (found.asked_longer, "asked once more with more tokens"),
        (found.repaired, "repaired"),
        (found.runaway, "far longer than others"),
    )
    return ", ".join(f"{n:,} {what} ({percent(n / max(found.rows, 1), 1)})" for n, what in parts if n)


def answer_words(found: Answered) -> str:
    """Say how many tokens answers have, and how long they took.

    >>> answer_words(Answered(2, 0, 300, 80, 150, latency=5.0, first_token=0.5, first_tokens=2))
    '300 tokens in (50.0 % from the prefix cache), 80 out, 2.5 s on average, 0.25 s to the first token'
    """
    cached = found.cached_tokens / max(found.prompt_tokens, 1)
    text = f"{found.prompt_tokens:,} tokens in"
    text += f" ({percent(cached, 1)} from the prefix cache)" if found.cached_tokens else ""
    text += f", {found.completion_tokens:,} out"
    done = found.rows - found.failed
    if found.latency and done > 0:
        text += f", {duration(found.latency / max(done, 1))} on average"
    if found.first_tokens:
        text += f", {duration(found.first_token / found.first_tokens)} to the first token"
    return text


def paid_words(paid: ModelPaid) -> str:
    """Say what was paid for.

    >>> from headrace.core.answered import Tokens
    >>> paid_words(ModelPaid(Tokens(10, 900, 80, 0.5), 1, priced=True))
    '10 answers paid for: 900 tokens in, 80 out, cost 0.50; 1 request was under way when its process ended'
    """
    text = _words(paid.total, priced=paid.priced, more=" paid for")
    if paid.unanswered:
        were = "was" if paid.unanswered == 1 else "were"
        text += f"; {plural(paid.unanswered, 'request')} {were} under way when its process ended"
    return text


def _words(tokens: Tokens, *, priced: bool, more: str = "") -> str:
    text = f"{plural(tokens.answers, 'answer')}{more}: {tokens.prompt:,} tokens in, {tokens.completion:,} out"
    return text + (f", {cost_words(tokens.cost, None)}" if priced else "")


def summary_lines(answered: Answered | None, paid: ModelPaid | None) -> list[str]:
    """Return the lines of a summary about language models."""
    lines = []
    if answered is not None:
        lines.append(f"answers: {answer_words(answered)}")
        if shares := share_words(answered):
            lines.append(f"of {plural(answered.rows, 'answer')}: {shares}")
    if paid is not None and paid.total.answers:
        speed = f"; {speed_words(paid.speed)}" if any(paid.speed) else ""
        lines.append(paid_words(paid) + speed)
        if len(paid.parts) > 1:
            lines += [f"{what}: {_words(part, priced=paid.priced)}" for what, part in paid.parts]
    return lines
