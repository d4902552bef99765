"""What a notebook shows of a value: a title, facts and a table, as HTML in which everything is escaped."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from headrace.core.human import duration, plural, size
from headrace.core.terminal import one_line
from headrace.core.work import REJECTED

_CHARS = 300  # of a text
_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = "text-align:left;vertical-align:top;padding:2px 16px 2px 0;background:none"
_SMALL = "font-size:90%;opacity:.75"


@dataclass(frozen=True, slots=True)
class Link:
    """A file that a browser can open."""

    text: str
    path: Path

    def html(self) -> str:
        """Return it as HTML; a file below the present folder is named from there, as a notebook's server has it."""
        from urllib.parse import quote

        try:
            address = quote(str(self.path.relative_to(Path.cwd())))
        except (ValueError, OSError):
            address = "file://" + quote(str(self.path))
        return f'<a href="{escape(address)}" target="_blank" rel="noopener">{text(self.text)}</a>'


Words = str | Link


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of words below their headings; ``note`` stands below."""

    heading: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def card(title: str, facts: Sequence[tuple[str, Words]] = (), *tables: Table) -> str:
    """Return the HTML.

    >>> card("Dataset <b>", [("steps", "map(f)")])
    '<div class="headrace"><div style="...">Dataset &lt;b&gt;</div>...map(f)</td></tr></table></div>'
    """
    parts = [f'<div class="headrace"><div style="font-weight:bold;margin:4px 0">{text(title)}</div>']
    if facts:
        rows = [
            f'<tr style="background:none"><td style="{_CELL};{_SMALL}">{text(name)}</td>'
            f'<td style="{_CELL}">{words.html() if isinstance(words, Link) else text(words)}</td></tr>'
            for name, words in facts
        ]
        parts.append(f'<table style="border:none;margin:0">{"".join(rows)}</table>')
    parts += map(_table_html, tables)
    return "".join([*parts, "</div>"])


def _table_html(table: Table) -> str:
    heading = "".join(
        f'<th scope="col" style="{_CELL};border-bottom:{_LINE}">{text(name)}</th>' for name in table.heading
    )
    rows = [
        '<tr style="background:none">'
        + "".join(f'<td style="{_CELL}">{text(cell)}</td>' for cell in row)
        + "</tr>"
        for row in table.rows
    ]
    note = f'<div style="{_SMALL}">{text(table.note)}</div>' if table.note else ""
    body = f"<thead><tr>{heading}</tr></thead><tbody>{''.join(rows)}</tbody>"
    return f'<table style="border:none;margin:6px 0">{body}</table>{note}'


def text(words: str) -> str:
    """Return words as HTML: one line, not too long, with characters that show.

    >>> text("a<script>\\x1b")
    'a&lt;script&gt;\\\\x1b'
    """
    short = words if len(words) <= _CHARS else words[:_CHARS] + "…"
    return escape(one_line(short))


# ---------------------------------------------------------------- the result of a run


_REJECTED = 5  # rows that are shown
_REASON = ("_error_type", "_error", "_step", "_file", "_row")


def result_html(result: Any) -> str:
    """Return a result as a notebook shows it; of rejected rows, why and where, but none of their values."""
    ledger = result.ledger
    facts: list[tuple[str, Words]] = [
        ("rows", f"{ledger.read:,} in, {result.rows:,} out, {result.rejected:,} rejected"),
        ("took", duration(result.seconds) + (" over all drivers" if result.resumed else "")),
        ("output", f"{result.path} ({plural(result.files, 'file')}, {size(result.bytes)})"),
        ("report", Link(result.report.name, result.report)),
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
    rows = [
        (f"{kind}: {words}", str(step), f"{file}, row {row}" if row is not None else str(file))
        for kind, words, step, file, row in _first_rejected(result.path / REJECTED)
    ]
    note = f"{result.rejected:,} rejected rows: hr.read_rejected({str(result.path)!r}) reads them"
    return Table(("rejected for", "by", "from"), rows, note)


def _first_rejected(folder: Path) -> list[tuple[Any, ...]]:
    """Read why the first rows were rejected; none of what cannot be read."""
    import pyarrow as pa

    found: list[tuple[Any, ...]] = []
    with contextlib.suppress(OSError, pa.ArrowException, KeyError):
        for path in sorted(folder.glob("*.arrow")):
            with pa.OSFile(str(path)) as file, pa.ipc.open_file(file) as batches:
                for i in range(batches.num_record_batches):
                    batch = batches.get_batch(i).select(_REASON).slice(0, _REJECTED - len(found))
                    found += [tuple(row.values()) for row in batch.to_pylist()]
                    if len(found) >= _REJECTED:
                        return found
    return found
