"""What ``verify`` says of an output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from headrace.core.terminal import one_line

if TYPE_CHECKING:
    from headrace.core.work import Ledger

Verdict = Literal["good", "damaged", "unpublished", "unfinished", "running"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be.

    ``kind`` is one of ``missing``, ``size``, ``damaged``, ``rows``, ``extra``, ``journal``, ``plan``, ``manifest``,
    ``success``, ``totals``, ``shards``, ``metrics``, ``table`` (which has not all rows), ``unpublished``
    and ``unfinished``.
    """

    kind: str
    file: str
    message: str

    def __str__(self) -> str:
        return one_line(f"{self.file}: {self.message}")


@dataclass(frozen=True)
class Verification:
    """What ``verify`` found; ``print(verification)`` shows it.

    Attributes
    ----------
    path, run
        The folder, or the address, and the name of the run whose parts are in it.
    state
        ``"good"``; ``"damaged"``; ``"unfinished"``: the run can be resumed, and what is there is as it should be;
        ``"unpublished"``: all is there as it should be, and kept out of sight, as a requirement was not met;
        ``"running"``: another process is writing, and nothing was checked.
    findings
        What is wrong.
    files, rows, bytes, rejected
        Parts, rows and bytes that were checked, and rejected rows.
    metrics
        Results of metrics, merged again from the journal.
    unchecked
        Metrics that could not be merged, as they are not Headrace's own.
    recounted
        Those of ``metrics`` whose columns are in the output as they were measured, in Parquet: they were computed
        from the files, too.
    note
        Who is writing, that an overwrite or a further run is under way, or that a Delta table was compacted, so that
        its rows are in other files; else an empty string.

    >>> import pathlib
    >>> Verification(pathlib.Path("out"), "k3f9a2xq", "unfinished").good
    False
    """

    path: Path | str
    run: str
    state: Verdict
    findings: tuple[Finding, ...] = ()
    files: int = 0
    rows: int = 0
    bytes: int = 0
    rejected: int = 0
    metrics: dict[str, Any] | None = None
    unchecked: tuple[str, ...] = ()
    recounted: tuple[str, ...] = ()
    note: str = ""

    @property
    def good(self) -> bool:
        """True if the output is complete and as it was written."""
        return self.state == "good"

    def _repr_html_(self) -> str:
        """Show in a notebook what was checked, and what is wrong."""
        from headrace.core.cards import card
        from headrace.core.tables import Table

        first, *others = str(self).splitlines()
        others = others[len(self.findings) :]
        found = [(each.kind, each.file, each.message) for each in self.findings]
        tables = [Table(("kind", "file", "finding"), found)] if found else []
        return card(first, [("", line.strip()) for line in others], *tables)

    def __str__(self) -> str:
        from headrace.core.human import plural, size

        if self.state == "running":
            return f"{self.path} is being written by {self.note}. Nothing was checked: verify it when that is done."
        words = f"{plural(self.files, 'file')}, {plural(self.rows, 'row')}, {size(self.bytes)}"
        aside = f", {plural(self.rejected, 'rejected row')}" if self.rejected else ""
        lines = [f"{self.path}: {self.state} ({words}{aside}; run {self.run})"]
        lines += [f"  {finding}" for finding in self.findings]
        if self.metrics:
            lines.append(f"  metrics merged again: {', '.join(self.metrics)}")
        if self.recounted:
            lines.append(f"  metrics computed again from the files: {', '.join(self.recounted)}")
        if self.unchecked:
            lines.append(
                f"  metrics not checked, as only their own code can merge them: {', '.join(self.unchecked)}"
            )
        return "\n".join(map(one_line, [*lines, f"  {self.note}"] if self.note else lines))


def are_steps(steps: Any) -> TypeGuard[list[dict[str, Any]]]:
    """Say whether what stands in ``_SUCCESS`` are the counts of steps."""
    return isinstance(steps, list) and all(isinstance(step, dict) for step in steps)


def steps_of(ledger: Ledger) -> Iterator[tuple[int, ...]]:
    """Yield the counts of each step, in the order in which ``_SUCCESS`` names them."""
    fates = zip(ledger.steps, ledger.rejects, ledger.dropped, ledger.added, ledger.unused, strict=True)
    for (taken, given), *others in fates:
        yield taken, given, *others


def verbs(shape: dict[str, Any]) -> set[str]:
    """Return the verbs of a plan."""
    return {step.get("verb", "") for step in shape.get("steps", ())}
