"""Draws terminals: runs commands in a real pseudo-terminal and writes what is seen as an SVG that moves.

    python -m pip install -c constraints.txt pyte
    python tools/terminal.py                # all pictures, in docs/assets
    python tools/terminal.py terminal       # a run that is killed and goes on
    python tools/terminal.py required       # a bad model, whose output is kept back
    python tools/terminal.py fleet          # three machines, one of which dies

Needs Linux or macOS and pyte, which understands what a terminal obeys; the site is built without either. The picture
asks for nothing from elsewhere, and begins with the last frame, as the first one is almost empty. Where movement is
not wanted (``prefers-reduced-motion``) the last frame stays.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fcntl import ioctl
from html import escape
from pathlib import Path
from termios import TIOCSWINSZ

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "docs" / "assets"

Run = tuple[str, str, bool]  # text, colour, bold
Line = tuple[Run, ...]

_COLOURS = {
    "default": "#d3dce6",
    "black": "#5c6b7a",
    "red": "#ff8a80",
    "green": "#86d993",
    "brown": "#f0c674",
    "blue": "#82b4ff",
    "magenta": "#d6a5f0",
    "cyan": "#72cfe8",
    "white": "#ffffff",
    "prompt": "#86d993",
    "remark": "#8fa0b0",
}
_GROUND, _BAR = "#10202b", "#1a303d"
_CELL, _HEIGHT, _SIZE, _EDGE, _TOP = 8.43, 20, 14, 18, 40
_FIRST = 3.0  # seconds: how long the last picture is seen first
_SHARE = re.compile(r"\b(\d+(?:\.\d+)?) ?%")
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace"


@dataclass
class Film:
    """What a terminal showed, and when."""

    columns: int
    frames: list[tuple[float, tuple[Line, ...]]] = field(default_factory=list)

    def show(self, seconds: float, lines: Sequence[Line]) -> None:
        """Add what is seen for so many seconds, unless it is what was seen before."""
        at = self.seconds
        if not self.frames or self.frames[-1][1] != tuple(lines):
            self.frames.append((at, tuple(lines)))
        self.seconds = at + seconds

    seconds: float = 0.0


def prompt(command: str, shown: int | None = None, remark: str = "") -> Line:
    """Return a line with a command, of which so many letters are typed."""
    typed = command if shown is None else command[:shown]
    words: list[Run] = [("$ ", "prompt", True), (typed, "white", True)]
    if remark and shown is None:
        words.append((f"  # {remark}", "remark", False))
    return tuple(words)


def ran(
    command: Sequence[str], folder: Path, columns: int, rows: int, kill_at: int = 0
) -> Iterator[tuple[float, list[Line]]]:
    """Run a command in a pseudo-terminal; yield how long each picture stood. At ``kill_at`` percent: kill -9."""
    import pyte

    screen = pyte.Screen(columns, rows)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    ioctl(theirs, TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    env = {**_env(), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "HEADRACE_PROGRESS"):
        env.pop(name, None)
    done = subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    before, lines = time.monotonic(), list[Line]()
    while True:
        ready, _, _ = select.select([ours], [], [], 0.1)
        try:
            data = os.read(ours, 65536) if ready else b""
        except OSError:  # the other end is closed
            break
        if ready and not data:
            break
        if data:
            now = time.monotonic()
            yield now - before, lines
            before = now
            stream.feed(data)
            lines = _lines(screen)
            seen = "".join(text for line in lines for text, *_ in line)
            if kill_at and any(float(share) >= kill_at for share in _SHARE.findall(seen)):
                kill_at = 0
                done.send_signal(signal.SIGKILL)
    os.close(ours)
    if done.wait() == -signal.SIGKILL:
        lines = [*lines, (("Killed", "red", True),)]
    yield time.monotonic() - before, lines
    yield 0.0, lines


def _env() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": paths}


def _lines(screen: object) -> list[Line]:
    """Return what a screen of pyte shows, without the empty lines at its end."""
    found: list[Line] = []
    for y in range(screen.lines):  # type: ignore[attr-defined]
        runs: list[Run] = []
        for x in range(screen.columns):  # type: ignore[attr-defined]
            cell = screen.buffer[y][x]  # type: ignore[attr-defined]
            style = (cell.fg, cell.bold)
            if runs and runs[-1][1:] == style:
                runs[-1] = (runs[-1][0] + cell.data, *style)
            else:
                runs.append((cell.data, *style))
        while runs and not runs[-1][0].strip():
            runs.pop()
        if runs:
            runs[-1] = (runs[-1][0].rstrip(), *runs[-1][1:])
        found.append(tuple(runs))
    while found and not found[-1]:
        found.pop()
    return found


def svg(film: Film, title: str, rows: int, hold: float = 6.0) -> str:
    """Return a film as an SVG: each line that was seen, with the times at which it was."""
    width, height = film.columns * _CELL + 2 * _EDGE, rows * _HEIGHT + _TOP + _EDGE
    total = film.seconds + hold
    spans: dict[tuple[int, Line], list[tuple[float, float]]] = {}
    ends = [at for at, _ in film.frames[1:]] + [total]
    for (at, lines), end in zip(film.frames, ends, strict=True):
        for y, line in enumerate(lines[-rows:]):
            shown = spans.setdefault((y, line), [])
            if shown and shown[-1][1] == at:
                shown[-1] = (shown[-1][0], end)
            elif line:
                shown.append((at, end))
    rules, texts = [], []
    for number, ((y, line), shown) in enumerate(spans.items()):
        if not shown:
            continue
        last = shown[-1][1] == total
        rules.append(
            f"@keyframes k{number}{{{_keyframes(shown, total)}}}#l{number}{{animation-name:k{number}}}"
        )
        hidden = "" if last else ' opacity="0"'
        texts.append(
            f'<text id="l{number}" y="{_TOP + (y + 0.75) * _HEIGHT:g}"{hidden}>{_spans(line)}</text>'
        )
    before = total - _FIRST  # so that who comes sees something at once
    moving = f"text[id]{{animation:{total:.2f}s step-end -{before:.2f}s infinite}}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
            f'height="{height:.0f}" role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>',
            f"<style>text{{font:{_SIZE}px {_FONT};white-space:pre;fill:{_COLOURS['default']}}}.b{{font-weight:600}}",
            f"@media (prefers-reduced-motion:no-preference){{{moving}{''.join(rules)}}}</style>",
            f'<rect width="{width:.0f}" height="{height:.0f}" rx="8" fill="{_GROUND}"/>',
            f'<path d="M0 28V8a8 8 0 0 1 8-8H{width - 8:.0f}a8 8 0 0 1 8 8V28Z" fill="{_BAR}"/>',
            *(f'<circle cx="{18 + 18 * i}" cy="14" r="5" fill="#47606f"/>' for i in range(3)),
            *texts,
            "</svg>\n",
        ]
    )


def _keyframes(shown: Sequence[tuple[float, float]], total: float) -> str:
    marks = [] if shown[0][0] == 0 else ["0%{opacity:0}"]
    for at, end in shown:
        marks.append(f"{100 * at / total:.2f}%{{opacity:1}}")
        if end < total:
            marks.append(f"{100 * end / total:.2f}%{{opacity:0}}")
    return "".join(marks)


def _spans(line: Line) -> str:
    column, words = 0, []
    for text, colour, bold in line:
        fill = _COLOURS.get(colour, f"#{colour}")
        style = ' class="b"' if bold else ""
        if text.strip():
            length = f' textLength="{len(text) * _CELL:.1f}" lengthAdjust="spacingAndGlyphs"'
            x = f"{_EDGE + column * _CELL:.1f}"
            words.append(f'<tspan x="{x}" fill="{fill}"{style}{length}>{escape(text, quote=False)}</tspan>')
        column += len(text)
    return "".join(words)


_TRIPS = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

Path("trips").mkdir()
for month in range(int(sys.argv[1])):
    random = np.random.default_rng(month)
    trips = {"id": np.arange(1_000_000) + 1_000_000 * month, "distance": random.gamma(2.0, 2.0, 1_000_000),
             "hour": random.integers(0, 24, 1_000_000)}
    pq.write_table(pa.table(trips), f"trips/2026-{month + 1:02d}.parquet")
"""
_MODEL = """
import numpy as np


class Fare:
    def __init__(self):
        random = np.random.default_rng(0)
        self.first, self.last = random.normal(size=(2, 64)), random.normal(size=64)

    def __call__(self, batch):
        x = np.stack([batch["distance"], batch["hour"] / 24], 1)
        return np.tanh(x @ self.first) @ self.last
"""
_SCORE = """\
import headrace as hr
from model import Fare

trips = hr.read_parquet("trips/")
fares = trips.predict(Fare, inputs=["distance", "hour"], output="fare")
fares.write_parquet("fares/")
"""


