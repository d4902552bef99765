"""Draws what ``make bench`` has measured: bars for the README and the pages, and tables.

    python -m bench --json bench/figures.json      # measures; see bench/README.md
    python tools/charts.py                         # draws the figures that are there

Needs nothing but Python. A test holds that pictures and table are what the figures say.
"""

from __future__ import annotations

import json
import re
import statistics
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "bench" / "figures.json"
ALL = ROOT / "docs" / "benchmarks.md"
_MARKED = re.compile(r"(?<=<!-- figures: begin -->\n).*?(?=<!-- figures: end -->)", re.DOTALL)

JOBS = {
    "taxi_mlp": ("12 million rows, PyTorch", "12 Parquet files through a small network"),
    "wide": ("800,000 rows × 204 columns", "two columns read, all carried to the output"),
    "tiny": ("100 rows", "start-up: all there is in a job of 100 rows"),
}
MORE = {
    "taxi_parity": ("12 million rows, numpy", "the least that a model can do: what is left is the engine"),
    "two_models": ("two models in one pass", "a network and a weighted sum over taxi rides"),
    "many_small_files": ("20,000 files of 50 rows", "Parquet, numpy"),
    "few_large_files": ("3 large files", "for two workers"),
    "images": ("pictures, ResNet-18", "JPEG files, decoded and scaled"),
    "small_images": ("2,000 small pictures, loose", "JPEG files of 96 × 72 pixels"),
    "small_images_tar": ("2,000 small pictures in tars", "the same in four tar files"),
    "text_embedding": ("texts to vectors", "all-MiniLM-L6-v2"),
    "documents": ("PDF files to vectors", "text, chunks, all-MiniLM-L6-v2"),
    "audio": ("sounds to vectors", "WAV, log-mel spectrum, an encoder like Whisper's"),
    "resume_after_kill": ("first new row after a kill", "12 million rows, kill -9 half-way, started again"),
    "notebook_first_row": ("first row in a fresh process", "of 12 million through a network"),
}
EVERY = {**JOBS, **MORE}
FULL = "taxi_mlp"  # whose figures stand on the page
NAMES = {
    "headrace": "Headrace, map_batches",
    "headrace_predict": "Headrace, predict",
    "hand": "loop by hand",
    "daft": "Daft",
    "ray": "Ray Data",
    "spark": "Spark",
    "hand_tuned": "loop by hand, tuned",
    "headrace_stages": "Headrace, two stages",
    "headrace_ray": "Headrace on Ray",
    "daft_ray": "Daft on Ray",
    "ray_one": "Ray Data, one actor",
    "polars": "Polars",
    "duckdb": "DuckDB",
    "datasets": "Hugging Face datasets",
    "dataloader": "torch DataLoader",
}
FEW = ("headrace", "headrace_predict", "hand", "daft", "ray", "spark")
ON_RAY = (
    "ray",
    "ray_one",
    "daft_ray",
    "headrace_ray",
)  # it lets its workers go without counting their seconds
_SHADES = {
    "light": {"ground": "#ffffff", "text": "#1f2d37", "soft": "#52636f", "bar": "#b4c3cd", "ours": "#14708e"},
    "dark": {"ground": "#10202b", "text": "#e3ebf1", "soft": "#a5b5c1", "bar": "#4a6272", "ours": "#5cc3e6"},
}
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP = 760, 192, 76, 18, 8
_LINE = 110  # letters below a chart


@dataclass(frozen=True)
class Bar:
    """What a contender took for a job: its best round, as other work on a machine only ever adds time."""

    job: str
    name: str
    seconds: float


def bars(figures: dict[str, Any]) -> list[Bar]:
    """Return what there is to draw, jobs in the order of ``JOBS``, the quickest first.

    >>> rounds = {"hand": [2.0, 4.0, 2.5], "headrace": [1.5, 3.0, 1.0]}
    >>> results = [{"job": "tiny", "contender": name, "failure": None, "peaks": [2**20],
    ...             "rounds": [{"wall_s": each} for each in walls]} for name, walls in rounds.items()]
    >>> [(bar.name, bar.seconds) for bar in bars({"results": results})]
    [('headrace', 1.0), ('hand', 2.0)]
    """
    found = []
    for each in figures["results"]:
        if each["job"] in EVERY and each["contender"] in NAMES and each["rounds"] and not each["failure"]:
            walls = [one["wall_s"] for one in each["rounds"]]
            found.append(Bar(each["job"], each["contender"], min(walls)))
    return sorted(found, key=lambda bar: (list(EVERY).index(bar.job), bar.seconds))


