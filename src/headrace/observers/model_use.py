"""What language models were asked and have answered in a run: a part of the fold of its events."""

from __future__ import annotations

from collections import deque

from headrace.core.answered import Answered, Tokens, both
from headrace.core.events import ModelAsked, ModelPaid
from headrace.observers.pace import WINDOW, done_by

_ENOUGH = 0.005  # of the rows: from then on is said what all of them may cost


class ModelUse:
    """Answers of committed rows, exactly, and what was paid for, as workers have counted it.

    What a place counts only grows, and outlives workers and drivers: the last that was heard of it is true.

    >>> use = ModelUse()
    >>> own = Tokens(answers=50, prompt=1000, completion=500, cost=0.5)
    >>> use.add(ModelAsked(0, "prompt(m)", "s", own, 50, 50, "here", own, priced=True), at=10.0, ready=0.0)
    >>> use.speed(10.0), use.paid().total.cost
    ((100.0, 50.0), 0.5)
    >>> use.expected_cost(share=0.1, before=0.0)
    5.0
    """

    def __init__(self) -> None:
        self.answered: Answered | None = None  # in committed shards
        # By place alone: all steps of a run that ask count in one.
        self._places: dict[str, ModelAsked] = {}
        self._priced = False
        self._sessions: dict[str, ModelAsked] = {}  # of the present driver
        # Time, tokens in, tokens out, of the present driver.
        self._points: deque[tuple[float, int, int]] = deque()
        self._began: float | None = None

    def begin(self, answered: Answered | None) -> None:
        """A driver begins, with what is committed."""
        self.answered = answered
        self._sessions.clear()
        self._points.clear()
        self._began = None

    def commit(self, answered: Answered | None) -> None:
        """Add the answers of a shard."""
        self.answered = both(self.answered, answered)

    def add(self, event: ModelAsked, at: float, ready: float) -> None:
        """Add what a worker says; the first of them was ``ready`` then."""
        known = self._places.get(event.place)
        if known is None or event.total.answers >= known.total.answers:
            self._places[event.place] = event
        self._priced = self._priced or event.priced
        if self._began is None:
            self._began = ready
            self._points.append((ready, 0, 0))
        self._sessions[event.session] = event
        own = self.own
        self._points.append((at, own.prompt, own.completion))
        while len(self._points) > 2 and self._points[1][0] <= at - WINDOW:
            self._points.popleft()

    @property
    def known(self) -> bool:
        """True if a language model was asked."""
        return bool(self._places) or self.answered is not None

    @property
    def own(self) -> Tokens:
        """What the present driver's workers have used."""
        return sum((each.own for each in self._sessions.values()), Tokens())

    @property
    def priced(self) -> bool:
        """True if the cost is known, as there are prices."""
        return self._priced

    def paid(self, *, ended: bool = False) -> ModelPaid:
        """Return what was used; ``ended``: nothing is under way, so what was not answered never will be."""
        total = sum((each.total for each in self._places.values()), Tokens())
        lost = sum(max(0, each.sent - each.ended) for each in self._places.values()) if ended else 0
        parts: dict[str, Tokens] = {}
        for place in self._places.values():
            for what, tokens in place.parts:
                parts[what] = parts.get(what, Tokens()) + tokens
        return ModelPaid(total, lost, self._average(), self.priced, tuple(sorted(parts.items())))

    def _average(self) -> tuple[float, float]:
        """Return tokens a second, in and out, of all that the present driver has heard."""
        own, (last, *_) = self.own, self._points[-1] if self._points else (0.0,)
        seconds = last - (self._began or 0.0)
        return (own.prompt / seconds, own.completion / seconds) if seconds > 0 else (0.0, 0.0)

    def speed(self, now: float) -> tuple[float, float]:
        """Return the tokens a second, in and out, of the last half minute."""
        if len(self._points) < 2:
            return 0.0, 0.0
        since = max(self._points[0][0], now - WINDOW)
        seconds = max(now, self._points[-1][0]) - since
        if seconds <= 0:
            return 0.0, 0.0
        read, written = done_by(list(self._points), since)
        _, all_read, all_written = self._points[-1]
        return (all_read - read) / seconds, (all_written - written) / seconds

    def expected_cost(self, share: float | None, before: float) -> float | None:
        """Return what the run will have cost in the end, if the rest is as what this driver has had answered.

        ``share`` of its rows are done, ``before`` of them before this driver; None while too little is known.
        """
        if not self.priced or share is None or share - before < _ENOUGH:
            return None
        given = sum(each.given for each in self._sessions.values())
        taken = sum(each.taken for each in self._sessions.values())
        if not given or not taken:
            return None
        own, total = self.own.cost, self.paid().total.cost
        done = own * min(1.0, taken / given)  # answers that wait for those before them are of rows to come
        return round(max(total, total - own + done * (1.0 - before) / (share - before)), 9)
