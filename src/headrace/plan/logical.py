"""The plan as the user wrote it: a source, a linear list of steps, maybe a sink, and what the output has to meet."""

from __future__ import annotations

import contextlib
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.asked import INFINITE, Figure
from headrace.core.human import exact
from headrace.core.model_ports import Accumulator
from headrace.core.source_ports import Source
from headrace.core.target_ports import Sink
from headrace.core.terminal import one_line
from headrace.errors import ArgumentError, PlanError, nearest
from headrace.plan.steps.base import Step
from headrace.plan.steps.functions import Accumulate

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.work import Ledger


# ---------------------------------------------------------------- what an output has to meet before readers see it

OF_THE_RUN = ("rows", "rejected", "nulled", "seconds", "cost")
"""Figures of every run, beside its metrics; a metric of the same name goes before."""

COMPARED = ("changed", "only_old", "only_new", "columns")
"""Figures that comparing an output with another one gives."""

OF_COLUMNS = ("share", "psi", "ks", "changed", "filled", "emptied", "difference")
"""What comparing finds of a column; ``difference`` has further names."""

_ASKED = re.compile(r"\s*([^<>=]*[^<>=\s])\s*(>=|<=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")


class Bound(msgspec.Struct, frozen=True):
    """The least and the most that a figure may be, both included; None: it has no such end."""

    least: float | None = None
    most: float | None = None

    def __str__(self) -> str:
        if self.least is None or self.most is None:
            number = self.most if self.least is None else self.least
            return f"{'at most' if self.least is None else 'at least'} {exact(number or 0)}"
        return f"between {exact(self.least)} and {exact(self.most)}"

    def holds(self, value: float) -> bool:
        """Say whether a number lies within."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)


def at_least(least: float) -> Bound:
    """Return a requirement for ``Dataset.require``: a figure is this number or more.

    Raises ``ArgumentError`` for what is no number.

    >>> import headrace as hr
    >>> print(hr.at_least(0.9))
    at least 0.9
    """
    return Bound(least=_number("at_least", least))


def at_most(most: float) -> Bound:
    """Return a requirement for ``Dataset.require``: a figure is this number or less.

    Raises ``ArgumentError`` for what is no number.

    >>> import headrace as hr
    >>> print(hr.at_most(0.001))
    at most 0.001
    """
    return Bound(most=_number("at_most", most))


def between(least: float | None, most: float | None) -> Bound:
    """Return a requirement for ``Dataset.require``: a figure is not below ``least`` and not above ``most``.

    None for one of them: there is no such bound. Raises ``ArgumentError`` for what is no number, for two None, and if
    ``least`` is above ``most``.

    >>> import headrace as hr
    >>> print(hr.between(1, 1_000_000))
    between 1 and 1,000,000
    """
    if least is None and most is None:
        raise ArgumentError("between(None, None) asks for nothing: give one of the two.")
    made = Bound(*(None if end is None else _number("between", end) for end in (least, most)))
    if made.least is not None and made.most is not None and made.least > made.most:
        raise ArgumentError(f"between({least!r}, {most!r}): no number is within. Give the smaller one first.")
    return made


class Against(msgspec.Struct, frozen=True):
    """What an output is compared with before it is published: its place, and the columns that tell a row."""

    path: str
    on: tuple[str, ...] = ()


class Requirement(msgspec.Struct, frozen=True):
    """A figure by its name, and what it has to be. ``name`` may go on into a result: ``scores.f1``."""

    name: str
    bound: Bound
    against: Against | None = None

    def __str__(self) -> str:
        return f"{self.name} {self.bound}"


def given(
    verb: str, asked: Mapping[str, Any], metrics: Sequence[str], against: Against | None = None
) -> tuple[Requirement, ...]:
    """Read what the user requires; ``metrics`` are the names of those that are counted.

    ``against``: what the output is compared with, for the figures that this gives.

    Raises ``ArgumentError`` for a figure that there will not be, and for what is no bound.
    """
    if not asked:
        raise ArgumentError(f"{verb}() takes figures by name, such as {verb}(rows=hr.between(1, None)).")
    compared_by = {name: against for name in asked if str(name).partition(".")[0] in COMPARED and against}
    if against is not None and not compared_by:
        raise ArgumentError(
            f"{verb}(against={against.path!r}): no figure of a comparison is asked for, such as "
            "changed=hr.at_most(0.05)."
        )
    for name, bound in asked.items():
        if not isinstance(bound, Bound):
            raise ArgumentError(
                f"{verb}({name}={bound!r}): give hr.at_least(…), hr.at_most(…) or hr.between(…, …)."
            )
        if name in compared_by:
            if name not in COMPARED[:-1] and column_of(name) is None:
                raise ArgumentError(
                    f"{verb}({name}=…): comparing gives {', '.join(COMPARED[:-1])}, and columns.NAME with one of "
                    f"{', '.join(OF_COLUMNS)} behind it, such as 'columns.score.psi'.{nearest(name, COMPARED[:-1])}"
                )
            continue
        known = [*metrics, *OF_THE_RUN]
        if not isinstance(name, str) or (name not in known and _begun(name, metrics) is None):
            counted = f"the metrics here are {', '.join(metrics)}" if metrics else "no metric is counted here"
            raise ArgumentError(
                f"{verb}({name}=…): there is no such figure; {counted}, and each run has {', '.join(OF_THE_RUN)}."
                f"{nearest(str(name), known)} A metric comes before, by accumulate({name}=…); "
                f"{', '.join(COMPARED)} need against='yesterday/'."
            )
    return tuple(Requirement(name, bound, compared_by.get(name)) for name, bound in asked.items())


def column_of(figure: str) -> str | None:
    """Return the column that a figure of a comparison is about; None if it is about none.

    >>> column_of("columns.trip.fare.difference.q50"), column_of("columns.fare"), column_of("changed")
    ('trip.fare', None, None)
    """
    head, _, rest = figure.partition(".")
    found = re.fullmatch(rf"(.+)\.(?:{'|'.join(OF_COLUMNS[:-1])}|{OF_COLUMNS[-1]}\.\w+)", rest)
    return None if found is None or head != COMPARED[-1] else found[1]


def _begun(path: str, names: Iterable[Any]) -> Any:
    """Return the longest of some names that a path is, or begins with; None if it is none of them.

    >>> _begun("scores.1.5.mean", [1.0, 1.5]), _begun("scores.1.5.mean", ["scores", "scores.1.5"])
    (None, 'scores.1.5')
    """
    found = (name for name in names if f"{path}.".startswith(f"{name}."))
    return max(found, key=lambda name: len(str(name)), default=None)


def from_text(text: str) -> tuple[str, Bound]:
    """Return what a text such as ``auc>=0.9`` asks for; raises ``ArgumentError`` for another one.

    >>> from_text("rejected <= 0.001")
    ('rejected', Bound(least=None, most=0.001))
    """
    found = _ASKED.fullmatch(text)
    if found is None:
        raise ArgumentError(f"{text!r} is no requirement. Write a name, >= or <=, and a number: 'auc>=0.9'.")
    number = float(found[3])
    return found[1], at_least(number) if found[2] == ">=" else at_most(number)


def compared(
    requirements: Iterable[Requirement],
    metrics: Mapping[str, Any],
    notes: Mapping[str, str],
    ledger: Ledger,
    *,
    seconds: float,
    cost: float | None,
    comparisons: Mapping[Against, tuple[Mapping[str, Any], str]] = MappingProxyType({}),
) -> tuple[Figure, ...]:
    """Compare the figures of an output, as it would be, with what was asked for.

    ``metrics`` are results by name, ``notes`` words beside some of them. ``cost`` is None where it is not known.
    ``comparisons`` has what comparing with other outputs gave, and a note.
    """
    of_run = {
        "rows": (ledger.written, ""),
        "rejected": _share(ledger.rejected, ledger.read),
        "nulled": _share(ledger.nulled, ledger.read),
        "seconds": (seconds, ""),
        "cost": (cost, "as no model that was asked has prices" if cost is None else ""),
    }
    figures = []
    for requirement in requirements:
        name, bound = requirement.name, requirement.bound
        metric = _begun(name, metrics)
        if requirement.against is not None:
            by, note = comparisons[requirement.against]
            found, why = _number_in(by, name, "") if by else (None, "")
            if found is None and by:
                note = f"{_why_none(by, name) or why}; {note}"
        elif metric is not None:
            found, note = _number_in(metrics[metric], name[len(metric) + 1 :], notes.get(metric, ""))
        else:
            found, note = of_run.get(name, (None, "as it was not counted"))
        met = found is not None and bound.holds(found)
        figures.append(Figure(name, str(bound), found, met, note))
    return tuple(figures)


def _why_none(by: Mapping[str, Any], figure: str) -> str:
    """Say why a column has no such figure, if it has none."""
    each = by["columns"].get(column_of(figure))
    if each is None:
        return ""
    unchanged = "" if each["changed"] else ", and no value changed"
    return f"as there is none for a column of {each['types'][1]}{unchanged}"


def _number_in(result: Any, within: str, note: str) -> tuple[float | None, str]:
    """Return the number that a result is, or that it has under a name; None, and why, if there is none."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    while within and result is not None:
        found = {str(name): value for name, value in result.items()} if isinstance(result, Mapping) else {}
        key = _begun(within, found)
        if key is None:
            return None, f"as the result has no {within!r}.{nearest(within, found)}".rstrip(".")
        result, within = found[key], within[len(key) + 1 :]
    if isinstance(result, Mapping) and result.keys() == {"value", "low", "high"}:
        result = result["value"]  # of an estimate, as _SUCCESS has it
    if isinstance(result, Mapping):
        names = ", ".join(map(str, list(result)[:5]))
        return None, f"as the result has several numbers: ask for one by its name, such as one of {names}"
    if result is None or not isinstance(result, numbers.Real):
        return None, note or "as there is none" * (result is None) or "as the result is no number"
    if math.isnan(result):
        return None, note or "as the result is NaN"
    if math.isinf(result):
        return float(result), INFINITE[result < 0]
    return (int(result) if isinstance(result, numbers.Integral) else float(result)), note


