"""The programs on the pages for users run, and print what the pages show."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

DOCS = Path(__file__).parents[2] / "docs"
_BLOCK = re.compile(r"^```(python|py|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, kind: str) -> list[str]:
    return [text for found, text in _BLOCK.findall((DOCS / page).read_text()) if found == kind]


def on_any_machine(line: str) -> str:
    """Without what depends on the number of cores, and on how much memory there is."""
    line = line.replace(" (more workers than cores)", "")
    line = re.sub(r"^memory +[\d.]+ [MGT]iB", "memory", line)
    return re.sub(r"\b[\d.]+ (worker|thread|core)s?\b", r"some \1", line).strip()


def rows_of(folder: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("part-*")))


def run(script: Callable[..., Any], page: str) -> None:
    """Run a page's programs as one, and look for what it shows in what they print."""
    ended = script("\n".join(blocks(page, "python")), env={"MILLRACE_PROGRESS": "1"})
    assert ended.code == 0, ended.err
    printed = {on_any_machine(line) for line in (ended.out + ended.err).splitlines()}
    for line in "".join(blocks(page, "text")).splitlines():
        assert on_any_machine(line) in printed, ended.err


def test_errors(script: Callable[..., Any]) -> None:
    run(script, "errors.md")


def test_metrics(script: Callable[..., Any]) -> None:
    run(script, "metrics.md")


def test_coming_from_ray(script: Callable[..., Any]) -> None:
    run(script, "coming-from-ray.md")


def test_a_program_for_ray_runs_with_another_import(script: Callable[..., Any]) -> None:
    """The page's first program, as it was written for Ray Data."""
    program, *_ = blocks("coming-from-ray.md", "py")
    shown, *_ = blocks("coming-from-ray.md", "text")
    assert program.count("import ray.data\n") == 1
    ours = program.replace("import ray.data\n", "import millrace as mr\n").replace("ray.data.", "mr.")
    ended = script(ours)
    assert (ended.code, ended.out) == (0, shown), ended.err


def test_stages(script: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "reviews").mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (12, 40, 50, 3), np.uint8)
    for i, each in enumerate(pixels):
        Image.fromarray(each).save(tmp_path / "photos" / f"{i:02d}.png")
    lines = [f"  {'Good ' * (i % 4)}work, number {i}" for i in range(500)]
    (tmp_path / "reviews" / "all.txt").write_text("\n".join(lines))

    run(script, "stages.md")
    assert rows_of(tmp_path / "labels").num_rows == 12
    scores = rows_of(tmp_path / "scores")
    assert scores.column("score").to_pylist() == [i % 4 for i in range(500)]
    assert [int(text.split()[-1]) for text in scores.column("text").to_pylist()] == list(range(500))
    assert rows_of(tmp_path / "fits").column("id").to_pylist() == list(range(1_000))