def chart(drawn: Sequence[Bar], headline: str, shade: str, jobs: Mapping[str, tuple[str, str]] = JOBS) -> str:
    """Return bars as an SVG, a group for each job, each group with a scale of its own."""
    drawn = [bar for bar in drawn if bar.job in jobs]
    colour = _SHADES[shade]
    y, parts = 34.0, []
    for job, (title, note) in jobs.items():
        group = [bar for bar in drawn if bar.job == job]
        if not group:
            continue
        most = max(bar.seconds for bar in group)
        parts.append(
            f'<text x="18" y="{y:g}" class="t">{escape(title)}<tspan class="n" dx="10">{escape(note)}</tspan></text>'
        )
        y += 14
        for bar in group:
            ours = bar.name.startswith("headrace")
            long = max(2.0, (_WIDTH - _LEFT - _RIGHT) * bar.seconds / most)
            middle = y + _BAR / 2 + 4.5
            weight = ' class="o"' if ours else ""
            parts.append(
                f'<text x="{_LEFT - 10}" y="{middle:g}" text-anchor="end"{weight}>{NAMES[bar.name]}</text>'
                f'<rect x="{_LEFT}" y="{y:g}" width="{long:.1f}" height="{_BAR}" rx="2" '
                f'fill="{colour["ours" if ours else "bar"]}"/>'
                f'<text x="{_LEFT + long + 8:.1f}" y="{middle:g}"{weight}>{seconds(bar.seconds)}</text>'
            )
            y += _BAR + _GAP
        y += 28
    lines = ["Seconds of the whole process, start to exit, in its best round. Less is better."]
    lines += textwrap.wrap(headline, _LINE)
    for line in lines:
        parts.append(f'<text x="18" y="{y - 8:g}" class="n">{escape(line)}</text>')
        y += 17
    said = "; ".join(f"{jobs[b.job][0]}: {NAMES[b.name]} {seconds(b.seconds)}" for b in drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y:g}" width="{_WIDTH}" height="{y:g}" '
        f'role="img" aria-label="{escape(said)}"><title>{escape(said)}</title>\n'
        f"<style>text{{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:{colour['text']}}}"
        f".t{{font-size:14px;font-weight:600}}.n{{font-size:12px;font-weight:400;fill:{colour['soft']}}}"
        f".o{{font-weight:700}}</style>\n"
        f'<rect width="{_WIDTH}" height="{y:g}" rx="8" fill="{colour["ground"]}"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def seconds(value: float) -> str:
    """Return seconds with as many digits as they deserve.

    >>> seconds(0.4567), seconds(8.24), seconds(31.5)
    ('0.46 s', '8.2 s', '32 s')
    """
    return f"{value:.2f} s" if value < 1 else f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def every_table(figures: dict[str, Any]) -> str:
    """Return what was measured of one job, a table of the medians.

    >>> rounds = [{"wall_s": wall, "cpu_s": 2 * wall} for wall in (2.0, 4.0)]
    >>> one = {"job": "taxi_mlp", "contender": "hand", "failure": None, "peaks": [2**20], "rows": 100, "load": 9.3,
    ...        "rounds": rounds}
    >>> print(every_table({"results": [one]}), end="")
    **12 million rows, PyTorch** (2 rounds, load 9)
    <BLANKLINE>
    | | seconds | ÷ the loop | CPU s | MiB |
    |---|---|---|---|---|
    | loop by hand | 3.0 | 1.00 | 6.0 | 1 |
    """
    known = [each for each in figures["results"] if each["job"] == FULL and each["contender"] in NAMES]
    of_hand = {each["job"]: each["rounds"] for each in known if each["contender"] == "hand"}
    lines: list[str] = []
    job = ""
    for each in sorted(known, key=_place):
        if each["job"] != job:
            job = each["job"]
            load = f", load {each['load']:.0f}" if each.get("load") else ""
            title = f"**{EVERY[job][0]}** ({len(each['rounds'])} rounds{load})"
            lines += [*([""] if lines else []), title, ""]
            lines += ["| | seconds | ÷ the loop | CPU s | MiB |", "|---|---|---|---|---|"]
        name = NAMES[each["contender"]]
        shown = f"**{name}**" if each["contender"].startswith("headrace") else name
        if each["failure"] or not each["rounds"]:
            lines.append(f"| {shown} | failed | | | |")
            continue
        walls = [one["wall_s"] for one in each["rounds"]]
        pairs = zip(each["rounds"], of_hand.get(job, []), strict=False)
        ratios = [ours["wall_s"] / hand["wall_s"] for ours, hand in pairs]
        cpu = statistics.median(one["cpu_s"] for one in each["rounds"])
        cells = (
            shown,
            seconds(statistics.median(walls)).removesuffix(" s"),
            f"{statistics.median(ratios):.2f}" if ratios else "",
            f"{'>' if each['contender'] in ON_RAY else ''}{cpu:.1f}" if cpu >= 0.05 else "",
            f"{statistics.median(each['peaks']) / 2**20:,.0f}" if each["peaks"] else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _place(each: dict[str, Any]) -> tuple[int, float]:
    walls = [one["wall_s"] for one in each["rounds"]]
    return list(EVERY).index(each["job"]), statistics.median(walls) if walls else float("inf")


def headline(figures: dict[str, Any]) -> str:
    """Return how it was measured."""
    machine = figures["headline"].split("; ")[1]
    versions = figures["versions"]
    shown = ", ".join(
        f"{name} {versions[name]}" for name in sorted(versions) if versions[name] and "_" not in name
    )
    return f"{machine}, a virtual machine; Python {figures['machine']['python']}; {shown}"


def made() -> dict[Path, str]:
    """Return every file that the figures make, and what is in it."""
    figures = json.loads(FIGURES.read_text())
    drawn, said = bars(figures), headline(figures)
    few = [bar for bar in drawn if bar.job in JOBS and bar.name in FEW]
    several = [bar for bar in drawn if bar.job in MORE]
    assets, files = ROOT / "docs" / "assets", dict[Path, str]()
    for shade in _SHADES:
        files[assets / f"bench-{shade}.svg"] = chart(few, said, shade)
        files[assets / f"benchmarks-{shade}.svg"] = chart(several, said, shade, MORE)
    files[ALL] = _MARKED.sub(lambda _: f"\n{every_table(figures)}\n{said}.\n\n", ALL.read_text())
    return files


if __name__ == "__main__":
    for path, text in made().items():
        path.write_text(text)