def _share(rows: int, of: int) -> tuple[float, str]:
    """Return the share of rows, and both numbers in words; 0 if there is no row."""
    return (rows / of if of else 0.0), f"{rows:,} of {of:,} rows"


def _number(verb: str, value: Any) -> float:
    number = math.nan
    with contextlib.suppress(OverflowError):
        number = float(value) if isinstance(value, numbers.Real) else math.nan
    if isinstance(value, bool) or math.isnan(number):
        raise ArgumentError(f"{verb}({one_line(repr(value))[:80]}): it takes a number.")
    return int(value) if isinstance(value, numbers.Integral) else number


@dataclass(frozen=True, slots=True)
class Plan:
    """A source, a linear list of steps, maybe a sink."""

    source: Source
    steps: tuple[Step, ...] = ()
    sink: Sink | None = None
    output_schema: pa.Schema | None = None
    requirements: tuple[Requirement, ...] = ()

    def then(self, step: Step) -> Plan:
        """Return the plan with one step more; models that can run side by side become one step."""
        joined = self.steps[-1].joined(step) if self.steps else None
        if joined is not None:
            return replace(self, steps=(*self.steps[:-1], joined))
        if step.makes_rows and self.accumulates:
            raise PlanError(
                f"{step.label()} comes after {self.accumulates[-1].label()}, and may change which rows there are. "
                "The metrics would then count rows that are not written. Put accumulate after it, and keep the "
                "columns that the metrics need until there."
            )
        return replace(self, steps=(*self.steps, step))

    @property
    def accumulates(self) -> tuple[Accumulate, ...]:
        """The steps with metrics, in order."""
        return tuple(step for step in self.steps if isinstance(step, Accumulate))

    @property
    def metrics(self) -> tuple[tuple[str, Accumulator], ...]:
        """All metrics with their names, in order."""
        return tuple(metric for step in self.steps for metric in step.metrics)

    def without_metrics(self) -> Plan:
        """Return what is left when nobody asks for metrics."""
        return replace(self, steps=tuple(step for step in self.steps if not step.metrics))

    def into(self, sink: Sink, schema: pa.Schema | None = None) -> Plan:
        """Return the plan with its sink, and the output's schema if the user settled it."""
        return replace(self, sink=sink, output_schema=schema)
