"""What a notebook shows of a value: a title, facts and tables. And the engine of templates."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from headrace.core.human import duration, plural, size
from headrace.core.tables import Link, Picture, Table, Words
from headrace.core.terminal import in_notebook, one_line, say, size_of
from headrace.core.work import REJECTED

_CHARS = 300  # of a text
_ACROSS = 30  # columns of a table


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


def card(title: str, facts: Sequence[tuple[str, Words]] = (), *tables: Table) -> str:
    """Return the HTML.

    >>> print(card("Dataset <b>", [("steps", "map(f)")]))
    <div class="headrace"><div style="...">Dataset &lt;b&gt;</div>
    ...map(f)</td></tr>
    ...
    """
    drawn = [
        {
            "heading": [_short(name) for name in table.heading],
            "types": [_short(name) for name in table.types],
            "numbers": [i in table.numbers for i in range(len(table.heading))],
            "rows": [[_cell(cell) for cell in row] for row in table.rows],
            "note": _short(table.note),
        }
        for table in (table.across(_ACROSS) for table in tables)
    ]
    told = [{"name": _short(name), **_cell(words)} for name, words in facts]
    return rendered(Path(__file__).parent / "card.html", title=_short(title), facts=told, tables=drawn)


def _cell(words: Words) -> dict[str, str]:
    cell = {"words": _short(words if isinstance(words, str) else words.text), "address": "", "picture": ""}
    if isinstance(words, Link):
        cell["address"] = words.address()
    elif isinstance(words, Picture):
        cell["picture"] = words.address()
    return cell


def _short(words: str) -> str:
    """Return words in one line, not too long, with characters that show."""
    return one_line(words if len(words) <= _CHARS else words[:_CHARS] + "…")


def show(table: Table) -> None:
    """Show a table where the program's output goes: in the cell of a notebook, or on standard output."""
    if in_notebook():
        from IPython.display import display

        display({"text/html": card("", (), table), "text/plain": table.text()}, raw=True)
    else:
        say(table.text(size_of(sys.stdout)[0]), sys.stdout)


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
