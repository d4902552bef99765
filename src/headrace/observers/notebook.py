"""A bar in a notebook's cell: HTML that is replaced in its place. It needs no widgets, and asks for no script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.core.cards import rendered
from headrace.core.terminal import one_line
from headrace.observers.progress_text import fields, progress_line, share_text, stage_texts
from headrace.observers.run_state import RunState

_WIDTH = 100  # columns of a stage's line


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
    return rendered(
        Path(__file__).parent / "progress.html",
        percent=share_text(state.share).split()[0] if state.share is not None else "",
        fields=[field.text.strip() for field in fields(state, now, left) if field.text],
        stages=stage_texts(state, now, _WIDTH),
    )


def _bundle(html: str, words: str) -> dict[str, str]:
    return {"text/html": html, "text/plain": words}
