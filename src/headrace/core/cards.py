"""What a notebook shows of a value: a title, facts and tables. And the engine of templates, which escapes words."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from headrace.core.human import duration, plural, size
from headrace.core.terminal import one_line
from headrace.core.work import REJECTED

_CHARS = 300  # of a text


def rendered(template: Path, **values: Any) -> str:
    """Return the HTML that a template, whose name ends in ``.html``, makes of plain values."""
    made: str = engine(template).render_template(template.name, **values)
    return made


@cache
def engine(template: Path) -> Any:
    """Return the engine with a template; it takes what Jinja2 takes, and a tenth of the time to be imported."""
    from minijinja import Environment

    made = Environment(undefined_behavior="strict", trim_blocks=True, lstrip_blocks=True)
    made.debug = False  # its errors would hold all values
    made.add_template(template.name, template.read_text(encoding="utf-8"))
    return made


@dataclass(frozen=True, slots=True)
class Link:
    """A file that a browser can open."""

    text: str
    path: Path

    def address(self) -> str:
        """Return where it is; a file below the present folder is named from there, as a notebook's server has it."""
        from urllib.parse import quote

        try:
            return quote(str(self.path.relative_to(Path.cwd())))
        except (ValueError, OSError):
            return "file://" + quote(str(self.path))


Words = str | Link


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of words below their headings; ``note`` stands below."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def card(title: str, facts: Sequence[tuple[str, Words]] = (), *tables: Table) -> str:
    """Return the HTML.

    >>> print(card("Dataset <b>", [("steps", "map(f)")]))
    <div class="headrace"><div style="...">Dataset &lt;b&gt;</div>
    ...map(f)</td></tr>
    ...
    """
    told = [
        {"name": _short(name), "words": _short(words.text), "address": words.address()}
        if isinstance(words, Link)
        else {"name": _short(name), "words": _short(words), "address": ""}
        for name, words in facts
    ]
    drawn = [
        {
            "heading": [_short(name) for name in table.heading],
            "rows": [[_short(cell) for cell in row] for row in table.rows],
            "note": _short(table.note),
        }
        for table in tables
    ]
    return rendered(Path(__file__).parent / "card.html", title=_short(title), facts=told, tables=drawn)


def _short(words: str) -> str:
    """Return words in one line, not too long, with characters that show."""
    return one_line(words if len(words) <= _CHARS else words[:_CHARS] + "…")


# ---------------------------------------------------------------- the result of a run


_REJECTED = 5  # rows that are shown
_REASON = ("_error_type", "_error", "_step", "_file", "_row")


def result_html(result: Any) -> str:
    """Return a result as a notebook shows it; of rejected rows, why and where, but none of their values."""
    ledger, report = result.ledger, result.report
    facts: list[tuple[str, Words]] = [
        ("rows", f"{ledger.read:,} in, {result.rows:,} out, {result.rejected:,} rejected"),
        ("took", duration(result.seconds) + (" over all drivers" if result.resumed else "")),
        ("output", f"{result.path} ({plural(result.files, 'file')}, {size(result.bytes)})"),
        ("report", Link(report.name, report) if isinstance(report, Path) else report),
    ]
    tables = []
    if result.metrics:
        tables.append(
            Table(("metric", "result"), [(name, str(found)) for name, found in result.metrics.items()])
        )
    if result.rejected:
        tables.append(_rejected_table(result))
    return card("Result: complete", facts, *tables)


def _rejected_table(result: Any) -> Table:
    """Return the first rejected rows: why they are, and where they stood."""
    from headrace.core.rejected import reason

    found = _first_rejected(Path(result.path) / REJECTED)
    rows = [(raised, str(why["_step"]), where) for why in found for where, raised in [reason(why)]]
    note = f"{result.rejected:,} rejected rows: hr.read_rejected({str(result.path)!r}) reads them"
    return Table(("rejected for", "by", "from"), rows, note)


def _first_rejected(folder: Path) -> list[dict[str, Any]]:
    """Read why the first rows were rejected; none of what cannot be read."""
    import pyarrow as pa

    found: list[dict[str, Any]] = []
    with contextlib.suppress(OSError, pa.ArrowException, KeyError):
        for path in sorted(folder.glob("*.arrow")):
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as batches:
                for i in range(batches.num_record_batches):
                    batch = batches.get_batch(i).select(_REASON).slice(0, _REJECTED - len(found))
                    found += batch.to_pylist()
                    if len(found) >= _REJECTED:
                        return found
    return found
