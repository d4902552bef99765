"""What people ask of a run: figures that its output must have, and how it is to go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from headrace.core.human import exact
from headrace.core.terminal import one_line
from headrace.core.work import OnError


class Figure(msgspec.Struct, frozen=True):
    """A figure of an output beside what was asked for; ``found`` is None if there is no number, and ``note`` why.

    >>> print(Figure("auc", "at least 0.9", 0.83, False))
    auc is 0.83 (asked: at least 0.9)
    """

    name: str
    asked: str
    found: float | None = None
    met: bool = False
    note: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.name} is {self.shown} (asked: {self.asked})")

    @property
    def shown(self) -> str:
        """The figure in words."""
        found = "unknown" if self.found is None else exact(self.found)
        if self.found is not None and not self.met and found in self.asked.split():
            found = repr(self.found)  # rounded, it would look as if it were met
        return f"{found}, {self.note}" if self.note else found


class RequirementsAsked(msgspec.Struct, frozen=True):
    """Whether the whole output is as it was required; or what somebody decided about one that is not.

    ``verdict`` is ``met``, ``not met``, ``published`` or ``discarded``.
    """

    verdict: str
    figures: tuple[Figure, ...] = ()
    because: str = ""

    @classmethod
    def of(cls, success: Mapping[str, Any]) -> RequirementsAsked | None:
        """Return what was required of a complete output, by its ``_SUCCESS``; None if nothing was."""
        try:
            figures = msgspec.convert(success.get("requirements", ()), tuple[Figure, ...])
            published = msgspec.convert(success.get("published", {}), dict[str, Any])
        except msgspec.ValidationError:
            return None
        met = "met" if all(figure.met for figure in figures) else "not met"
        verdict = "published" if published else met
        return cls(verdict, figures, str(published.get("because", ""))) if figures else None

    def __str__(self) -> str:
        unmet = "; ".join(str(each) for each in self.figures if not each.met)
        if self.verdict == "met":
            return "; ".join(map(str, self.figures))
        if self.verdict == "published":
            return f"published although {unmet}, because: {self.because}"
        return f"discarded, because: {self.because}" if self.verdict == "discarded" else f"not met: {unmet}"


EVERY_ROW = (
    "The run adds columns to a table, which need a value for each row. on_error='null' writes a null for a row that "
    "fails."
)


class RunAsked(msgspec.Struct, frozen=True):
    """How somebody who watches wants the run to go on from now on.

    ``paused``: nothing begins, and what is under way ends as soon as it can. ``ends``: nothing begins, and the run
    stops once what is under way is done. ``workers`` of each stage whose steps do not say how many; ``on_error`` and
    ``max_errors``: instead of the options of that name. None: as before. ``held``, as the driver says: it is paused,
    with nothing under way any more.
    """

    paused: bool = False
    ends: bool = False
    workers: Annotated[int, msgspec.Meta(ge=1, le=1000)] | None = None
    on_error: OnError | None = None
    max_errors: Annotated[float, msgspec.Meta(gt=0)] | None = None
    held: bool = False

    def __str__(self) -> str:
        found = (
            ["it ends after what is under way"]
            if self.ends
            else ["it is paused" if self.held else "it pauses"]
            if self.paused
            else []
        )
        options = ("workers", self.workers), ("on_error", self.on_error), ("max_errors", self.max_errors)
        found += [
            f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in options
            if value
        ]
        return ", ".join(found) or "it goes on"
