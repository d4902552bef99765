"""Errors of steps that are not of Headrace: they name the step, where it raised, and the rows that it was given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from headrace.core.arrow.values import a
from headrace.core.failures import first_line, name_of, without_message, words
from headrace.errors import HeadraceError, StepError
from headrace.worker.calls import Caller
from headrace.worker.rows import Rows
from headrace.worker.steps.base import RunningStep, StepContext

HIDDEN = "(its text is hidden: it may hold data)"


class OwnStep:
    """Runs a step of the user's: what it raises is a ``StepError``; what comes from before it, or of ours, passes."""

    def __init__(self, running: RunningStep[Any], context: StepContext) -> None:
        self._running = running
        self._context = context
        self._given: Rows | None = None
        self._passing: BaseException | None = None

    def run(self, rows: Iterator[Rows], callers: Sequence[Caller]) -> Iterator[Rows]:
        """Yield what the step makes of rows."""
        try:
            made: Iterator[Any] = self._running.run(self._before(rows), callers, self._context)
            for part in made:
                if not isinstance(part, Rows):
                    name = type(self._running).__name__
                    label = self._running.step.label()
                    raise StepError(f"{label}: {name}.run has to yield Rows, and yielded {a(part)}.")
                yield part
        except Exception as error:
            if isinstance(error, HeadraceError) or error is self._passing:
                raise
            raise self._located(error)  # noqa: B904 - has its cause
        finally:
            self._passing = self._given = None

    def _before(self, rows: Iterator[Rows]) -> Iterator[Rows]:
        try:
            for part in rows:
                self._given = part
                yield part
        except BaseException as error:
            self._passing = error
            raise

    def _located(self, error: Exception) -> StepError:
        show = self._context.policy.show_data
        said = words(error).rstrip(".") if show or not words(error) else HIDDEN
        line = first_line(error)
        place = f" at {line[0]}:{line[1]}" if line is not None else ""
        rows = (
            f"It was working on {self._context.where(self._given)}"
            if self._given is not None
            else "It had no row yet"
        )
        located = StepError(
            f"{self._running.step.label()} raised {name_of(error)}{f': {said}' if said else ''}, in "
            f"{type(self._running).__name__}{place}. {rows}."
        )
        located.__cause__ = error if show else without_message(error)
        return located