def trips(folder: Path, months: int = 12) -> None:
    """Write a million trips for each month."""
    subprocess.run([sys.executable, "-c", _TRIPS, str(months)], cwd=folder, check=True)


def killed_and_resumed(columns: int = 124, rows: int = 18) -> str:
    """Draw a run that is killed, and the same command once more."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as made:
        folder = Path(made)
        for name, text in {"model.py": _MODEL, "score.py": _SCORE}.items():
            (folder / name).write_text(text)
        trips(folder)
        film, above = Film(columns), list[Line]()
        _type(film, above, "cat score.py")
        above += [((line, "default", False),) if line else () for line in _SCORE.splitlines()]
        for kill_at, remark in ((55, "kill -9 comes on the way"), (0, "the same command goes on")):
            above.append(())
            film.show(0.8, above)
            _type(film, above, "python score.py", remark)
            lines: list[Line] = []
            for seconds, lines in ran([sys.executable, "score.py"], folder, columns, rows, kill_at):
                film.show(min(seconds, 1.0), [*above, *lines])
            above += _at_home(lines, folder)
            film.show(1.0, above)
        return svg(
            film, "A run is killed at about half of its rows; the same command goes on from there", rows
        )


def _type(film: Film, above: list[Line], command: str, remark: str = "") -> None:
    for shown in range(0, len(command) + 1, 3):
        film.show(0.12, [*above, prompt(command, shown)])
    above.append(prompt(command, None, remark))
    film.show(0.5, above)


_NIGHT = """
def today(batch):
    return 3.0 + 2.5 * batch["distance"]


