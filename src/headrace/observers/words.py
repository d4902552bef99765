"""How far a run is, in words: fields of a line that fits its place, a line for a log, an object for machines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from headrace.core.answered import Answered, Tokens
from headrace.core.events import ModelPaid
from headrace.core.human import clock, count, duration, per_second, percent, plural
from headrace.core.terminal import one_line, padded
from headrace.core.terminal import width as columns_of
from headrace.observers.run_parts import bottleneck
from headrace.observers.run_state import RETRIED_SHARDS, RunState

# ----------------------------------------------------------------
# What language models were asked and have answered.


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


def answer_lines(
    state: RunState, now: float, answered: Answered | None, *, ended: bool
) -> list[tuple[str, str]]:
    """Return what language models did, as names and words; nothing if none was asked."""
    use = state.models
    if not use.known and answered is None:
        return []
    paid = use.paid(ended=ended)
    found = [("tokens", speed_words(paid.speed if ended else use.speed(now)))]
    if answered is not None:
        found.append(("answers", ", ".join(filter(None, [answer_words(answered), share_words(answered)]))))
    found.append(("paid", paid_words(paid)))
    if paid.priced and not ended and (expected := state.cost_expected) is not None:
        found.append(("cost", cost_words(paid.total.cost, expected)))
    return found


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


GAP = 2  # columns between two fields
LEAST_BAR, MOST_BAR = 8, 40  # columns
_NAME = 16  # columns of a stage's name, at least
_SLOWEST, _QUICKEST = 5.0, 0.5  # seconds over which the time left is smoothed


@dataclass(frozen=True, slots=True)
class Field:
    """One thing that is said. The least important, that of the highest ``rank``, is left out first."""

    name: str
    text: str
    rank: int


def phase_words(state: RunState) -> str:
    """Say what is going on.

    >>> phase_words(RunState())
    'starting'
    """
    driver = state.last
    if driver is None or driver.started is None:
        return state.doing or "starting"
    if driver.finished is not None:
        return "ended"
    if state.shards_done >= state.shards:
        return "finishing"
    if state.asked.ends or state.asked.paused:
        return "ending" if state.asked.ends else "paused" if state.asked.held else "pausing"
    workers = max(1, sum(driver.workers) or driver.started.workers)
    ready = min(len(state.ready), workers)
    if ready == workers or state.rows > driver.started.rows_done:
        return "running"
    steps = driver.described.steps if driver.described is not None else ()
    if any(step.startswith("predict(") for step in steps):
        return f"loading model, {ready} of {plural(workers, 'worker')}"
    return f"starting workers, {ready} of {workers}"


def fields(state: RunState, now: float, left: float | None) -> list[Field]:
    """Return what there is to say, in the order in which it is read; ``left`` are the seconds that it still takes.

    Numbers that grow have the width that they will need, so that nothing moves while they do.
    """
    phase = phase_words(state)
    found = [Field("phase", phase, 0)]
    if state.last is None or phase == "starting":
        elapsed = state.elapsed(now) if state.last is None else present_elapsed(state, now)
        if state.last is None and state.doing_since is not None:
            elapsed += now - state.doing_since
        return [*found, Field("elapsed", f"{clock(elapsed)} elapsed", 1)]
    at_work = phase in ("running", "finishing") or bool(state.rows + sum(state.begun))
    if at_work and state.share is not None:
        found += [Field("bar", "", 5), Field("share", f"{share_text(state.share):>7}", 1)]
    if at_work:
        found.append(Field("rows", rows_text(state), 6))
        if begun := begun_text(state):
            found.append(Field("begun", begun, 8))
        speed = state.speed(now)
        if speed or left is not None:
            found.append(Field("speed", f"{per_second(speed):>13}", 4))
    found.append(Field("elapsed", f"{clock(present_elapsed(state, now))} elapsed", 7))
    if at_work and phase != "finishing" and (left is not None or phase == "running"):
        found.append(Field("left", f"{clock(left) if left is not None else '-:--'} left", 2))
    if at_work and state.models.known:
        found.append(Field("tokens", speed_words(state.models.speed(now)), 9))
        if state.models.priced:
            cost = cost_words(state.models.paid().total.cost, state.cost_expected)
            found.append(Field("cost", cost, 5))
    if state.failed:
        found.append(Field("failed", f"{state.failed:,} {_failed(state)}", 3))
    if retries := state.counts[RETRIED_SHARDS]:
        found.append(Field("retries", plural(retries, "retry", "retries"), 8))
    return found


def _failed(state: RunState) -> str:
    described = state.described
    rejects = described is not None and described.options.get("on_error") == "reject"
    return "rejected" if rejects else "failed"


def present_elapsed(state: RunState, now: float) -> float:
    """Return the seconds since the present driver began."""
    return max(0.0, now - state.last.began) if state.last is not None else 0.0


def share_text(share: float) -> str:
    """Return a share of the work, cut rather than rounded: 100 % is all of it.

    >>> share_text(0.42349), share_text(0.99999), share_text(1.0)
    ('42.3 %', '99.9 %', '100.0 %')
    """
    return f"{math.floor(share * 1000 + 1e-9) / 10:.1f} %"


def rows_in_all(state: RunState) -> str:
    """Return how many rows there are, or about how many; empty where nothing tells."""
    if state.rows_expected is not None:
        return f"{state.rows_expected:,}"
    likely = state.sample.likely
    return f"about {float(f'{likely:.3g}'):,.0f}" if likely else ""


def rows_text(state: RunState) -> str:
    """Return how many rows were read, of how many; or how many shards are done where nothing tells that."""
    if whole := rows_in_all(state):
        rows = state.rows if state.rows_expected is None else min(state.rows, state.rows_expected)
        return f"{rows:>{len(whole.removeprefix('about '))},} of {whole} row{'s' * (whole != '1')}"
    by_size = state.started is not None and state.started.size
    done = "" if by_size else f", {state.shards_done:,} of {plural(state.shards, 'part')} of the input"
    return f"{plural(state.rows, 'row')}{done}"


def begun_text(state: RunState) -> str:
    """Return how many more rows are half done: some stages are through with them, and the last one is not.

    >>> state = RunState()
    >>> state.rows, state.begun = 400, (1000, 700)
    >>> begun_text(state), begun_text(RunState())
    ('600 half done', '')
    """
    half = max(state.begun, default=0) - state.rows
    return f"{half:,} half done" if half > 0 else ""


def fitting(found: list[Field], width: int) -> tuple[list[Field], int]:
    """Return what fits into ``width`` columns, the most important first, and the columns of the bar.

    >>> some = [Field("phase", "running", 0), Field("bar", "", 5), Field("share", "42.3 %", 1)]
    >>> [field.name for field in fitting(some, 30)[0]], fitting(some, 30)[1]
    (['phase', 'bar', 'share'], 13)
    >>> [field.name for field in fitting(some, 20)[0]]
    ['phase', 'share']
    """
    kept: list[Field] = []
    room = width + GAP
    for field in sorted(found, key=lambda field: field.rank):
        taken = GAP + (LEAST_BAR if field.name == "bar" else len(field.text))
        if taken <= room or not kept:
            kept.append(field)
            room -= taken
    bar = min(MOST_BAR, LEAST_BAR + max(0, room)) if any(field.name == "bar" for field in kept) else 0
    return [field for field in found if field in kept], bar


def progress_line(state: RunState, now: float, left: float | None = None) -> str:
    """Return how far a run is, as one line for a log.

    >>> from headrace.core.events import RowsRead, RunStarted
    >>> state = RunState()
    >>> state.add(RunStarted("r", "out", 12, 3, 250_000, 1_000_000, 2), at=100.0)
    >>> state.add(RowsRead(worker=0, shard=3, rows=250_000), at=104.0)
    >>> state.tick(at=105.0)
    >>> progress_line(state, 105.0)
    'running, 50.0 %, 500,000 of 1,000,000 rows, 50 k rows/s, 0:05 elapsed, 0:10 left'
    """
    left = state.time_left(now) if left is None else left
    return ", ".join(" ".join(field.text.split()) for field in fields(state, now, left) if field.text)


def progress_object(state: RunState, now: float) -> dict[str, Any]:
    """Return the same for machines; times are in seconds, what is not known is None."""
    left = state.time_left(now)
    models = model_data(state, now, state.models.answered, ended=phase_words(state) == "ended")
    return {
        "event": "progress",
        "phase": phase_words(state).partition(",")[0],
        "share": None if state.share is None else math.floor(state.share * 10_000) / 10_000,
        "rows": state.rows,
        "rows_half_done": max(0, max(state.begun, default=0) - state.rows),
        "rows_expected": state.rows_expected,
        "rows_per_second": round(state.speed(now), 1),
        "rows_failed": state.failed,
        "shards": state.shards,
        "shards_done": state.shards_done,
        "shards_retried": state.counts[RETRIED_SHARDS],
        "workers_ready": len(state.ready),
        "elapsed": round(present_elapsed(state, now), 1),
        "left": None if left is None else round(left, 1),
        **({} if models is None else {"language_model": models}),
    }


def stage_texts(state: RunState, now: float, width: int) -> list[str]:
    """Return a line for each stage of a run with several: its steps, its workers and how busy they were lately."""
    names, workers = state.stage_names, state.stage_workers
    if len(names) < 2 or not (sum(state.begun) or phase_words(state) == "running"):
        return []
    shares = state.busy_lately(now)
    slowest = bottleneck(shares)
    ends = [
        f"{plural(number, 'worker'):>10}  {percent(share):>5} busy{'  bottleneck' if i == slowest else ''}"
        for i, (number, share) in enumerate(zip(workers, shares, strict=True))
    ]
    room = max(0, width - 2 - GAP - max(map(len, ends)))
    if room < _NAME:
        ends = [f"{percent(share):>5} busy" for share in shares]
        room = max(1, width - 2 - GAP - max(map(len, ends)))
    column = min(room, max(map(columns_of, names)))
    return [
        f"  {padded(one_line(name), column)}{' ' * GAP}{end}" for name, end in zip(names, ends, strict=True)
    ]


class SteadyTimeLeft:
    """The time left, without its jumps: it falls as the clock goes on, and follows what is computed after a while.

    >>> left = SteadyTimeLeft()
    >>> left.update(0.0, 60.0, elapsed=10.0), left.update(1.0, 59.0, elapsed=11.0)
    (60.0, 59.0)
    >>> 58.0 < left.update(1.2, 118.0, elapsed=11.2) < 70.0
    True
    """

    def __init__(self) -> None:
        self._at = 0.0
        self._left: float | None = None

    def update(self, now: float, computed: float | None, *, elapsed: float) -> float | None:
        """Return what to show at ``now``; ``elapsed`` seconds of the run are over."""
        if computed is None or self._left is None:
            self._left = computed
        elif now > self._at:
            expected = max(0.0, self._left - (now - self._at))
            slowness = min(_SLOWEST, max(_QUICKEST, 0.1 * elapsed))
            weight = 1.0 - math.exp(-(now - self._at) / slowness)
            self._left = expected + weight * (computed - expected)
        self._at = max(now, self._at)
        return self._left
