"""A bar in a notebook's cell: HTML that is replaced in its place. It needs no widgets, and asks for no script."""

from __future__ import annotations

from html import escape
from typing import Any

from headrace.core.terminal import one_line
from headrace.observers.progress_text import fields, progress_line, share_text, stage_texts
from headrace.observers.run_state import RunState

_WIDTH = 100  # columns of a stage's line
_TEXT = "margin:0;font-family:var(--jp-code-font-family,monospace);font-size:90%;white-space:pre-wrap"


class NotebookView:
    """Draws into one output of the cell that runs."""

    def __init__(self) -> None:
        from IPython.display import display

        self._handle: Any = display(_bundle("", ""), raw=True, display_id=True)
        self._shown = ""

    def draw(self, state: RunState, now: float, left: float | None) -> None:
        """Show how far the run is."""
        self._update(progress_html(state, now, left), progress_line(state, now, left))

    def say(self, line: str) -> None:
        """Leave a line."""
        print(one_line(line))

    def close(self) -> None:
        """Take the bar away."""
        self._update("", "")

    def _update(self, html: str, words: str) -> None:
        if html != self._shown and self._handle is not None:
            self._shown = html
            self._handle.update(_bundle(html, words), raw=True)


def progress_html(state: RunState, now: float, left: float | None) -> str:
    """Return the bar and the words beside it.

    >>> print(progress_html(RunState(), 0.0, None))
    <div class="headrace-progress"><div style="...">starting &nbsp; 0:00 elapsed</div></div>
    """
    words = " &nbsp; ".join(escape(field.text.strip()) for field in fields(state, now, left) if field.text)
    lines = [f'<div style="{_TEXT}">{words}</div>']
    if state.share is not None:
        percent = share_text(state.share).split()[0]
        lines.insert(
            0,
            f'<div role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{percent}" style="height:6px;max-width:40em;border-radius:3px;overflow:hidden;'
            f'background:rgba(128,128,128,.3);margin:4px 0"><div style="height:100%;width:{percent}%;'
            'background:#0e8a93"></div></div>',
        )
    lines += [
        f'<div style="{_TEXT};opacity:.75;white-space:pre">{escape(line)}</div>'
        for line in stage_texts(state, now, _WIDTH)
    ]
    return f'<div class="headrace-progress">{"".join(lines)}</div>'


def _bundle(html: str, words: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": words}