def tomorrow(batch):  # with a mistake
    return 2 * today(batch)
"""
_WAITS = """
import time


class Fare:
    def __call__(self, batch):
        time.sleep(len(batch["distance"]) / 40_000)
        return 3.0 + 2.5 * batch["distance"]
"""


def not_as_required(columns: int = 96, rows: int = 18) -> str:
    """Draw a run whose output is as required, and one of a bad model, whose output is not published."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as made:
        folder = Path(made)
        (folder / "night.py").write_text(_NIGHT)
        trips(folder, months=2)
        film, above = Film(columns), list[Line]()
        given = ["trips/", "-o", "fares/", "--inputs", "distance", "--output", "fare"]
        given += ["--mode", "overwrite", "--metric", "mean=Mean(fare)"]
        asked = ["--require", "mean<=15"]
        command = [sys.executable, "-m", "headrace", "predict", "night:today", *given, *asked]
        subprocess.run(command, cwd=folder, env=_env(), check=True, capture_output=True)
        words = [
            "headrace predict night:tomorrow trips/ -o fares/ --inputs distance --output fare \\",
            "    --mode overwrite --metric 'mean=Mean(fare)' --require 'mean<=15'",
        ]
        argv = ["predict", "night:tomorrow", *given, *asked]
        _shown(film, above, words, argv, folder, columns, rows)
        _shown(film, above, ["headrace runs fares/"], ["runs", "fares/"], folder, columns, rows)
        return svg(film, "The output of a bad model is not published", rows)


def three_machines(columns: int = 96, rows: int = 32) -> str:
    """Draw three programs that share the work; one of them is killed."""
    with tempfile.TemporaryDirectory(prefix="headrace-") as made:
        folder = Path(made)
        (folder / "fares.py").write_text(_WAITS)
        trips(folder, months=2)
        film, above = Film(columns), list[Line]()
        argv = ["predict", "fares:Fare", "trips/", "-o", "fares/", "--inputs", "distance", "--output", "fare"]
        argv += ["--fleet", "--workers", "1"]
        command = [sys.executable, "-m", "headrace", *argv]
        quiet = subprocess.DEVNULL
        machines = [
            subprocess.Popen(command, cwd=folder, env=_env(), stdout=quiet, stderr=quiet) for _ in range(3)
        ]
        _type(film, above, f"headrace {' '.join(argv[:-2])}", "on each")
        above.append(())
        status = ["status", "fares/"]
        _until(folder, lambda found: len([each for each in found if each["rows"]]) == 3)
        _shown(film, above, ["headrace status fares/"], status, folder, columns, rows)
        machines[1].kill()
        above.append((("kill -9 ends one of them", "remark", False),))
        _shown(film, above, ["headrace status fares/"], status, folder, columns, rows)
        for each in machines:
            each.wait()
        _shown(
            film,
            above,
            ["headrace verify fares/"],
            ["verify", "fares/"],
            folder,
            columns,
            rows,
            "once all is done",
        )
        return svg(film, "Three machines share the work, one of them dies, and each row is there once", rows)


def _until(folder: Path, holds: Callable[[list[dict[str, object]]], bool]) -> None:
    command = [sys.executable, "-m", "headrace", "status", "fares/", "--json"]
    while True:
        done = subprocess.run(command, cwd=folder, env=_env(), capture_output=True, check=False)
        if done.stdout and holds(json.loads(done.stdout).get("machines", [])):
            return


def _shown(
    film: Film,
    above: list[Line],
    typed: Sequence[str],
    argv: Sequence[str],
    folder: Path,
    columns: int,
    rows: int,
    remark: str = "",
) -> None:
    """Type a command and show what it prints, below what stands there."""
    first, *others = typed
    _type(film, above, first, remark)
    above += [((line, "white", True),) for line in others]
    lines: list[Line] = []
    for seconds, lines in ran([sys.executable, "-m", "headrace", *argv], folder, columns, rows):
        film.show(min(seconds, 1.0), [*above, *_at_home(lines, folder)])
    above += [*_at_home(lines, folder), ()]
    film.show(1.5, above)


def _at_home(lines: Sequence[Line], folder: Path) -> list[Line]:
    return [tuple((text.replace(str(folder), "/home/you"), *rest) for text, *rest in line) for line in lines]


PICTURES = {"terminal": killed_and_resumed, "required": not_as_required, "fleet": three_machines}


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", nargs="*", choices=[*PICTURES, []])
    for name in parser.parse_args().picture or PICTURES:
        (ASSETS / f"{name}.svg").write_text(PICTURES[name]())


if __name__ == "__main__":
    main()
